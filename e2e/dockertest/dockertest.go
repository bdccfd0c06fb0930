// Package dockertest gives tests the Docker daemon of this machine, and the source tree.
package dockertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/testcontainers/testcontainers-go"
)

// Label marks the images and containers that tests make.
const Label = "bctl.e2e"

// WithoutReaper configures testcontainers not to start Ryuk, the container that removes what killed
// tests have left, because its image is in a registry. Everything that tests start has a label:
// Label, or com.docker.compose.project. Call it in TestMain.
func WithoutReaper() {
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // fails for names with "=" only
	}
}

// Daemon returns the Docker daemon. Without one it skips the test, as Missing does.
func Daemon(t *testing.T) *testcontainers.DockerProvider {
	t.Helper()
	if testing.Short() {
		t.Skip("runs containers: run without -short")
	}
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(Quiet{}))
	if err == nil {
		err = provider.Health(t.Context())
	}
	if err != nil {
		Missing(t, "no Docker: "+err.Error())
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider
}

// Missing skips the test because something is missing. It fails the test if BCTL_REQUIRE_DOCKER is
// 1.
func Missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("BCTL_REQUIRE_DOCKER") == "1" {
		t.Fatalf("%s, and BCTL_REQUIRE_DOCKER is 1", what)
	}
	t.Skip(what)
}

// Quiet drops the log of testcontainers.
type Quiet struct{}

// Printf drops a line.
func (Quiet) Printf(string, ...any) {}

// Root returns the root of the source tree, for tests of packages two levels below it.
func Root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
