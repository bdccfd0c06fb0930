package containers

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/dockertest"
	"github.com/bctl/bctl/e2e/fleet"
)

// A project is deploy/compose.yaml as docker compose runs it.
type project struct {
	provider   *testcontainers.DockerProvider
	docker     client.APIClient
	name       string
	env        []string // of docker compose
	data       string   // what workers see as /data
	store      string   // where the store has its bucket
	restored   string   // what commands see as /var/lib/bctl/restored
	run        string   // a program that is bctl in a container
	admin      string   // a folder: what the administrator shows
	dsn        string   // Postgres as the administrator, from here
	nats1      string   // a NATS server's port, from here
	registered bool
}

const (
	storeBytes = 1 << 30 // of the store's file system, where the tests may make one
	upSeconds  = "90"    // how long compose waits
)

// up starts the project, and ends it with the test.
func up(t *testing.T) *project {
	t.Helper()
	provider, docker := docker(t)
	p := &project{provider: provider, docker: docker, name: "bctl-e2e-" + strings.ToLower(rand.Text()[:8]), data: t.TempDir(), store: t.TempDir(), restored: t.TempDir()}
	fleet.MakeReadable(t, p.data)
	p.mountStore(t)
	p.env = append(os.Environ(), "BCTL_DATA="+p.data, "BCTL_RESTORE_USER=0:0", "E2E_STORE="+p.store, "E2E_RESTORED="+p.restored)
	for variable, image := range images(t, provider, docker) {
		p.env = append(p.env, variable+"="+image)
	}
	t.Cleanup(func() { p.down(t) })
	p.compose(t, "up", "--detach", "--wait", "--wait-timeout", upSeconds, "--quiet-pull")
	p.connect(t)
	return p
}

// mountStore gives the store a file system of its own, which can be full, if we may.
func (p *project) mountStore(t *testing.T) {
	t.Helper()
	err := unix.Mount("bctl-e2e", p.store, "tmpfs", 0, fmt.Sprintf("size=%d", storeBytes))
	if err == nil {
		t.Cleanup(func() {
			if err := unix.Unmount(p.store, 0); err != nil {
				t.Errorf("unmount %s: %v", p.store, err)
			}
		})
		// versitygw keeps metadata in extended attributes.
		if err = unix.Setxattr(p.store, "user.bctl", []byte("works"), 0); err == nil {
			err = unix.Removexattr(p.store, "user.bctl")
		}
		if err != nil {
			t.Fatalf("the tmpfs of this kernel has no extended attributes of users, and the store needs them: %v", err)
		}
		return
	}
	t.Logf("the store is on no file system of its own: %v", err)
}

func (p *project) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	deploy := filepath.Join(dockertest.Root(t), "deploy", "compose.yaml")
	override := filepath.Join(dockertest.Root(t), "e2e", "containers", "testdata", "override.yaml")
	command := exec.Command(output(t, "e2e/tool.sh", "compose"), append([]string{"--project-name", p.name, "--file", deploy, "--file", override, "--ansi", "never", "--progress", "quiet"}, args...)...)
	command.Env = p.env
	return command
}

func (p *project) compose(t *testing.T, args ...string) string {
	t.Helper()
	text, err := p.command(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker compose %v: %v:\n%s", args, err, text)
	}
	return string(text)
}

const logLines = "60"

// down removes what up has made; a test that failed shows what containers wrote.
func (p *project) down(t *testing.T) {
	t.Helper()
	if t.Failed() {
		t.Logf("the services wrote:\n%s", p.compose(t, "logs", "--tail", logLines))
	}
	p.takeDown(t, "--volumes", "--remove-orphans", "--timeout", "5")
}

// takeDown is docker compose down. Docker can forget to free the endpoint of a container that ended
// while its restart policy started it (moby issue 42119). Then it refuses to remove the network
// though no container is left: takeDown frees the endpoint itself. A network that stays
// nevertheless is taken by the next up.
func (p *project) takeDown(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"--profile", "*", "down"}, args...)
	text, err := p.command(t, args...).CombinedOutput()
	if err != nil && strings.Contains(string(text), "has active endpoints") {
		p.freeEndpoints(t)
		text, err = p.command(t, args...).CombinedOutput()
	}
	switch {
	case err == nil:
	case strings.Contains(string(text), "has active endpoints"):
		t.Logf("Docker keeps a network of the project: %s", text)
	default:
		t.Fatalf("docker compose %v: %v:\n%s", args, err, text)
	}
	left, err := p.docker.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", "com.docker.compose.project="+p.name)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range left.Items {
		t.Errorf("docker compose down has left %v: %s", c.Names, c.Status)
	}
}

// freeEndpoints disconnects what Docker believes to be on the project's networks.
func (p *project) freeEndpoints(t *testing.T) {
	t.Helper()
	ctx := context.Background() // the test may have ended
	networks, err := p.docker.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", "com.docker.compose.project="+p.name)})
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range networks.Items {
		seen, err := p.docker.NetworkInspect(ctx, network.ID, client.NetworkInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, endpoint := range seen.Network.Containers {
			t.Logf("Docker keeps the endpoint %q on %s", endpoint.Name, network.Name)
			if _, err := p.docker.NetworkDisconnect(ctx, network.ID, client.NetworkDisconnectOptions{Container: endpoint.Name, Force: true}); err != nil {
				t.Logf("disconnect %q from %s: %v", endpoint.Name, network.Name, err)
			}
		}
	}
}

// connect makes what the test itself needs. Commands run in containers, as the operator; what it
// asks the servers beside, it asks as the administrator.
func (p *project) connect(t *testing.T) {
	t.Helper()
	p.admin = t.TempDir()
	p.readAdmin(t)
	query := url.Values{
		"sslmode":     {"verify-ca"}, // a relay has another name than the server
		"sslrootcert": {filepath.Join(p.admin, "ca.pem")}, "sslcert": {filepath.Join(p.admin, "cert.pem")}, "sslkey": {filepath.Join(p.admin, "key.pem")},
	}
	p.dsn = fmt.Sprintf("postgres://bctl_admin@%s/bctl?%s", p.relay(t, "postgres", "control", 5432), query.Encode())
	p.nats1 = p.relay(t, "nats1", "control", 4222)
	p.writeRun(t)
}

// readAdmin copies what the administrator shows, as it is now.
func (p *project) readAdmin(t *testing.T) {
	t.Helper()
	init := p.one(t, "init")
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		if err := os.WriteFile(filepath.Join(p.admin, name), []byte(init.read(t, "/etc/bctl/"+name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// writeRun writes the program that is bctl to package fleet: docker compose run --rm bctl.
func (p *project) writeRun(t *testing.T) {
	t.Helper()
	var script strings.Builder
	script.WriteString("#!/bin/sh\n")
	for _, variable := range p.env[len(os.Environ()):] {
		script.WriteString("export " + quote(variable) + "\n")
	}
	script.WriteString("exec")
	for _, argument := range p.command(t, "run", "--rm", "--no-TTY", "bctl").Args {
		script.WriteString(" " + quote(argument))
	}
	script.WriteString(" \"$@\"\n")
	p.run = filepath.Join(t.TempDir(), "bctl")
	if err := os.WriteFile(p.run, []byte(script.String()), 0o700); err != nil {
		t.Fatal(err)
	}
}

// quote quotes a word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// tls is that of a client which shows what the administrator does.
func (p *project) tls(t *testing.T, server string) *tls.Config {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(p.admin, "cert.pem"), filepath.Join(p.admin, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authority, err := os.ReadFile(filepath.Join(p.admin, "ca.pem"))
	if err != nil || !authorities.AppendCertsFromPEM(authority) {
		t.Fatalf("no authority: %v", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: authorities, ServerName: server, MinVersion: tls.VersionTLS12}
}

// all returns the containers of a service, in the order of their numbers.
func (p *project) all(t *testing.T, service string) []*container {
	t.Helper()
	list, err := p.find(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (p *project) find(ctx context.Context, service string) ([]*container, error) {
	filters := make(client.Filters).Add("label", "com.docker.compose.project="+p.name, "com.docker.compose.service="+service)
	found, err := p.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, err
	}
	list := make([]*container, len(found.Items))
	for i, summary := range found.Items {
		c, err := p.provider.ContainerFromType(ctx, summary)
		if err != nil {
			return nil, err
		}
		number, err := strconv.Atoi(summary.Labels["com.docker.compose.container-number"])
		if err != nil {
			return nil, err
		}
		list[i] = &container{DockerContainer: c, project: p, service: service, number: number}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].number < list[j].number })
	return list, nil
}

// one returns the only container of a service.
func (p *project) one(t *testing.T, service string) *container {
	t.Helper()
	list := p.all(t, service)
	if len(list) != 1 {
		t.Fatalf("%d containers of %s", len(list), service)
	}
	return list[0]
}

var (
	natsNodes = []string{"nats1", "nats2", "nats3"}
	lasting   = append([]string{"walker", "reader", "committer", "pruner", "scrubber", "postgres", "versitygw"}, natsNodes...)
)

// awaitWhole waits until all containers run, and the cluster has what it had.
func (p *project) awaitWhole(t *testing.T) {
	t.Helper()
	for _, service := range lasting {
		for _, c := range p.all(t, service) {
			fleet.Await(t, fmt.Sprintf("%s to run", c), func() bool {
				state, err := c.State(t.Context())
				return err == nil && state.Running && !state.Paused && !state.Restarting && (state.Health == nil || state.Health.Status == "healthy")
			})
		}
	}
	for _, node := range natsNodes {
		c := p.one(t, node)
		fleet.Await(t, node+" to be healthy", func() bool { return healthy(t, c) })
	}
}

// healthy asks a node whether its streams and consumers are as those of the others, at the port
// that testdata/override.yaml opens.
func healthy(t *testing.T, node *container) bool {
	address, err := node.address(t.Context(), "control", 8222)
	if err != nil {
		return false
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close()) == nil && response.StatusCode == http.StatusOK
}
