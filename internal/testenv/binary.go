package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/testenv/testtarget"
)

var (
	natsServer = program{name: "nats-server", setting: "BCTL_NATS_SERVER", pkg: "github.com/nats-io/nats-server/v2"}
	versitygw  = program{name: "versitygw", setting: "BCTL_VERSITYGW"}
	minioBin   = program{name: "minio", setting: "BCTL_MINIO"}
	mcBin      = program{name: "mc", setting: "BCTL_MC"}
)

// program is a server that is built once, unless a setting names one.
type program struct {
	name, setting string
	pkg           string // in a module of go.mod; empty: e2e/tool.sh builds it, which takes minutes
}

var resolved sync.Map // name → func() (string, error)

// path returns the path of the program, and builds the program if necessary. It skips the test if
// building takes minutes, and the target that includes this is not set.
func (p program) path(t testing.TB) string {
	t.Helper()
	skipIfShort(t)
	if p.pkg == "" {
		testtarget.Need(t, testtarget.S3)
	}
	path, err := p.find()
	if err != nil {
		t.Fatalf("%s cannot be built; its path can be set with %s: %v", p.name, p.setting, err)
	}
	return path
}

func (p program) find() (string, error) {
	if path := os.Getenv(p.setting); path != "" {
		return path, nil
	}
	once, _ := resolved.LoadOrStore(p.name, sync.OnceValues(p.build))
	return once.(func() (string, error))()
}

func (p program) build() (string, error) {
	if p.pkg != "" {
		return Build(p.name, p.pkg)
	}
	return buildTool(p.name)
}

func skipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real server: run without -short")
	}
}

func buildTool(name string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	var stderr bytes.Buffer
	command := exec.Command(filepath.Join(root, "e2e", "tool.sh"), name)
	command.Stderr = &stderr
	stdout, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, lastLine(stderr.String()))
	}
	return strings.TrimSpace(string(stdout)), nil
}

// moduleRoot returns bctl's directory. Tests run in the directory of their package.
func moduleRoot() (string, error) {
	directory, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		content, err := os.ReadFile(filepath.Join(directory, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/bctl/bctl\n")) {
			return directory, nil
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			return "", errors.New("the working directory is not inside bctl's source tree")
		}
		directory = parent
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
