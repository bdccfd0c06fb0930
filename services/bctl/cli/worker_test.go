package cli

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

func workers() []flow.Instance {
	now := time.Now()
	return []flow.Instance{
		{ID: "A", Role: flow.RoleCommitter, Name: "core1", Version: "v1.2.0", Ready: true, Leads: true, ClockKnown: true, Started: now.Add(-300 * time.Hour), Heard: now},
		{ID: "B", Role: flow.RoleWalker, Name: "node7", Site: "oslo", Version: "v1.2.0", Ready: true, Tasks: 16, Stalled: 2, EntriesPerSecond: 8123, ClockKnown: true, Started: now.Add(-50 * time.Hour), Heard: now},
		{ID: "C", Role: flow.RoleReader, Name: "node7", Site: "oslo", Version: "v0.0.0-20261122182950-220c89c12345+dirty", Batches: 64, BytesPerSecond: 123456789, Reason: "index: away\nstore: \x1b[31mfull",
			ClockKnown: true, ClockAhead: -301800 * time.Millisecond, Started: now.Add(-time.Minute), Heard: now},
		{ID: "D", Role: flow.RoleWalker, Name: "nas\x1b[2J", Site: "oslo", Silent: true, Lost: true, Heard: now.Add(-4 * time.Minute)},
		{ID: "E", Role: flow.RoleWalker, Name: "again", Site: "oslo", Silent: true, Lost: true, Heard: now.Add(-4 * time.Minute)},
		{ID: "F", Role: flow.RoleWalker, Name: "again", Site: "oslo", Ready: true, Draining: true, Heard: now},
	}
}

func TestServiceTable(t *testing.T) {
	found := workers()
	out := strings.Join(append(append(serviceTable(time.Now()).lines(pointers(found), 0), reasonLines(found)...), ""), "\n")
	for _, want := range []string{
		"committer  core1         -     leads            -         -     0s  12d  v1.2.0          0s ago\n",
		"walker     node7         oslo  ready       16 (2)      8k/s     0s   2d  v1.2.0          0s ago\n",
		"not ready       64  123 MB/s    -5m  60s  220c89c12345+d  0s ago\n",
		`walker     "nas\x1b[2J"  oslo  lost 4m          -         -      ?    ?`,
		"oslo  draining         0       0/s ",
		"reader node7: index: away\nreader node7: " + `"store: \x1b[31mfull"` + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(line); n > 100 { // the long version, and the quoted name
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Which committer schedules is shown if another leads, and it is noted that none does.
func TestWhoSchedules(t *testing.T) {
	committer := func(leads, schedules bool) flow.Instance {
		return flow.Instance{Role: flow.RoleCommitter, Ready: true, Leads: leads, Schedules: schedules, MaxRunning: 64, MaxRunningPerFiler: 4}
	}
	for _, test := range []struct {
		states   string
		noted    bool
		services []flow.Instance
	}{
		{"leads", false, []flow.Instance{committer(true, true)}},
		{"leads schedules", false, []flow.Instance{committer(true, false), committer(false, true)}},
		{"not ready, leads", true, []flow.Instance{{Role: flow.RoleCommitter, Leads: true, MaxRunning: 64, MaxRunningPerFiler: 4}}},
		{"draining, schedules", false, []flow.Instance{{Role: flow.RoleCommitter, Ready: true, Draining: true, Schedules: true, MaxRunning: 64, MaxRunningPerFiler: 4}}},
		{"leads ready", true, []flow.Instance{committer(true, false), committer(false, false)}},
		{"leads", false, []flow.Instance{{Role: flow.RoleCommitter, Ready: true, Leads: true}}}, // of an earlier version
	} {
		var states []string
		for n := range test.services {
			states = append(states, stateColumn(&test.services[n], time.Now()))
		}
		var notes strings.Builder
		a := app{term: &terminal{err: &notes}}
		a.noteServices(test.services, test.services)
		if got := strings.Join(states, " "); got != test.states || strings.Contains(notes.String(), "due backups begin when") != test.noted {
			t.Errorf("states %q, notes %q; want %q, noted %t", got, notes.String(), test.states, test.noted)
		}
	}
}

// An outage that all services report takes one line.
func TestReasonsOfServices(t *testing.T) {
	const index, clock, store = "index: postgres db1 does not answer", "clock: postgres db1 does not answer", "store: full"
	services := serving("committer - c1", "walker oslo w1", "reader oslo r1", "reader oslo r2", "reader oslo r3")
	for n, reason := range []string{index + "\n" + clock, index, index + "\n" + store, index, ""} {
		services[n].Ready, services[n].Reason = reason == "", reason
	}
	services[3].Silent = true
	blind(&services[4])
	want := []string{"committer c1, walker w1, reader r1: " + index, "reader r1: " + store, "reader r3 (12 times): handed work back: nothing is there; is it mounted here?"}
	if got := reasonLines(services); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFindWorker(t *testing.T) {
	for _, test := range []struct {
		name  string
		which services
		id    string
		fails string
	}{
		{"core1", services{}, "A", ""},
		{"node7", services{}, "", "2 services are called node7"},
		{"node7", services{role: "reader"}, "C", ""},
		{"node7", services{site: "paris"}, "", "node7 is a walker at site oslo, which --role or --site excludes"},
		{"B", services{}, "B", ""},
		{"again", services{}, "F", ""}, // not the lost one
		{"nod7", services{}, "", "no worker is called nod7; there are node7, core1, again"},
		{"x\x1b", services{}, "", `no worker is called "x\x1b"`},
	} {
		found, err := test.which.find(workers(), test.name)
		switch {
		case test.id != "":
			if err != nil || found.ID != test.id {
				t.Errorf("%s %+v: %+v, %v", test.name, test.which, found, err)
			}
		case err == nil || !strings.Contains(err.Error(), test.fails):
			t.Errorf("%s %+v: %v, want %q", test.name, test.which, err, test.fails)
		}
	}
	if _, err := (&services{}).find(workers(), "nobody"); exitStatus(err) != exitFailed {
		t.Errorf("%v has status %d", err, exitStatus(err))
	}
	if _, err := (&services{}).find(workers(), "node7"); exitStatus(err) != exitUsage {
		t.Errorf("%v has status %d", err, exitStatus(err))
	}
	many := make([]flow.Instance, 20)
	for n := range many {
		many[n] = flow.Instance{Role: flow.RoleWalker, Name: "walker-" + string(rune('a'+n))}
	}
	if _, err := (&services{}).find(many, "walker-"); err == nil || !strings.Contains(err.Error(), "near it are walker-a, walker-b, walker-c, walker-d, walker-e (bctl worker ls lists all 20)") {
		t.Error(err)
	}
}

func TestEdits(t *testing.T) {
	for _, test := range []struct {
		a, b string
		n    int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"node7", "nod7", 1}, {"kitten", "sitting", 3}, {"\u00e9", "e", 1}} {
		if n := edits(test.a, test.b); n != test.n {
			t.Errorf("%q to %q: %d, want %d", test.a, test.b, n, test.n)
		}
	}
}

func TestWrongServices(t *testing.T) {
	for _, which := range []services{{role: "king"}, {site: "UPPER CASE"}} {
		if err := which.check(); exitStatus(err) != exitUsage {
			t.Errorf("%+v: %v", which, err)
		}
	}
	for _, which := range []services{{}, {role: "walker", site: backup.DefaultSite}} {
		if err := which.check(); err != nil {
			t.Errorf("%+v: %v", which, err)
		}
	}
}
