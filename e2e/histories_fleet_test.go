package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

const (
	// historiesOfAFleet is how many histories of one fleet go on at a time: each has trees of its
	// own, and all have the same services and the same store.
	historiesOfAFleet = 8
	// mostOfAFleet is by how much the clock moves: more, and no service leads.
	mostOfAFleet = 8 * time.Second
)

// TestRandomHistoriesOfAFleet makes random histories in a fleet with a real Postgres, NATS and,
// with the target s3, an S3 server and roles that have only their own rights: backups, restores,
// forgets, holds, marks, prunes and purges. Services of each role are killed, and so are commands,
// and the clock of the index moves. Each snapshot that survives is restored and compared.
func TestRandomHistoriesOfAFleet(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	seed, n := historiesFrom(t, 2, 2)
	w := newHistoryFleet(t)
	began, all, adding := time.Now(), &tally{map[string]int{}}, sync.Mutex{}
	t.Cleanup(func() { t.Logf("%v; %.0f s", all, time.Since(began).Seconds()) })
	next := 0
	take := func() (i int, ok bool) {
		adding.Lock()
		defer adding.Unlock()
		i, next = next, next+1
		return i, i < n
	}
	for part := range min(historiesOfAFleet, n) {
		t.Run(fmt.Sprint("part ", part), func(t *testing.T) {
			t.Parallel()
			for i, ok := take(); ok; i, ok = take() {
				h := w.history(t, seed+uint64(i))
				h.run()
				h.must(os.RemoveAll(h.dir))
				adding.Lock()
				all.addAll(h.tally)
				adding.Unlock()
			}
		})
	}
}

// A historyFleet is a fleet in which several histories go on.
type historyFleet struct {
	f        *fleet.Fleet
	services []*fleet.Service
	mu       sync.Mutex // faults strike one after the other
}

func newHistoryFleet(t *testing.T) *historyFleet {
	t.Helper()
	o := fleet.Options{Walkers: 2, Readers: 2, Committers: 2, Pruners: 2}
	w := &historyFleet{}
	if testtarget.Runs(testtarget.S3) {
		w.f = fleet.NewLocked(t, o)
	} else {
		w.f = fleet.New(t, o)
	}
	w.f.ShiftClock(0) // from now on, all connections have a clock that moves
	for _, list := range [][]*fleet.Service{w.f.Walkers, w.f.Readers, w.f.Committers, w.f.Pruners} {
		for _, s := range list {
			s.Restart()
			w.services = append(w.services, s)
		}
	}
	w.f.Must("brake", "set", "--snapshots", "60%", "--min-snapshots", "2")
	return w
}

// history begins a history on a filer of its own.
func (w *historyFleet) history(t *testing.T, seed uint64) *history {
	t.Helper()
	client := fleet.NewClient(t, "BCTL_CONFIG="+w.f.Config)
	h := newHistory(t, seed, client, t.TempDir())
	filer := fmt.Sprint("filer-", seed)
	client.Must("filer", "add", filer)
	for _, tree := range h.trees {
		client.Must("shard", "add", filer, tree.dir)
	}
	h.lists = []string{"--filer", filer}
	h.of = func(n int) []string { return []string{"--filer", filer, "--shard", h.trees[n].dir} }
	h.most = mostOfAFleet
	h.clock = func(by time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.f.ShiftClock(by)
	}
	h.settled = func() {
		h.until(func() bool {
			return !strings.Contains(client.Must("snapshot", "ls", "--json", "--filer", filer).Stdout, `"state":"running"`)
		})
	}
	for _, s := range w.services {
		h.faults = append(h.faults, func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			s.Kill()
			s.Restart()
			return s.Name + " was killed"
		})
	}
	h.purging = []string{}
	if w.f.Locked != nil {
		h.byRoles = true
		h.purging = []string{"--config", w.f.Settings("admin"), "--committer", w.f.Settings("committer"), "--pruner", w.f.Settings("pruner")}
	}
	h.pruned = func() {
		h.until(func() bool {
			out := client.Must("prune", "--dry-run", "--json").Stdout
			return strings.Contains(out, `"deleted_packs":0,`) && strings.Contains(out, `"thinned_packs":0,`)
		})
	}
	return h
}

// until waits for a condition that a fleet brings about, also after a leader was killed.
func (h *history) until(condition func() bool) {
	h.t.Helper()
	for end := time.Now().Add(3 * time.Minute); !condition(); <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			h.fatalf("the fleet does not settle")
		}
	}
}
