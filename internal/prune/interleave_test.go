package prune_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A scenario is a history, and the steps of a backup that follow it, which end up between any of
// the calls of one pass.
type scenario struct {
	name   string
	within bool // a pass also stops between two pages
	sweeps bool // a pass also sweeps the store
	before func(m *world)
	steps  []func(m *world)
}

// TestInterleavings interleaves a backup and a pass, in ways that are chosen at random among all
// possible ones: make test-exhaustive runs up to 5,000 of each scenario, half an hour in all.
func TestInterleavings(t *testing.T) {
	atMost := 8 // of each scenario
	switch {
	case testtarget.Runs(testtarget.Exhaustive):
		atMost = 5000
	case testtarget.Runs(testtarget.Long):
		atMost = 16
	}
	m := newWorld(t, openSQLite(t), 2)
	m.exact = true
	for _, s := range scenarios {
		// A pass deletes most, and has most calls, if the backup comes last.
		calls := m.interleave(s, slices.Repeat([]int{math.MaxInt}, len(s.steps)), false)
		all := [][]int{}
		for positions := make([]int, len(s.steps)); positions != nil; positions = next(positions, calls) {
			all = append(all, positions)
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		runs := all[:min(atMost, len(all))]
		for i, positions := range runs {
			m.interleave(s, positions, i%2 == 0)
		}
		t.Logf("%s: %d of %d interleavings with %d calls", s.name, len(runs), len(all), calls)
	}
	t.Logf("%v", m.counts)
}

// interleaved are the calls before which a pass stops.
var interleaved = []string{
	"Fence", "Needed", "References", "Places", "Condemn", "Acquit", "Plan", "Put", "Move", "Deleting", "Delete", "DropPlaces", "DropPacks", "DropVersions", "Remove", "Recognize",
}

// next returns the next list of numbers up to limit that do not decrease, nil after the last one.
func next(positions []int, limit int) []int {
	positions = slices.Clone(positions)
	for i := len(positions) - 1; i >= 0; i-- {
		if positions[i] < limit {
			positions[i]++
			for j := i + 1; j < len(positions); j++ {
				positions[j] = positions[i]
			}
			return positions
		}
	}
	return nil
}

// interleave runs a scenario: step i comes after so many calls of the pass as positions[i] says.
// The pass may be killed before the call that follows the last step. It returns the number of
// calls.
func (m *world) interleave(s scenario, positions []int, kill bool) (calls int) {
	m.trace = nil
	m.note("%s: steps after calls %d", s.name, positions)
	s.before(m)
	m.passes++
	last := ""
	p := m.start(fmt.Sprint("pass ", m.passes), func(call string) bool {
		// Nothing depends on what happens between two deletions of one kind.
		again := call == last && call != "References"
		last = call
		return !again && slices.Contains(interleaved, call) || s.within && call == "within References" || s.sweeps && call == "within List"
	}, 0, s.sweeps)
	for i, step := range s.steps {
		for !p.done && calls < positions[i] {
			m.stepAndCheck(p)
			calls++
		}
		m.note("step %d", i)
		step(m)
		m.check()
	}
	if kill && !p.done {
		m.note("killed: %s", p.at)
		p.step(true)
		m.endPass(p)
		p.err = nil
	}
	for ; !p.done; calls++ {
		m.stepAndCheck(p)
	}
	m.must(p.err)
	m.settle()
	m.twoPasses()
	m.checkNoLeaks()
	m.empty()
	return calls
}

func (m *world) stepAndCheck(p *process) {
	m.Helper()
	m.note("pass: %s", p.at)
	deletes := p.deletes()
	p.step(false)
	if deletes {
		m.check()
	}
}

// wants is what a backup finds: the chunks of the directories that it reads.
type wants map[string][]int

func (m *world) walkWants(s *shard, w wants) {
	m.Helper()
	m.walkAs(s, func(result *backup.SliceWalked, d string) func() {
		if _, ok := w[d]; ok {
			result.Batches = append(result.Batches, backup.PagesToRead{Pages: []backup.PageVersion{page(d, "")}})
		}
		return nil
	})
	m.deliverFirst(s.running, len(s.running.messages))
}

// readWants reads the open batches, and leaves their results.
func (m *world) readWants(s *shard, w wants) {
	m.Helper()
	batches, err := m.x.ClaimBatches(m.ctx, m.claim(s.running))
	m.must(err)
	for _, b := range batches {
		m.readBatch(s, b, w[b.Pages[0].Path]...)
	}
}

// deliverAll delivers all messages, each in a call, and reads again what was refused.
func (m *world) deliverAll(s *shard, w wants) {
	m.Helper()
	for tries := 0; ; tries++ {
		for range len(s.running.messages) {
			m.deliverFirst(s.running, 1)
		}
		m.readWants(s, w)
		if len(s.running.messages) == 0 {
			return
		}
		if tries == 10 {
			m.fatalf("shard %d: %d messages are not accepted", s.ID, len(s.running.messages))
		}
	}
}

// backup makes a whole snapshot.
func (m *world) backup(s *shard, w wants) *snapshot {
	m.Helper()
	m.begin(s)
	m.walkWants(s, w)
	m.deliverAll(s, w)
	return m.finish(s)
}

func (m *world) finish(s *shard) *snapshot {
	m.Helper()
	if !m.commit(s) {
		m.fatalf("shard %d: snapshot %d is not complete", s.ID, s.running.Number)
	}
	snap := s.snapshots[len(s.snapshots)-1]
	m.record(snap)
	return snap
}

// carry walks a snapshot that finds page d with the content of page from, of its base or of an
// interrupted one, and leaves the result.
func (m *world) carry(s *shard, d string, c content) {
	m.walkAs(s, func(result *backup.SliceWalked, at string) func() {
		if at != d {
			return nil
		}
		result.Pages = append(result.Pages, page(d, c))
		return func() { s.running.pages[d] = c }
	})
}

var scenarios = []scenario{
	{"dedup against a dying pack", false, false, func(m *world) {
		a := m.shards[0]
		first := m.backup(a, wants{"a": {20, 5}})
		m.backup(a, wants{"a": {6}})
		m.forget(a, first)
	}, []func(m *world){
		func(m *world) {
			m.begin(m.shards[1])
			m.walkWants(m.shards[1], wants{"b": {20}})
		},
		func(m *world) { m.readWants(m.shards[1], wants{"b": {20}}) },
		func(m *world) { m.deliverAll(m.shards[1], wants{"b": {20}}) },
		func(m *world) { m.finish(m.shards[1]) },
	}},
	{"dedup against an interrupted pack, then interrupted", true, false, func(m *world) {
		a := m.shards[0]
		m.begin(a)
		m.walkWants(a, wants{"a": {1}, "b": {11}})
		m.deliverAll(a, wants{"a": {1}, "b": {11}})
		m.fail(a)
		m.record(a.snapshots[0])
		m.backup(a, wants{"c": {6}}) // the interrupted pages are dropped
	}, []func(m *world){
		func(m *world) {
			b, w := m.shards[1], wants{"b": {1, 11}}
			m.begin(b)
			m.walkWants(b, w)
			m.deliverAll(b, w)
		},
		func(m *world) { m.fail(m.shards[1]) },
		func(m *world) {
			m.begin(m.shards[1])
			m.carry(m.shards[1], "d", m.interrupted(m.shards[1])["b"])
		},
		func(m *world) {
			m.deliverFirst(m.shards[1].running, 1)
			m.finish(m.shards[1])
		},
	}},
	{"interrupted pages are carried forward", true, false, func(m *world) {
		a := m.shards[0]
		m.backup(a, wants{"c": {6}})
		m.begin(a)
		m.walkWants(a, wants{"a": {1}, "b": {11}})
		m.deliverAll(a, wants{"a": {1}, "b": {11}})
		m.fail(a)
	}, []func(m *world){
		func(m *world) { m.begin(m.shards[0]) },
		func(m *world) { m.carry(m.shards[0], "d", m.interrupted(m.shards[0])["b"]) },
		func(m *world) { m.deliverFirst(m.shards[0].running, 1) },
		func(m *world) { m.finish(m.shards[0]) },
	}},
	{"a chunk in two packs, the older of which dies", false, false, func(m *world) {
		a, b := m.shards[0], m.shards[1]
		w := wants{"a": {10, 3, 5}}
		m.begin(b)
		m.walkWants(b, w)
		m.readWants(b, w)
		first := m.backup(a, wants{"a": {10, 3}})
		m.backup(a, wants{"a": {6}})
		m.deliverAll(b, w)
		second := m.finish(b)
		m.backup(b, wants{"a": {5}}) // the second pack is needed for this chunk
		m.forget(a, first)
		m.forget(b, second)
	}, []func(m *world){
		func(m *world) {
			m.begin(m.shards[0])
			m.walkWants(m.shards[0], wants{"b": {10, 4}})
		},
		func(m *world) { m.readWants(m.shards[0], wants{"b": {10, 4}}) },
		func(m *world) { m.deliverAll(m.shards[0], wants{"b": {10, 4}}) },
		func(m *world) { m.finish(m.shards[0]) },
	}},
	{"dedup against a frame that is removed", false, false, func(m *world) {
		a := m.shards[0]
		first := m.backup(a, wants{"a": {1, 2, 3}, "b": {4, 5}})
		m.backup(a, wants{"a": {1}, "b": {4}})
		m.forget(a, first)
	}, []func(m *world){
		func(m *world) {
			m.begin(m.shards[1])
			m.walkWants(m.shards[1], wants{"b": {1, 2, 4}})
		},
		func(m *world) { m.readWants(m.shards[1], wants{"b": {1, 2, 4}}) },
		func(m *world) { m.deliverAll(m.shards[1], wants{"b": {1, 2, 4}}) },
		func(m *world) { m.finish(m.shards[1]) },
	}},
	{"a reader remembers a frame that is removed", false, false, func(m *world) {
		a := m.shards[0]
		first := m.backup(a, wants{"a": {1, 2, 3}})
		m.backup(a, wants{"a": {1}})
		m.forget(a, first)
		m.begin(m.shards[1])
		m.walkWants(m.shards[1], wants{"b": {2}})
		m.readWants(m.shards[1], wants{"b": {2}})
	}, []func(m *world){
		func(m *world) { m.deliverFirst(m.shards[1].running, len(m.shards[1].running.messages)) },
		func(m *world) { m.backup(m.shards[0], wants{"c": {3, 6}}) },
		func(m *world) {
			m.deliverAll(m.shards[1], wants{"b": {2}})
			m.finish(m.shards[1])
		},
	}},
	{"a moved page, whose snapshot is forgotten", false, false, func(m *world) {
		a := m.shards[0]
		m.backup(a, wants{"a": {6}})
		head := m.backup(a, wants{"a": {1, 2}, "b": {10}})
		m.setBad(head, true)
		m.forget(a, head)
	}, []func(m *world){
		func(m *world) { m.begin(m.shards[0]) },
		func(m *world) { m.carry(m.shards[0], "d", "1,2") },
		func(m *world) {
			m.deliverFirst(m.shards[0].running, 1)
			m.finish(m.shards[0])
		},
		func(m *world) {
			kept := slices.DeleteFunc(slices.Clone(m.shards[0].snapshots), func(s *snapshot) bool { return s.forgotten })
			m.forget(m.shards[0], kept[0])
		},
	}},
	{"packs are uploaded, and announced or not", false, true, func(m *world) {
		a := m.shards[0]
		m.begin(a)
		m.walkWants(a, wants{"a": {1}, "b": {2}})
		m.readWants(a, wants{"a": {1}, "b": {2}}) // nobody announces what it has stored
		m.fail(a)
		m.record(a.snapshots[0])
	}, []func(m *world){
		func(m *world) {
			m.begin(m.shards[1])
			m.walkWants(m.shards[1], wants{"a": {1, 3}})
		},
		func(m *world) { m.readWants(m.shards[1], wants{"a": {1, 3}}) },
		func(m *world) { m.deliverAll(m.shards[1], wants{"a": {1, 3}}) },
		func(m *world) { m.finish(m.shards[1]) },
	}},
	{"a pack is announced when its snapshot has ended", false, true, func(m *world) {
		a := m.shards[0]
		m.begin(a)
		m.walkWants(a, wants{"a": {1, 2}, "b": {3}})
		m.readWants(a, wants{"a": {1, 2}, "b": {3}})
	}, []func(m *world){
		func(m *world) { m.deliverFirst(m.shards[0].running, 1) },
		func(m *world) { m.fail(m.shards[0]) },
		func(m *world) {
			for len(m.late) > 0 {
				m.deliverLate()
			}
		},
		func(m *world) { m.backup(m.shards[0], wants{"a": {1, 2}}) },
	}},
}
