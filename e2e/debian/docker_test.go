package debian

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"
)

// label marks images and containers that are made here.
const label = "bctl.e2e"

func TestMain(m *testing.M) {
	// Ryuk removes what a killed test leaves, but its image is in a registry. What is
	// left here has a label: docker rm -f $(docker ps -aq --filter label=bctl.e2e=debian).
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // fails for names with "=" only
	}
	status := m.Run()
	for _, do := range atExit {
		do()
	}
	os.Exit(status)
}

// atExit is what is done when all tests have ended.
var atExit []func()

// docker returns the daemon, or skips the test.
func docker(t *testing.T) *testcontainers.DockerProvider {
	t.Helper()
	if testing.Short() {
		t.Skip("runs containers: run without -short")
	}
	// Without a logger: the steps of testcontainers are not of interest.
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(quiet{}))
	if err == nil {
		err = provider.Health(t.Context())
	}
	if err != nil {
		missing(t, "no Docker: "+err.Error())
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider
}

// missing skips the test, unless all that can be had has to be there.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("BCTL_REQUIRE_DOCKER") == "1" {
		t.Fatalf("BCTL_REQUIRE_DOCKER is 1, and there is %s", what)
	}
	t.Skip(what)
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// root is bctl's source tree.
func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// read returns a file of the source tree.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// output runs a program of this machine, in the source tree.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = root(t)
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
