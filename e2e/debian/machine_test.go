package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/bctl/bctl/e2e/dockertest"
)

// image returns the name of the image of a minimal Debian. It creates the image on first use.
func image(t *testing.T, docker client.APIClient) string {
	t.Helper()
	script, mirror := read(t, "e2e/debian/image.sh"), mirror(t)
	key := sha256.Sum256([]byte(script + "\n" + mirror))
	name := "bctl-e2e/debian:" + hex.EncodeToString(key[:6])
	if _, err := docker.ImageInspect(t.Context(), name); err == nil {
		return name
	}
	if _, err := exec.LookPath("debootstrap"); err != nil || os.Geteuid() != 0 {
		dockertest.Missing(t, "no image "+name+", which debootstrap makes, as root")
	}
	directory := t.TempDir()
	if err := os.Chmod(directory, 0o755); err != nil { // it becomes the root directory
		t.Fatal(err)
	}
	output(t, "e2e/debian/image.sh", directory, mirror)
	archive := exec.CommandContext(t.Context(), "tar", "--directory", directory, "--create", ".")
	archive.Stderr = os.Stderr
	from, err := archive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Start(); err != nil {
		t.Fatal(err)
	}
	progress, err := docker.ImageImport(t.Context(), client.ImageImportSource{Source: from, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: []string{"LABEL " + dockertest.Label + "=debian"}})
	if err == nil {
		_, err = io.Copy(io.Discard, progress)
		_ = progress.Close() // it was read to its end
	}
	if waitErr := archive.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		t.Fatalf("make the image %s: %v", name, err)
	}
	return name
}

var archiveURL = regexp.MustCompile(`https?://\S+/debian/?(\s|$)`)

// mirror returns the URL of Debian's packages: that of BCTL_DEBIAN_MIRROR, or the one that apt
// uses.
func mirror(t *testing.T) string {
	t.Helper()
	if setting := os.Getenv("BCTL_DEBIAN_MIRROR"); setting != "" {
		return setting
	}
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*") // the pattern is well formed
	for _, file := range append(files, "/etc/apt/sources.list") {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if found := archiveURL.FindString(string(text)); found != "" {
			return strings.TrimSpace(found)
		}
	}
	dockertest.Missing(t, "no mirror of Debian in apt's sources: set BCTL_DEBIAN_MIRROR")
	return ""
}

// A machine is a Debian that has booted.
type machine struct {
	*testcontainers.DockerContainer
	name string
}

const (
	bootTime = 90 * time.Second
	// blockTime is how long a block of commands may take: packages are installed in one.
	blockTime = 5 * time.Minute
)

// boot starts a machine, which is removed when the test ends. Other machines reach it by its name.
// binds are directories of this machine that it mounts.
func boot(t *testing.T, docker *testcontainers.DockerProvider, name, network string, binds ...string) *machine {
	t.Helper()
	info, err := docker.Client().Info(t.Context(), client.InfoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// As the first process of a container, systemd needs a place for its own control groups. Its
	// services must see mounts that are made later, such as those of credentials. SYS_PTRACE and
	// DAC_READ_SEARCH are root's rights to see all processes and files.
	configure := func(c *container.HostConfig) {
		c.CapAdd = []string{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"}
		c.SecurityOpt = []string{"seccomp=unconfined", "apparmor=unconfined"}
		c.Tmpfs = map[string]string{"/run": "", "/run/lock": "", "/tmp": ""}
		c.Binds = []string{"/sys/fs/cgroup:/sys/fs/cgroup:ro"}
		if info.Info.CgroupVersion == "2" {
			c.Binds, c.CgroupnsMode = []string{"/sys/fs/cgroup:/sys/fs/cgroup:rw"}, container.CgroupnsModeHost
		}
		c.Binds = append(c.Binds, binds...)
	}
	started, err := testcontainers.Run(t.Context(), image(t, docker.Client()),
		testcontainers.WithCmd("sh", "-c", "mount --make-rshared / && exec /sbin/init"),
		testcontainers.WithEnv(map[string]string{"container": "docker"}),
		testcontainers.WithLabels(map[string]string{dockertest.Label: "debian"}),
		testcontainers.WithConfigModifier(func(c *container.Config) { c.Hostname = name }),
		testcontainers.WithHostConfigModifier(configure),
		testcontainers.CustomizeRequest(testcontainers.GenericContainerRequest{ContainerRequest: testcontainers.ContainerRequest{
			Networks: []string{network}, NetworkAliases: map[string][]string{network: {name}},
		}}),
		testcontainers.WithLogger(dockertest.Quiet{}),
		testcontainers.WithWaitStrategyAndDeadline(bootTime, wait.ForExec([]string{"systemctl", "is-system-running"}).WithPollInterval(200*time.Millisecond)),
	)
	if started != nil {
		t.Cleanup(func() {
			if err := started.Terminate(contextOf(t), testcontainers.StopTimeout(0)); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatalf("boot %s: %v", name, err)
	}
	return &machine{started, name}
}

// try runs a block of commands as root's login shell does, until one fails.
func (m *machine) try(ctx context.Context, block string) (status int, output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, blockTime)
	defer cancel()
	status, from, err := m.Exec(ctx, []string{"bash", "--login", "-e", "-o", "pipefail", "-c", block},
		tcexec.Multiplexed(), tcexec.WithWorkingDir("/root"), tcexec.WithEnv([]string{"HOME=/root", "DEBIAN_FRONTEND=noninteractive"}))
	if err != nil {
		return status, "", err
	}
	text, err := io.ReadAll(from)
	return status, string(text), err
}

// run is try for commands that must succeed.
func (m *machine) run(t *testing.T, block string) string {
	t.Helper()
	started := time.Now()
	status, text, err := m.try(t.Context(), block)
	if err != nil || status != 0 {
		_, journal, _ := m.try(t.Context(), "systemctl --failed; journalctl --no-pager --lines 80") // for people
		t.Fatalf("on %s:\n%s\nended with %d (%v):\n%s\n%s", m.name, block, status, err, text, journal)
	}
	t.Logf("%s, %.1f s: %s", m.name, time.Since(started).Seconds(), firstLine(block))
	return text
}

func firstLine(block string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(block), "\n")
	return line
}

// give copies a file to the machine.
func (m *machine) give(t *testing.T, from, to string, mode int64) {
	t.Helper()
	if err := m.CopyFileToContainer(t.Context(), from, to, mode); err != nil {
		t.Fatal(fmt.Errorf("copy %s to %s of %s: %w", from, to, m.name, err))
	}
}
