package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// NATSNodes are nats-servers that form one cluster with JetStream, for streams of several replicas.
// Each can be killed, paused and started again by itself.
type NATSNodes []*NATSServer

// NATSCluster starts a cluster of n nodes, and returns when it has a leader.
func NATSCluster(t testing.TB, n int) NATSNodes {
	t.Helper()
	path := natsServer.path(t)
	routes := make([]int, n)
	for i := range routes {
		routes[i] = mustPort(t)
	}
	nodes := make(NATSNodes, n)
	for i := range nodes {
		nodes[i] = startNode(t, path, i, routes)
	}
	nodes.AwaitLeader(t)
	return nodes
}

func startNode(t testing.TB, path string, i int, routes []int) *NATSServer {
	t.Helper()
	directory := t.TempDir()
	port, monitorPort := mustPort(t), mustPort(t)
	node := &NATSServer{
		StoreDir:   filepath.Join(directory, "jetstream"),
		MonitorURL: fmt.Sprintf("http://127.0.0.1:%d", monitorPort),
		url:        fmt.Sprintf("nats://127.0.0.1:%d", port),
	}
	urls := make([]string, len(routes))
	for j, route := range routes {
		urls[j] = fmt.Sprintf("%q", fmt.Sprintf("nats://127.0.0.1:%d", route))
	}
	// no_advertise: a client knows the addresses that it was given, which may be of a proxy.
	text := fmt.Sprintf(`server_name: "node-%d"
listen: "127.0.0.1:%d"
http: "127.0.0.1:%d"
jetstream { store_dir: %q }
cluster { name: "test", listen: "127.0.0.1:%d", no_advertise: true, routes: [%s] }
`, i, port, monitorPort, node.StoreDir, routes[i], strings.Join(urls, ", "))
	config := filepath.Join(directory, "nats.conf")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node.Process = Start(t, Command{
		Name: fmt.Sprintf("nats-server %d", i),
		Path: path,
		Args: []string{"--config", config},
		// Not more: without the others it has no leader, and they may not run yet.
		Ready: HTTPReady(node.MonitorURL + "/healthz?js-enabled-only=true"),
	})
	return node
}

// URL returns where clients connect: all nodes, with commas.
func (s NATSNodes) URL() string {
	urls := make([]string, len(s))
	for i, node := range s {
		urls[i] = node.URL()
	}
	return strings.Join(urls, ",")
}

// AwaitLeader waits until each node that runs follows a leader.
func (s NATSNodes) AwaitLeader(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for i, node := range s {
		healthy := HTTPReady(node.MonitorURL + "/healthz?js-meta-only=true")
		for node.Running() {
			err := healthy(ctx)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("node %d of the NATS cluster has no leader after %v: %v; it wrote:\n%s", i, readyWithin, err, node.Output())
			case <-tick.C:
			}
		}
	}
}
