package e2e_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
)

// A listed is a line of worker ls --json.
type listed struct {
	Role, Name, Site, State, Version, Instance, Reason string
	Started, Heard                                     time.Time
	Ready, Leads, Draining                             bool
	Tasks, Batches, Stalled                            int
	Clock                                              *float64 `json:"clock_ahead_seconds"`
}

// listServices returns all services, by name.
func listServices(t *testing.T, f *fleet.Fleet, args ...string) map[string]listed {
	t.Helper()
	by := map[string]listed{}
	for line := range strings.Lines(f.Must(append([]string{"worker", "ls", "--json"}, args...)...).Stdout) {
		var l listed
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		by[l.Name] = l
	}
	return by
}

// printed fails the test unless a command ends with 0 and prints a text.
func printed(t *testing.T, out fleet.Output, text string) {
	t.Helper()
	expect(t, out, 0)
	if !strings.Contains(out.Stdout, text) {
		t.Errorf("does not print %q: %s", text, out)
	}
}

func awaitState(t *testing.T, f *fleet.Fleet, name, state string) (l listed) {
	t.Helper()
	fleet.Await(t, name+" to be "+state, func() bool {
		l = listServices(t, f)[name]
		return l.State == state
	})
	return l
}

// An operator sees all services, takes a worker out of work under a backup, sees another die, and
// has the first work again; the snapshot is whole.
func TestWorkersAreListedAndDrained(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	var all map[string]listed
	fleet.Await(t, "all services to be ready, and one committer to lead", func() bool {
		all = listServices(t, f)
		leads := 0
		for _, l := range all {
			if l.State != "ready" || l.Clock == nil {
				return false
			}
			if l.Leads {
				leads++
			}
		}
		return len(all) == 6 && leads == 1
	})
	for name, l := range all {
		if role, _, _ := strings.Cut(name, "-"); l.Role != role || l.Instance == "" || l.Version == "" || l.Started.IsZero() || l.Heard.IsZero() ||
			l.Leads && role != "committer" || (l.Site == "default") != (role != "committer") {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if some := listServices(t, f, "--role", "walker", "--site", "default"); len(some) != 2 {
		t.Errorf("walkers at site default: %+v", some)
	}
	expect(t, f.Run("worker", "ls", "--site", "oslo"), 0, "none of the 6 services matches")
	expect(t, f.Run("worker", "ls", "--role", "king"), 2, "is not committer, walker, reader, pruner, scrubber or restorer")
	list := f.Must("worker", "ls").Stdout
	width := 80
	if strings.Contains(list, "HEARD") { // one has not been heard for some seconds
		width = 90
	}
	for line := range strings.Lines(list) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}

	away := *f.Client // services can be seen while Postgres cannot
	away.Env = append(slices.Clip(f.Env), "BCTL_INDEX=postgres://127.0.0.1:1/none?sslmode=disable")
	if out := away.Run("worker", "ls", "--json"); strings.Count(out.Stdout, `"state":"ready"`) != 6 {
		t.Errorf("without the index: %s", out)
	} else {
		expect(t, out, 0, "the services that answer are listed without it")
	}

	generate(t, tree, 25, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: time.Second, Open: time.Second}})
	f.Filer("slow")
	f.Shard("slow", filer.Dir)
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	first, second := f.Walkers[0], f.Walkers[1]
	expect(t, f.Run("worker", "drain", "walker-99"), 1, "no worker is called walker-99", first.Name)
	committer := f.Committers[0].Name
	expect(t, f.Run("worker", "drain", committer), 2, "is a committer")
	fleet.Await(t, "work in the hand of the first walker", func() bool { return listServices(t, f)[first.Name].Tasks > 0 })
	printed(t, f.Run("worker", "drain", first.Name, "--wait"), "is drained")
	if l := listServices(t, f)[first.Name]; l.State != "drained" || !l.Draining || l.Tasks > 0 {
		t.Errorf("the drained walker: %+v", l)
	}
	if !first.Running() {
		t.Error("the drained walker has ended")
	}
	fleet.Await(t, "the second walker to have all the work", func() bool {
		return listServices(t, f)[second.Name].Tasks > 0 && len(attempts(t, f, "walk_tasks", first.Name)) == 0
	})
	second.Kill()
	lost := awaitState(t, f, second.Name, "lost")
	expect(t, f.Run("worker", "drain", second.Name), 1, "does not answer")
	if listServices(t, f)[first.Name].Tasks > 0 {
		t.Error("the drained walker has taken work")
	}
	table := f.Must("worker", "ls").Stdout
	if lines := strings.Split(table, "\n"); len(lines) < 2 || !strings.Contains(lines[1], second.Name) || !strings.Contains(lines[1], "lost") {
		t.Errorf("what needs attention does not come first:\n%s", table)
	}
	printed(t, f.Run("worker", "undrain", first.Name), "takes work again")
	awaitState(t, f, first.Name, "ready")
	filer.SetLatency(slowfs.Latency{})
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	checkNothingLeft(t, f)

	// It is another process after a restart, which is not drained, and takes the place of the one
	// that was lost.
	printed(t, f.Run("worker", "drain", f.Readers[0].Name, "--wait", "--json"), `"state":"drained"`)
	for _, s := range []*fleet.Service{second, f.Readers[0]} {
		s.Restart()
	}
	if l := awaitState(t, f, second.Name, "ready"); l.Instance == lost.Instance {
		t.Errorf("the same instance as before: %+v", l)
	}
	if l := awaitState(t, f, f.Readers[0].Name, "ready"); l.Draining {
		t.Errorf("drained after a restart: %+v", l)
	}
}

// With the permissions of an installation, over TLS, all services announce themselves, and only the
// operator may ask and drain.
func TestOnlyOperatorsDrain(t *testing.T) {
	t.Parallel()
	f := fleet.NewLocked(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1})
	fleet.Await(t, "all services to be ready", func() bool {
		all := listServices(t, f)
		for _, l := range all {
			if l.State != "ready" || l.Clock == nil {
				return false
			}
		}
		return len(all) == 3
	})
	walker := f.Walkers[0].Name
	for _, identity := range []string{"walker@default", "reader@default", "committer"} {
		for _, args := range [][]string{{"ls"}, {"drain", walker}} {
			if out := f.As(identity).Run(append([]string{"worker"}, args...)...); out.Status != 1 || !strings.Contains(out.Stderr, "not allowed") {
				t.Errorf("as %s: %s", identity, out)
			}
		}
	}
	printed(t, f.Run("worker", "drain", walker, "--wait"), "is drained")
	f.Walkers[0].Kill()
	awaitState(t, f, walker, "lost")
}
