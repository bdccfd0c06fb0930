package containers

import (
	"errors"
	"os"
	"testing"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/bctl/bctl/e2e/fleet"
)

// label marks the images that are made here.
const label = "bctl.e2e"

func TestMain(m *testing.M) {
	// Ryuk removes what a killed test leaves, but its image is in a registry. What is left here has
	// a label: docker rm -f $(docker ps -aq --filter label=com.docker.compose.project).
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // fails for names with "=" only
	}
	status := m.Run()
	fleet.Cleanup()
	os.Exit(status)
}

// docker returns the daemon, or skips the test.
func docker(t *testing.T) (*testcontainers.DockerProvider, client.APIClient) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs containers: run without -short")
	}
	// Without a logger: the steps of testcontainers are not of interest.
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(quiet{}))
	if err == nil {
		err = provider.Health(t.Context())
	}
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("the tests look at what root has restored, and are not root's")
	}
	switch {
	case err == nil:
	case os.Getenv("BCTL_REQUIRE_DOCKER") == "1":
		t.Fatalf("no Docker for us, and BCTL_REQUIRE_DOCKER is 1: %v", err)
	default:
		t.Skipf("no Docker for us: %v", err)
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider, provider.Client()
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
