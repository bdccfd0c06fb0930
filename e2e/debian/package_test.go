package debian

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/e2e/dockertest"
)

// A release is what goreleaser has made, for this machine's architecture only.
type release struct {
	directory string
	version   string
}

var (
	releasing sync.Mutex // goreleaser writes what packages hold into one place
	released  = map[string]*release{}
)

// releaseOf makes a release from .goreleaser.yaml, publishing nothing, and without the parts that
// are to be skipped. Builds sort by their name.
func releaseOf(t *testing.T, build string, skip ...string) *release {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a release: run without -short")
	}
	releasing.Lock()
	defer releasing.Unlock()
	if made := released[build]; made != nil {
		return made
	}
	directory, err := os.MkdirTemp("", "bctl-release-") //nolint:usetesting // it outlives the test that is the first to ask
	if err != nil {
		t.Fatal(err)
	}
	atExit = append(atExit, func() { _ = os.RemoveAll(directory) }) // a directory of temporary files
	var definition map[string]any
	if err := yaml.Unmarshal([]byte(read(t, ".goreleaser.yaml")), &definition); err != nil {
		t.Fatal(err)
	}
	definition["builds"].([]any)[0].(map[string]any)["goarch"] = []string{runtime.GOARCH}
	definition["dist"] = filepath.Join(directory, "dist")
	text, err := yaml.Marshal(definition)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(directory, "goreleaser.yaml")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), tool(t, "goreleaser", ""), "release", "--snapshot", "--clean", "--config", config, "--skip", strings.Join(append(skip, "publish"), ","))
	command.Dir = dockertest.Root(t)
	command.Env = append(os.Environ(), "BCTL_BUILD="+build, "PATH="+filepath.Dir(tool(t, "cyclonedx-gomod", ""))+":"+os.Getenv("PATH"))
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v:\n%s", command, err, text)
	}
	var metadata struct{ Version string }
	if err := json.Unmarshal([]byte(contents(t, filepath.Join(directory, "dist", "metadata.json"))), &metadata); err != nil {
		t.Fatal(err)
	}
	released[build] = &release{filepath.Join(directory, "dist"), metadata.Version}
	return released[build]
}

func contents(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// file returns the one file of the release that fits a pattern.
func (r *release) file(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.directory, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %d files, not one (%v)", pattern, len(found), err)
	}
	return found[0]
}

// The definition means something to the goreleaser that makes releases: it decodes strictly.
func TestDefinitionIsValid(t *testing.T) {
	if testing.Short() {
		t.Skip("builds goreleaser: run without -short")
	}
	output(t, tool(t, "goreleaser", ""), "check")
}

func TestReleaseHasAllThatItNames(t *testing.T) {
	r := releaseOf(t, "1")
	sums := contents(t, r.file(t, "SHA256SUMS"))
	for _, pattern := range []string{"bctl_*_linux_*.tar.gz", "bctl_*.deb", "bctl_*.cdx.json"} {
		file := r.file(t, pattern)
		sum := sha256.Sum256([]byte(contents(t, file)))
		if line := hex.EncodeToString(sum[:]) + "  " + filepath.Base(file); !strings.Contains(sums, line+"\n") {
			t.Errorf("SHA256SUMS lacks %s:\n%s", line, sums)
		}
	}
	list := output(t, "tar", "--list", "--file", r.file(t, "bctl_*.tar.gz"))
	for _, name := range []string{"bctl", "LICENSE", "docs/operations.md", "deploy/systemd/bctl-walker@.service", "deploy/prometheus/alerts.yaml", "deploy/grafana/bctl.json", "completions/bctl.bash"} {
		if !regexp.MustCompile(`(?m)^bctl_[^/]+/` + regexp.QuoteMeta(name) + `$`).MatchString(list) {
			t.Errorf("the tarball lacks %s:\n%s", name, list)
		}
	}
}

// The bill of materials lists every module that the Go command has recorded in the binary, in its
// version.
func TestBillOfMaterialsIsComplete(t *testing.T) {
	r := releaseOf(t, "1")
	info, err := buildinfo.ReadFile(r.file(t, "bctl_linux_*/bctl"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		Format     string `json:"bomFormat"`
		Components []struct{ Name, Version, PURL string }
		Metadata   struct {
			Component struct{ Name, Version string }
		}
	}
	if err := json.Unmarshal([]byte(contents(t, r.file(t, "*.cdx.json"))), &bill); err != nil {
		t.Fatal(err)
	}
	if bill.Format != "CycloneDX" || bill.Metadata.Component.Name != "github.com/bctl/bctl" || bill.Metadata.Component.Version != r.version {
		t.Errorf("%s of %+v", bill.Format, bill.Metadata.Component)
	}
	listed := map[string]string{}
	for _, c := range bill.Components {
		listed[c.Name] = c.Version
		if c.PURL == "" {
			t.Errorf("%s has no package URL", c.Name)
		}
	}
	if len(info.Deps) < 20 {
		t.Fatalf("the binary has %d modules", len(info.Deps))
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		if listed[module.Path] != module.Version {
			t.Errorf("%s %s is listed as %q", module.Path, module.Version, listed[module.Path])
		}
	}
	if listed["std"] == "" {
		t.Error("the standard library is not listed")
	}
}

func TestPackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("there is no dpkg-deb")
	}
	file := releaseOf(t, "1").file(t, "*.deb")
	control := output(t, "dpkg-deb", "--info", file)
	for _, line := range []string{
		"Package: bctl", "Version: 0.0.1~snapshot.1", "Section: admin", "Priority: optional", "Architecture: " + runtime.GOARCH,
		`Maintainer: .+ <.+@.+>`, "Homepage: https://github.com/bctl/bctl", `Installed-Size: \d{4,}`, `Description: \S.{10,70}`,
	} {
		if !regexp.MustCompile(`(?m)^ ` + line + `$`).MatchString(control) {
			t.Errorf("%q is not in:\n%s", line, control)
		}
	}
	for _, line := range strings.Split(control, "\n") {
		if len(line) > 81 { // a blank before each
			t.Errorf("too long for a terminal: %q", line)
		}
	}
	checkFiles(t, file)
	checkScripts(t, file)
}

var listed = regexp.MustCompile(`(?m)^([-dl])(\S{9}) (\S+)\s+\d+ \S+ \S+ \.(/\S*)`)

// checkFiles looks at what Debian's policy says of files: whose they are, what is allowed with
// them, and where they are.
func checkFiles(t *testing.T, file string) {
	t.Helper()
	var names []string
	for _, entry := range listed.FindAllStringSubmatch(output(t, "dpkg-deb", "--contents", file), -1) {
		kind, mode, owner, name := entry[1], entry[2], entry[3], entry[4]
		want := "rw-r--r--"
		if kind == "d" || name == "/usr/bin/bctl" {
			want = "rwxr-xr-x"
		}
		if mode != want || owner != "root/root" {
			t.Errorf("%s is %s of %s", name, mode, owner)
		}
		if kind == "d" {
			continue
		}
		names = append(names, name)
		if !regexp.MustCompile(`^/usr/(bin|lib/systemd/system|lib/sysusers\.d|lib/tmpfiles\.d|share)/`).MatchString(name) {
			t.Errorf("%s is not where packages put files", name)
		}
	}
	for _, name := range []string{
		"/usr/bin/bctl", "/usr/lib/systemd/system/bctl-walker@.service", "/usr/lib/systemd/system/bctl-reader@.service",
		"/usr/lib/systemd/system/bctl-committer.service", "/usr/lib/systemd/system/bctl-pruner.service", "/usr/lib/systemd/system/bctl-scrubber.service", "/usr/lib/systemd/system/bctl-restorer.service", "/usr/lib/systemd/system/bctl-mirror.service", "/usr/lib/sysusers.d/bctl.conf", "/usr/lib/tmpfiles.d/bctl.conf",
		"/usr/share/doc/bctl/copyright", "/usr/share/doc/bctl/changelog.gz", "/usr/share/doc/bctl/docs/operations.md",
		"/usr/share/bash-completion/completions/bctl", "/usr/share/bctl/prometheus/alerts.yaml", "/usr/share/bctl/grafana/bctl.json",
		"/usr/share/bctl/systemd/nats-server.service", "/usr/share/bctl/systemd/versitygw.service",
		"/usr/share/bctl/systemd/bctl-index-dump.service", "/usr/share/bctl/systemd/bctl-index-dump.timer",
	} {
		if !slices.Contains(names, name) {
			t.Errorf("the package lacks %s", name)
		}
	}
}

// checkScripts looks at what runs as root when the package comes and goes.
func checkScripts(t *testing.T, file string) {
	t.Helper()
	directory := t.TempDir()
	output(t, "dpkg-deb", "--control", file, directory)
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		text := contents(t, filepath.Join(directory, name))
		if !strings.HasPrefix(text, "#!/bin/sh\n") || !strings.Contains(text, "\nset -e\n") {
			t.Errorf("%s does not end where something fails:\n%s", name, text)
		}
		output(t, "sh", "-n", filepath.Join(directory, name))
	}
	sums := strings.TrimSpace(contents(t, filepath.Join(directory, "md5sums")))
	unpacked := t.TempDir()
	output(t, "dpkg-deb", "--extract", file, unpacked)
	check := exec.CommandContext(t.Context(), "md5sum", "--check", "--quiet", filepath.Join(directory, "md5sums"))
	check.Dir = unpacked
	if text, err := check.CombinedOutput(); err != nil || len(strings.Split(sums, "\n")) < 20 {
		t.Errorf("md5sums: %v: %s\n%s", err, text, sums)
	}
}
