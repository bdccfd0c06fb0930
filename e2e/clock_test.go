package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
)

// A committer whose clock is five minutes ahead says so and never leads, also where it is the only
// one. With another whose clock is right, the fleet works.
func TestCommitterWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: -1})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 41, shape{directories: 10, files: 3, meanBytes: 1000})
	settle(t)
	f.Register(tree)
	address := fmt.Sprintf("127.0.0.1:%d", mustPort(t))
	metrics := "http://" + address + "/metrics"
	wrong := f.Service("committer", f.ClockAhead(5*time.Minute), "BCTL_HTTP_LISTEN="+address)
	says := func() {
		t.Helper()
		fleet.Await(t, "the committer to say that its clock is wrong", func() bool {
			status, body := readiness(t, address)
			return status == http.StatusServiceUnavailable && strings.Contains(body, "clock") && strings.Contains(body, "ahead of that of the index")
		})
		if n := f.Index.Count("SELECT count(*) FROM leaders WHERE holder LIKE $1", wrong.Name+"%"); n > 0 {
			t.Errorf("it leads, in %d roles", n)
		}
		if ahead := count(t, metrics, "bctl_clock_ahead_seconds"); ahead < 290 || ahead > 310 {
			t.Errorf("it says that it is %v s ahead, not 300", ahead)
		}
		if count(t, metrics, "bctl_keeper")+count(t, metrics, "bctl_scheduler") > 0 {
			t.Error("its metrics say that it leads")
		}
	}
	says()
	right := f.Service("committer")
	running, _ := f.StartBackup(tree)
	check(t, f, running.Wait(), tree)
	right.Retire()
	says()
}

// A clock that was a year ahead, and is right again, stops no backups: running snapshots continue,
// and the shard is backed up at once, because the age of its last good snapshot is unknown.
func TestClockThatGoesBack(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 42, shape{directories: 10, files: 3, meanBytes: 1000})
	settle(t)
	f.Register(tree)
	running, _ := f.StartBackup(tree)
	check(t, f, running.Wait(), tree)
	restart := func(by time.Duration) {
		t.Helper()
		f.ShiftClock(by)
		for _, services := range [][]*fleet.Service{f.Committers, f.Walkers, f.Readers} {
			for _, s := range services {
				s.Restart()
			}
		}
	}

	const year = 365 * 24 * time.Hour
	restart(year)
	running, _ = f.StartBackup(tree) // committers whose clocks differ do not lead, and still work
	check(t, f, running.Wait(), tree)
	if last := lastGoodOf(t, f); time.Until(last) < year/2 {
		t.Fatalf("the last good snapshot is of %v, want next year", last)
	}
	for _, s := range f.Walkers {
		s.Kill()
	}
	f.Must(append([]string{"backup", "--detach"}, fleet.BackupArgs(tree)...)...)
	fleet.Await(t, "work to be handed out next year", func() bool {
		return f.Index.Count("SELECT count(*) FROM walk_tasks WHERE attempt > 0") > 0
	})

	f.Must("policy", "set", "yearly", "--schedule", "@yearly", "--recovery-point", "8783h")
	restart(0)
	fleet.Await(t, "the shard to be backed up, as it is due", func() bool {
		last := lastGoodOf(t, f)
		return time.Since(last) >= 0
	})
	for _, s := range f.Snapshots() {
		if s.State != "committed" {
			t.Errorf("%+v", s)
		}
	}
	checkNothingLeft(t, f)
}

// A backup reports how long it took although the clocks of the processes are wrong: five minutes
// ahead of the index, and five minutes behind it. Both ends of a snapshot are times of the index. A
// committer that was ahead once reported 301.8 s for 2.5 s.
func TestDurationWithWrongClocks(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 43, shape{directories: 10, files: 3, meanBytes: 1000})
	settle(t)
	f.Register(tree)
	running, _ := f.StartBackup(tree)
	check(t, f, running.Wait(), tree) // the keeper has made the queues
	for _, by := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
		f.ShiftClock(by)
		for _, services := range [][]*fleet.Service{f.Committers, f.Walkers, f.Readers} {
			services[0].Restart()
		}
		began := time.Now()
		running, _ := f.StartBackup(tree)
		out := running.Wait()
		most := time.Since(began).Seconds() + 1
		check(t, f, out, tree)
		if took := out.Summary(t).ElapsedSeconds; took < 0 || took > most {
			t.Errorf("with a clock of the index that is shifted by %v, a backup of at most %.1f s took %.1f s", by, most, took)
		}
	}
}

// lastGoodOf returns when the last good snapshot of the only shard was begun.
func lastGoodOf(t *testing.T, f *fleet.Fleet) time.Time {
	t.Helper()
	var shard struct {
		LastGood struct{ Started time.Time } `json:"last_good"`
	}
	if err := json.Unmarshal([]byte(f.Must("shard", "ls", "--json").Stdout), &shard); err != nil {
		t.Fatal(err)
	}
	return shard.LastGood.Started
}
