package debian

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/dockertest"
)

func TestMain(m *testing.M) {
	dockertest.WithoutReaper()
	status := m.Run()
	for _, do := range atExit {
		do()
	}
	os.Exit(status)
}

// atExit are the calls that TestMain makes after all tests.
var atExit []func()

// read returns a file of the source tree.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dockertest.Root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// output runs a program of this machine, in the source tree.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = dockertest.Root(t)
	var stderr strings.Builder
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v:\n%s%s", program, strings.Join(args, " "), err, text, stderr.String())
	}
	return strings.TrimSpace(string(text))
}

// tool returns the path of a program that e2e/tool.sh builds, unless the environment names another.
func tool(t *testing.T, name, setting string) string {
	t.Helper()
	if path := os.Getenv(setting); setting != "" && path != "" {
		return path
	}
	return output(t, "e2e/tool.sh", name)
}
