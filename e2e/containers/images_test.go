package containers

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/bctl/bctl/e2e/dockertest"
)

// The images of the project, by the variables of compose.yaml that name them.
func images(t *testing.T, provider *testcontainers.DockerProvider, docker client.APIClient) map[string]string {
	t.Helper()
	made := map[string]string{"BCTL_IMAGE": bctlImage(t, provider)}
	for variable, build := range map[string]func(*testing.T) *image{
		"NATS_IMAGE": natsImage, "VERSITYGW_IMAGE": versitygwImage, "POSTGRES_IMAGE": postgresImage, "MC_IMAGE": mcImage,
	} {
		if made[variable] = os.Getenv(variable); made[variable] == "" {
			made[variable] = build(t).make(t, docker)
		}
	}
	// The image that the last run has built has lost its name to that of this one.
	dangling := make(client.Filters).Add("dangling", "true").Add("label", dockertest.Label+"=yes")
	if _, err := docker.ImagePrune(t.Context(), client.ImagePruneOptions{Filters: dangling}); err != nil {
		t.Errorf("remove old images: %v", err)
	}
	return made
}

func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	command := exec.Command(program, args...)
	command.Dir, command.Stderr = dockertest.Root(t), os.Stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return strings.TrimSpace(string(text))
}

// bctlImage builds deploy/Dockerfile from a binary of this source tree.
func bctlImage(t *testing.T, provider *testcontainers.DockerProvider) string {
	t.Helper()
	directory := t.TempDir()
	binary := filepath.Join(directory, "bctl")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "./services/bctl")
	build.Dir, build.Env = dockertest.Root(t), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build bctl: %v:\n%s", err, text)
	}
	context := filepath.Join(directory, "context")
	output(t, "deploy/rootfs.sh", binary, context)
	dockerfile, err := os.ReadFile(filepath.Join(dockertest.Root(t), "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), dockerfile, 0o644); err != nil {
		t.Fatal(err)
	}
	name, err := provider.BuildImage(t.Context(), &testcontainers.ContainerRequest{FromDockerfile: testcontainers.FromDockerfile{
		Context: context, Repo: "bctl-e2e/bctl", Tag: "latest", KeepImage: true,
		BuildOptionsModifier: func(o *client.ImageBuildOptions) {
			o.Target, o.Labels = "prebuilt", map[string]string{dockertest.Label: "yes"}
		},
	}})
	if err != nil {
		t.Fatalf("build deploy/Dockerfile: %v", err)
	}
	return name
}

// An image of programs of this machine.
type image struct {
	name    string
	files   map[string]string // path in the image → file of this machine
	texts   map[string]string // path in the image → content of a script
	dirs    map[string]directory
	changes []string // as in a Dockerfile
}

type directory struct {
	owner int
	mode  int64
}

// withShell is an image with /bin/sh.
func withShell(t *testing.T, name string) *image {
	t.Helper()
	i := &image{name: name, files: map[string]string{}, texts: map[string]string{}, dirs: map[string]directory{}, changes: []string{"LABEL " + dockertest.Label + "=yes"}}
	i.program(t, "/bin/sh", "/bin/sh")
	return i
}

var libraryPath = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// program adds a program, and the libraries that it needs.
func (i *image) program(t *testing.T, path, file string) {
	t.Helper()
	i.files[path] = file
	libraries, err := exec.Command("ldd", file).Output()
	if err != nil {
		return // it is static
	}
	for _, match := range libraryPath.FindAllStringSubmatch(string(libraries), -1) {
		i.files[match[1]] = match[1]
	}
}

// tree adds the files below a directory that are not skipped.
func (i *image) tree(t *testing.T, directory string, skip func(name string) bool) {
	t.Helper()
	err := filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !skip(d.Name()) {
			i.files[path] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func natsImage(t *testing.T) *image {
	i := withShell(t, "nats")
	i.program(t, "/usr/local/bin/nats-server", output(t, "e2e/tool.sh", "nats-server"))
	i.changes = append(i.changes, `ENTRYPOINT ["/usr/local/bin/nats-server"]`)
	return i
}

func versitygwImage(t *testing.T) *image {
	i := withShell(t, "versitygw")
	i.program(t, "/usr/local/bin/versitygw", output(t, "e2e/tool.sh", "versitygw"))
	i.changes = append(i.changes, "ENV PATH=/usr/local/bin:/bin")
	return i
}

// mcImage holds what the installation's apply.sh runs.
func mcImage(t *testing.T) *image {
	i := withShell(t, "mc")
	i.program(t, "/bin/dirname", "/usr/bin/dirname")
	i.program(t, "/usr/local/bin/mc", output(t, "e2e/tool.sh", "mc"))
	i.changes = append(i.changes, "ENV PATH=/usr/local/bin:/bin")
	return i
}

const postgresUser = 999 // as in Debian's image

// postgresImage holds the Postgres that is installed here, behind an entrypoint
// that knows as much of that of the public image as compose.yaml uses.
func postgresImage(t *testing.T) *image {
	t.Helper()
	installed, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(installed) == 0 {
		t.Fatalf("no Postgres in /usr/lib/postgresql to make an image of: install one (Debian: apt-get install postgresql), or set POSTGRES_IMAGE (%v)", err)
	}
	sort.Strings(installed)
	home := filepath.Dir(filepath.Dir(installed[len(installed)-1]))
	version := filepath.Base(home)
	i := withShell(t, "postgres")
	for _, program := range []string{"postgres", "initdb", "pg_isready", "psql"} {
		i.program(t, filepath.Join(home, "bin", program), filepath.Join(home, "bin", program))
	}
	for _, program := range []string{"chown", "cp", "mkdir", "mv", "rm"} { // deploy/compose/handout.sh
		i.program(t, "/bin/"+program, "/bin/"+program)
	}
	// Just-in-time compilation would bring a hundred megabytes of LLVM.
	i.tree(t, filepath.Join(home, "lib"), func(name string) bool { return strings.HasPrefix(name, "llvmjit") || !strings.HasSuffix(name, ".so") })
	i.tree(t, filepath.Join("/usr/share/postgresql", version), func(name string) bool { return strings.HasSuffix(name, ".mo") })
	i.texts["/entrypoint"] = postgresEntrypoint
	i.texts["/etc/passwd"] = fmt.Sprintf("root:x:0:0::/:/bin/sh\npostgres:x:%d:%[1]d::/:/bin/sh\n", postgresUser)
	i.texts["/etc/group"] = fmt.Sprintf("root:x:0:\npostgres:x:%d:\n", postgresUser)
	i.dirs["/var/lib/postgresql/data"] = directory{postgresUser, 0o700}
	// What compose.yaml mounts there takes over the mode.
	i.dirs["/var/run/postgresql"] = directory{0, 0o1777}
	i.dirs["/tmp"] = directory{0, 0o1777}
	i.changes = append(i.changes, "ENV PATH="+home+"/bin:/bin", `ENTRYPOINT ["/bin/sh", "/entrypoint"]`, `CMD ["postgres"]`)
	return i
}

const postgresEntrypoint = `set -eu
if ! [ -s "$PGDATA/PG_VERSION" ]; then
	initdb --pgdata "$PGDATA" --username postgres --pwfile "$POSTGRES_PASSWORD_FILE" --encoding UTF8 --locale C \
		--auth-local trust --auth-host "$POSTGRES_HOST_AUTH_METHOD" $POSTGRES_INITDB_ARGS
fi
exec "$@"
`

// make imports the image, unless it has done so before, and returns its name.
func (i *image) make(t *testing.T, docker client.APIClient) string {
	t.Helper()
	name := "bctl-e2e/" + i.name + ":" + i.key(t)
	if _, err := docker.ImageInspect(t.Context(), name); err == nil {
		return name
	}
	reader, writer := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := i.write(writer)
		written <- err
		_ = writer.CloseWithError(err) // has no error
	}()
	progress, err := docker.ImageImport(t.Context(), client.ImageImportSource{Source: reader, SourceName: "-"}, name, client.ImageImportOptions{Changes: i.changes})
	if err == nil {
		_, err = io.Copy(io.Discard, progress)
		_ = progress.Close() // it was read to its end
	}
	_ = reader.CloseWithError(io.ErrClosedPipe) // if the import has failed, so does what is written to it
	if writeErr := <-written; err == nil {
		err = writeErr
	}
	if err != nil {
		t.Fatalf("make the image %s: %v", name, err)
	}
	return name
}

// key changes with what is in the image.
func (i *image) key(t *testing.T) string {
	t.Helper()
	hash := sha256.New()
	for _, path := range sortedKeys(i.files) {
		info, err := os.Stat(i.files[path])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(hash, path, info.Size(), info.ModTime().UnixNano())
	}
	fmt.Fprintln(hash, i.texts, i.dirs, i.changes)
	return hex.EncodeToString(hash.Sum(nil)[:6])
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

func (i *image) write(to io.Writer) error {
	archive := tar.NewWriter(to)
	for _, path := range sortedKeys(i.dirs) {
		d := i.dirs[path]
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path[1:] + "/", Mode: d.mode, Uid: d.owner, Gid: d.owner}); err != nil {
			return err
		}
	}
	for _, path := range sortedKeys(i.texts) {
		if err := archive.WriteHeader(&tar.Header{Name: path[1:], Mode: 0o644, Size: int64(len(i.texts[path]))}); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, i.texts[path]); err != nil {
			return err
		}
	}
	for _, path := range sortedKeys(i.files) {
		if err := writeFile(archive, path, i.files[path]); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeFile writes what a file, or the target of a symlink, holds.
func writeFile(archive *tar.Writer, path, file string) error {
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: path[1:], Mode: int64(info.Mode().Perm()), Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, from)
	return err
}
