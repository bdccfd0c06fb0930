package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// FreeNATS returns addresses for the NATS servers of an installation, each on a loopback address of
// its own.
func FreeNATS(t testing.TB, n int) (addresses []string) {
	t.Helper()
	for i := range n {
		port, err := FreePortPair(2000) // the routes' port, as bctl deploy chooses it
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, net.JoinHostPort(fmt.Sprintf("127.0.0.%d", i+1), strconv.Itoa(port)))
	}
	return addresses
}

// LockNATS starts the NATS servers of an installation (bctl deploy init --in-place), each with the
// configuration in its folder, nats/HOST. A test adds only a monitoring port, to detect when the
// server is ready.
func LockNATS(t testing.TB, installation string) NATSNodes {
	t.Helper()
	path := natsServer.path(t)
	folders, err := filepath.Glob(filepath.Join(installation, "nats", "*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no NATS server in %s: %v", installation, err)
	}
	var nodes NATSNodes
	for _, folder := range folders {
		config := filepath.Join(folder, "nats.conf")
		monitorPort := mustPort(t)
		node := &NATSServer{
			StoreDir:   filepath.Join(folder, "data"),
			MonitorURL: "http://" + net.JoinHostPort(filepath.Base(folder), strconv.Itoa(monitorPort)),
			url:        "tls://" + net.JoinHostPort(filepath.Base(folder), listenPort(t, config)),
		}
		node.Process = Start(t, Command{
			Name:  "nats-server " + filepath.Base(folder),
			Path:  path,
			Args:  []string{"--config", config, "--http_port", strconv.Itoa(monitorPort)},
			Ready: HTTPReady(node.MonitorURL + "/healthz?js-enabled-only=true"),
		})
		nodes = append(nodes, node)
	}
	if len(nodes) > 1 {
		nodes.AwaitLeader(t)
	}
	return nodes
}

var natsListen = regexp.MustCompile(`(?m)^listen: "(?:0|127)\.0\.0\.\d+:(\d+)"$`)

func listenPort(t testing.TB, config string) string {
	t.Helper()
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	found := natsListen.FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s does not say where the server listens", config)
	}
	return string(found[1])
}

// Reload has the server read its configuration again, and returns when it has.
func (s *NATSServer) Reload(t testing.TB) {
	t.Helper()
	const done = "Reloaded server configuration"
	count := func() int {
		text, err := os.ReadFile(s.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), done)
	}
	before := count()
	s.Signal(syscall.SIGHUP)
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for count() <= before {
		select {
		case <-ctx.Done():
			t.Fatalf("%s does not read its configuration again; it wrote:\n%s", s.command.Name, s.Output())
		case <-tick.C:
		}
	}
}

// Reload has each server read its configuration again.
func (s NATSNodes) Reload(t testing.TB) {
	t.Helper()
	for _, node := range s {
		node.Reload(t)
	}
}
