package prune_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// seedSetting repeats one history: it is the seed that a failed test printed.
const seedSetting = "BCTL_PRUNE_SEED"

func openSQLite(t testing.TB) index.Index {
	t.Helper()
	x, err := sqliteindex.Open(t.Context(), filepath.Join(testenv.MemoryDir(t), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func openPostgres(t testing.TB) index.Index {
	t.Helper()
	x, err := pgindex.Open(t.Context(), testenv.Postgres(t), pgindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

var backends = []struct {
	name string
	open func(testing.TB) index.Index
}{{"SQLite", openSQLite}, {"Postgres", openPostgres}}

// TestHistories runs random histories of backups, forgets and passes. Between any two calls of a
// pass, others act, or the pass is killed, or it stops until another pass has led. Kept snapshots
// are always complete. In the end, when all is quiet, two passes with a sweep delete everything
// else.
func TestHistories(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 2)
			if text := os.Getenv(seedSetting); text != "" {
				seed, err := strconv.ParseUint(text, 10, 64)
				m.must(err)
				m.history(seed)
				return
			}
			lasts := 2 * time.Second
			switch {
			case testtarget.Runs(testtarget.Exhaustive):
				lasts = 15 * time.Minute
			case testtarget.Runs(testtarget.Often):
				lasts = 8 * time.Second
			}
			seed, histories := rand.Uint64()>>16, 0
			for began := time.Now(); time.Since(began) < lasts; histories++ {
				m.history(seed + uint64(histories))
			}
			t.Logf("%d histories from seed %d: %v", histories, seed, m.counts)
		})
	}
}

// history runs one history, and leaves an index and a store without content.
func (m *world) history(seed uint64) {
	m.trace = nil
	m.note("%s=%d", seedSetting, seed)
	defer func() {
		if m.Failed() {
			m.Logf("%s=%d", seedSetting, seed)
		}
	}()
	m.r = rand.New(rand.NewPCG(seed, 1))
	memory := int64(0)
	if m.r.IntN(2) == 0 {
		memory = 64 << m.r.IntN(5) // several parts, and too little for some of the chunks
	}
	m.parity = parity.Layout{}
	if m.r.IntN(2) == 0 {
		m.parity = parity.Layout{Members: 1 + m.r.IntN(3), Parity: 1}
		m.parity.Parity += m.r.IntN(m.parity.Members)
	}
	var passes []*process // that run; only the last one may lead
	for range 50 + m.r.IntN(350) {
		passes = slices.DeleteFunc(passes, func(p *process) bool { return p.done })
		if n := len(passes); n > 0 {
			if p := passes[m.r.IntN(n)]; m.r.IntN(6) < eagerness(p.at) {
				m.stepPass(p)
				continue
			}
		}
		if m.r.IntN(6) == 0 && len(passes) < 2 {
			passes = m.startPass(passes, memory)
			continue
		}
		m.act(m.shards[m.r.IntN(len(m.shards))])
		if m.r.IntN(4) == 0 {
			m.checkIdle()
		}
	}
	for _, p := range passes {
		if m.r.IntN(2) == 0 && !p.done {
			p.step(true)
			m.endPass(p)
		}
		for !p.done {
			m.stepPass(p)
		}
	}
	m.settle()
	m.twoPasses()
	m.checkNoLeaks()
	m.empty()
}

// checkIdle checks that nothing can be deleted if the index says that a pass would find nothing.
func (m *world) checkIdle() {
	m.Helper()
	work, err := m.x.PruneWork(m.ctx)
	m.must(err)
	if !prune.Idle(work, prune.Options{}) {
		return
	}
	m.counts["idle"]++
	found, err := prune.Run(m.ctx, prune.Options{Index: m.x, DryRun: true})
	m.must(err)
	if found.Packs+found.Thinned > 0 {
		m.fatalf("a pass would find nothing in the state %s, and finds %+v", work.State, found)
	}
}

// eagerness is how likely it is, of six, that a pass goes on rather than that somebody else acts.
// Much is to happen around a condemnation.
func eagerness(at string) int {
	switch {
	case at == "Condemn", at == "Acquit", at == "Deleting", at == "Delete", at == "Plan", at == "Put", at == "Move":
		return 1
	case strings.HasPrefix(at, "within"):
		return 5
	}
	return 3
}

// startPass starts a pass. If another one is under way, its term ends, as if it had been paused for
// longer than that, or the new pass is refused.
func (m *world) startPass(passes []*process, memory int64) []*process {
	m.Helper()
	busy := false
	for _, p := range passes {
		if p.leads {
			if m.r.IntN(3) == 0 {
				busy = true
				continue
			}
			m.must(m.x.Resign(m.ctx, p.term))
			m.note("%s does not lead any more", p.name)
			p.leads = false
			m.counts["usurped"]++
		}
	}
	m.passes++
	// Many stops are within sequences.
	within := m.r.IntN(4) == 0
	p := m.start(fmt.Sprint("pass ", m.passes), func(call string) bool { return within || !strings.HasPrefix(call, "within") }, memory, m.r.IntN(3) == 0)
	m.note("%s starts", p.name)
	m.counts["passes"]++
	if busy {
		p.run()
		m.wants(p.err, prune.ErrBusy)
		m.counts["busy"]++
		return passes
	}
	for p.term == (index.Term{}) {
		p.step(false)
	}
	return append(passes, p)
}

// stepPass lets a pass continue, or kills it.
func (m *world) stepPass(p *process) {
	m.Helper()
	kill := m.r.IntN(60) == 0 || p.at == "Acquit" && m.r.IntN(4) == 0
	m.note("%s: %s, killed: %t", p.name, p.at, kill)
	deletes := p.deletes()
	p.step(kill)
	if kill {
		m.counts["killed"]++
	}
	if deletes {
		m.check()
	}
	m.endPass(p)
}

func (m *world) endPass(p *process) {
	m.Helper()
	if !p.done {
		return
	}
	m.note("%s ends: %v", p.name, p.err)
	switch {
	case p.killed: // its term would run out
		if p.leads {
			m.must(m.x.Resign(m.ctx, p.term))
			p.leads = false
		}
	case p.err == nil:
		m.counts["completed"]++
	case errors.Is(p.err, index.ErrNotLeading) && !p.leads:
		m.counts["not leading"]++
	default:
		m.fatalf("%s: %v", p.name, p.err)
	}
}

// act lets somebody else act.
func (m *world) act(s *shard) {
	m.Helper()
	r := s.running
	var ended *snapshot
	if kept := slices.DeleteFunc(slices.Clone(s.snapshots), func(snap *snapshot) bool { return snap.forgotten }); len(kept) > 0 {
		ended = kept[m.r.IntN(len(kept))]
	}
	switch n := m.r.IntN(24); {
	case r == nil && n < 8 && !s.retired:
		m.begin(s)
	case r != nil && n < 3:
		m.walk(s)
	case r != nil && n < 7:
		m.read(s)
		if m.r.IntN(2) == 0 {
			m.deliverFirst(r, len(r.messages))
		}
	case r != nil && n < 12:
		m.deliver(r)
	case r != nil && n < 15:
		if m.commit(s) {
			m.check()
		}
	case r != nil && n == 15 && m.r.IntN(2) == 0:
		m.fail(s)
		m.check()
	case n == 16:
		m.deliverLate()
	case n == 17 && m.r.IntN(3) == 0:
		m.retire(s)
	case ended == nil:
	case n == 18 && ended.committed:
		m.setBad(ended, !ended.bad)
	case n == 19 && m.r.IntN(3) == 0:
		m.holdOrRelease(s, ended)
	case n == 20 && m.r.IntN(3) == 0:
		m.readOrEnd(ended)
	case n < 23 && !ended.recorded:
		m.record(ended)
	default:
		m.forget(s, ended)
	}
}

func (m *world) setBad(snap *snapshot, bad bool) {
	m.Helper()
	reason := ""
	if bad {
		reason = "the test says so"
	}
	m.must(m.x.SetBad(m.ctx, snap.ID, "tester", reason))
	snap.bad = bad
}

func (m *world) retire(s *shard) {
	m.Helper()
	switch {
	case s.retired:
		m.note("shard %d is taken back", s.ID)
		m.ensureShard(s.Name)
		s.retired = false
	case s.running == nil && s.last > 0:
		m.note("shard %d is retired", s.ID)
		m.must(m.x.RetireShard(m.ctx, s.ID, "tester"))
		s.retired = true
	}
}

// holdOrRelease adds or removes a hold on a shard or on a snapshot.
func (m *world) holdOrRelease(s *shard, snap *snapshot) {
	m.Helper()
	of, h := &s.hold, index.Hold{Shard: s.ID, By: "test"}
	if m.r.IntN(2) == 0 {
		of, h = &snap.hold, index.Hold{Snapshot: snap.ID, By: "test"}
	}
	if *of != 0 {
		m.must(m.x.RemoveHold(m.ctx, *of, "test", ""))
		*of = 0
		return
	}
	held, err := m.x.AddHold(m.ctx, h)
	if h.Shard == 0 && (!snap.committed || snap.forgotten) {
		m.wants(err, backup.ErrNotFound)
		return
	}
	m.must(err)
	*of = held.ID
}

func (m *world) readOrEnd(snap *snapshot) {
	m.Helper()
	if snap.reading != (backup.PackID{}) {
		m.must(m.x.EndReading(m.ctx, snap.reading))
		snap.reading = backup.PackID{}
		return
	}
	reading := m.newPackID()
	err := m.x.BeginReading(m.ctx, reading, snap.ID, time.Hour)
	if !snap.committed || snap.forgotten {
		m.wants(err, backup.ErrNotFound)
		return
	}
	m.must(err)
	snap.reading = reading
}

// settle ends all running snapshots.
func (m *world) settle() {
	m.Helper()
	for _, s := range m.shards {
		for tries := 0; s.running != nil; tries++ {
			if tries == 20 {
				m.fail(s)
				break
			}
			m.walk(s)
			m.read(s)
			for range 20 {
				m.deliver(s.running)
			}
			m.commit(s)
		}
	}
	for len(m.late) > 0 {
		m.deliverLate()
	}
	m.check()
}

func (m *world) twoPasses() {
	m.Helper()
	for n := range 2 {
		m.passes++
		p := m.start(fmt.Sprint("pass ", m.passes), func(string) bool { return false }, 0, n == 1)
		m.must(p.err)
	}
	m.check()
}
