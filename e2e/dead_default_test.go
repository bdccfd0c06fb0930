package e2e_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
)

const (
	// handedOutWithin is the promise: the time from the death of a worker's process until its work
	// is handed out again.
	handedOutWithin = 5 * time.Second
	// outsideOfBctl is for what is not bctl's: the test looks at the index at intervals, and its
	// own processes and those of Postgres and NATS wait for the processor.
	outsideOfBctl = 750 * time.Millisecond
)

// With the default settings alone, the work of a walker and of a reader that are killed with
// SIGKILL is handed out again within five seconds: each piece of it. A busy machine gets a second
// chance, with another worker.
func TestKilledWorkersWorkIsHandedOutWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: -1, Committers: 1, DefaultSettings: true}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 24, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: time.Second, Open: time.Second}})
	f.Filer("slow")
	f.Shard("slow", filer.Dir)
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	for _, kind := range []struct{ service, table string }{{"walker", "walk_tasks"}, {"reader", "read_batches"}} {
		for try := range 2 {
			victim := f.Walkers[0]
			if kind.service == "reader" || try > 0 {
				victim = f.Service(kind.service)
			}
			took := killAndMeasure(t, f, kind.table, victim)
			t.Logf("%s: %d pieces of work, handed out again after %v", kind.table, len(took), took)
			if len(took) > 0 && slices.Max(took) <= handedOutWithin+outsideOfBctl {
				break
			}
			if try > 0 {
				t.Errorf("%s: the work was handed out again after %v, want %v", kind.table, took, handedOutWithin)
			}
		}
		if kind.service == "walker" {
			f.Service("walker")
		}
	}
	filer.SetLatency(slowfs.Latency{})
	f.Service("reader")
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	checkNothingLeft(t, f)
}

// killAndMeasure kills a worker that has work in hand, and returns after how long each piece of it
// was handed out again, by the clock of the index. Work that was settled before its death was
// noticed does not count.
func killAndMeasure(t *testing.T, f *fleet.Fleet, table string, s *fleet.Service) (took []time.Duration) {
	t.Helper()
	_, had := killWithWork(t, f, table, s)
	killed := indexTime(t, f)
	fleet.Await(t, "the work of "+s.Name+" to be handed out again", func() bool {
		at, now := indexTime(t, f), attemptsWhere(t, f, table, "true")
		for id, attempt := range had {
			then, open := now[id]
			if open && then == attempt {
				continue
			}
			if open {
				took = append(took, at.Sub(killed).Round(time.Millisecond))
			}
			delete(had, id)
		}
		return len(had) == 0
	})
	return took
}

// indexTime returns the time by the clock of the index.
func indexTime(t *testing.T, f *fleet.Fleet) (now time.Time) {
	t.Helper()
	if err := f.Index.DB().QueryRow("SELECT clock_timestamp()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}
