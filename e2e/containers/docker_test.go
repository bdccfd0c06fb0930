package containers

import (
	"os"
	"testing"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/bctl/bctl/e2e/dockertest"
	"github.com/bctl/bctl/e2e/fleet"
)

func TestMain(m *testing.M) {
	dockertest.WithoutReaper()
	status := m.Run()
	fleet.Cleanup()
	os.Exit(status)
}

// docker returns the daemon. It skips the test without one, or without root, as whom the tests read
// restored files.
func docker(t *testing.T) (*testcontainers.DockerProvider, client.APIClient) {
	t.Helper()
	provider := dockertest.Daemon(t)
	if os.Geteuid() != 0 {
		dockertest.Missing(t, "not root, who can read the restored files")
	}
	return provider, provider.Client()
}
