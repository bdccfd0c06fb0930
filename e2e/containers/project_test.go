package containers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/nats-io/nats.go"
	"github.com/testcontainers/testcontainers-go"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
)

// A project is deploy/compose.yaml as docker compose runs it.
type project struct {
	provider   *testcontainers.DockerProvider
	docker     client.APIClient
	name       string
	env        []string // of docker compose
	data       string   // what workers see as /data
	store      string   // the store's bucket
	config     string   // settings of commands that run here
	dsn        string   // Postgres, from here
	nats       nats.Options
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
	p := &project{provider: provider, docker: docker, name: "bctl-e2e-" + strings.ToLower(rand.Text()[:8]), data: t.TempDir(), store: t.TempDir()}
	fleet.MakeReadable(t, p.data)
	p.mountStore(t)
	p.env = append(os.Environ(), "BCTL_DATA="+p.data, "E2E_STORE="+p.store)
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
	deploy := filepath.Join(root(t), "deploy", "compose.yaml")
	override := filepath.Join(root(t), "e2e", "containers", "testdata", "override.yaml")
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
	p.compose(t, "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5")
}

// connect finds out what commands on this machine need.
func (p *project) connect(t *testing.T) {
	t.Helper()
	home := t.TempDir()
	secrets, made := p.one(t, "secrets"), p.one(t, "init")
	identity := filepath.Join(home, "identity.txt")
	if err := os.WriteFile(identity, []byte(made.read(t, "/var/lib/bctl/identity/identity.txt")), 0o600); err != nil {
		t.Fatal(err)
	}
	password := func(name string) string { return strings.TrimSpace(secrets.read(t, "/secrets/"+name)) }
	p.nats = nats.GetDefaultOptions()
	p.nats.User, p.nats.Password, p.nats.MaxReconnect = "bctl", password("nats/password"), -1
	for _, node := range natsNodes {
		p.nats.Servers = append(p.nats.Servers, "nats://"+p.relay(t, node, "control", 4222))
	}
	p.dsn = fmt.Sprintf("postgres://bctl:%s@%s/bctl?sslmode=disable", password("postgres/password"), p.relay(t, "postgres", "control", 5432))
	p.config = filepath.Join(home, "bctl.yaml")
	text := fmt.Sprintf(`index: {url: %q}
store: {url: "s3://bctl/repo", endpoint: "http://%s", region: us-east-1, access_key: bctl, secret_key: %q}
nats: {url: %q, user: bctl, password: %q, replicas: 3}
identity: %q
`, p.dsn, p.relay(t, "versitygw", "data", 7070), password("s3/secret-key"), strings.Join(p.nats.Servers, ","), p.nats.Password, identity)
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
	lasting   = append([]string{"walker", "reader", "committer", "postgres", "versitygw"}, natsNodes...)
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

// healthy asks a node whether its streams and consumers are as those of the others.
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
