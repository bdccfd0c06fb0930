package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// NATSServer is a nats-server process with JetStream on a loopback port. A restart keeps the port
// and the store.
type NATSServer struct {
	*Process
	StoreDir   string // JetStream's directory
	MonitorURL string // the server's HTTP monitoring: /jsz, /connz, /varz
	url        string
}

// NATS starts a nats-server. It appends the configuration, such as accounts and permissions, to the
// server's configuration file.
func NATS(t testing.TB, configuration ...string) *NATSServer {
	t.Helper()
	path := natsServer.path(t)
	directory := t.TempDir()
	port, monitorPort := mustPort(t), mustPort(t)
	server := &NATSServer{
		StoreDir:   filepath.Join(directory, "jetstream"),
		MonitorURL: fmt.Sprintf("http://127.0.0.1:%d", monitorPort),
		url:        fmt.Sprintf("nats://127.0.0.1:%d", port),
	}
	config := filepath.Join(directory, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\nhttp: \"127.0.0.1:%d\"\njetstream { store_dir: %q }\n%s\n",
		port, monitorPort, server.StoreDir, strings.Join(configuration, "\n"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server.Process = Start(t, Command{
		Name:  "nats-server",
		Path:  path,
		Args:  []string{"--config", config},
		Ready: HTTPReady(server.MonitorURL + "/healthz"),
	})
	return server
}

// URL returns the server's address for clients, as nats://host:port.
func (s *NATSServer) URL() string { return s.url }

func mustPort(t testing.TB) int {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
