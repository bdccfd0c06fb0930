package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
)

// Two fleets that share a NATS account do not take each other's work: the second's services say
// whose the queues are, and hand nothing out, and the first's snapshots are as if it were alone.
// With an account of its own the second works as well, on the same server.
func TestTwoFleetsOnOneNATS(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t, `accounts {
  ONE { jetstream: enabled, users: [{user: one, password: one}] }
  TWO { jetstream: enabled, users: [{user: two, password: two}] }
}`)
	as := func(user string) string { return strings.Replace(server.URL(), "//", "//"+user+":"+user+"@", 1) }
	first := fleet.New(t, fleet.Options{NATSURL: as("one")})
	tree, otherTree := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "other")
	generate(t, tree, 21, spread)
	generate(t, otherTree, 22, spread)
	settle(t)
	running, _ := first.StartBackup(tree) // its keeper has the queues from here on
	check(t, first, running.Wait(), tree)

	second := fleet.New(t, fleet.Options{NATSURL: as("one"), Walkers: -1, Readers: -1, Committers: -1})
	second.Register(otherTree)
	for _, args := range [][]string{{"backup"}, {"backup", "--detach"}} {
		if out := second.Run(append(args, fleet.BackupArgs(otherTree)...)...); out.Status == 0 || !strings.Contains(out.Stderr, "another repository's") {
			t.Errorf("a backup by way of another fleet's queues: %s", out)
		}
	}
	second.Must(append([]string{"backup", "--detach", "--nats", as("two")}, fleet.BackupArgs(otherTree)...)...)
	var services []*fleet.Service
	for _, kind := range []string{"walker", "reader", "committer"} {
		address := fmt.Sprintf("127.0.0.1:%d", mustPort(t))
		services = append(services, second.Service(kind, "BCTL_HTTP_LISTEN="+address))
		fleet.Await(t, kind+" says whose the queues are", func() bool {
			status, body := readiness(t, address)
			return status == http.StatusServiceUnavailable && strings.Contains(body, "another repository's") && strings.Contains(body, "operations.md")
		})
	}
	out := second.Run("doctor", "--as", "committer")
	if out.Status == 0 || !strings.Contains(out.Stdout, "it belongs to repository") {
		t.Errorf("%s", out)
	}
	for range 2 { // with a walker, a reader and a committer of the second beside it
		generate(t, filepath.Join(tree, "more"), 23, shape{directories: 20, files: 5, meanBytes: 6000})
		running, _ := first.StartBackup(tree)
		check(t, first, running.Wait(), tree)
	}
	if work := second.Index.Work(); work.TasksSettled+work.BatchesSettled > 0 {
		t.Errorf("the second fleet worked: %+v", work)
	}
	if n := second.Index.Count("SELECT count(*) FROM walk_tasks WHERE attempt > 0"); n > 0 {
		t.Errorf("%d tasks of the second fleet were handed out", n)
	}
	for _, s := range services {
		s.Retire()
	}

	for _, kind := range []string{"walker", "reader", "committer"} {
		second.Service(kind, "BCTL_NATS="+as("two"))
	}
	fleet.Await(t, "the second fleet's snapshot is committed", func() bool {
		snapshots := second.Snapshots()
		return len(snapshots) == 1 && snapshots[0].State == "committed"
	})
	running, _ = first.StartBackup(tree)
	check(t, first, running.Wait(), tree)
	fleet.CheckStore(t, second.StoreDir(), second.Index)
}

// A command that waits for a server which is not there says so, and that the snapshot is begun all
// the same.
func TestBackupWithoutNATS(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 24, shape{directories: 3, files: 3, meanBytes: 1000})
	settle(t)
	f.Register(tree)
	out := f.Run(append([]string{"backup", "--json", "--nats", fmt.Sprintf("nats://127.0.0.1:%d", mustPort(t))}, fleet.BackupArgs(tree)...)...)
	check(t, f, out, tree)
	for _, want := range []string{"does not answer", "Is nats.url right?", "bctl doctor"} {
		if !strings.Contains(out.Stderr, want) {
			t.Errorf("it does not say %q: %s", want, out)
		}
	}
}

// readiness is what a service's /readyz says; status 0: it does not answer yet.
func readiness(t *testing.T, address string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func mustPort(t *testing.T) int {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
