package prune_test

import (
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// A scenario is a history, and the steps of a backup that follow it, which end up between any of
// the calls of two passes.
type scenario struct {
	name   string
	within bool // a pass also stops between two pages
	sweeps bool // a pass also sweeps the store
	before func(m *world)
	steps  []step
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
	}, []step{
		{begins, func(m *world) {
			m.begin(m.shards[1])
			m.walkWants(m.shards[1], wants{"b": {20}})
		}},
		{looks | uploads, func(m *world) { m.readWants(m.shards[1], wants{"b": {20}}) }},
		{delivers, func(m *world) { m.deliverAll(m.shards[1], wants{"b": {20}}) }},
		{ends | changes, func(m *world) { m.finish(m.shards[1]) }},
	}},
	{"dedup against an interrupted pack, then interrupted", true, false, func(m *world) {
		a := m.shards[0]
		m.begin(a)
		m.walkWants(a, wants{"a": {1}, "b": {11}})
		m.deliverAll(a, wants{"a": {1}, "b": {11}})
		m.fail(a)
		m.record(a.snapshots[0])
		m.backup(a, wants{"c": {6}}) // the interrupted pages are dropped
	}, []step{
		{begins | delivers, func(m *world) {
			b, w := m.shards[1], wants{"b": {1, 11}}
			m.begin(b)
			m.walkWants(b, w)
			m.deliverAll(b, w)
		}},
		{ends | changes, func(m *world) { m.fail(m.shards[1]) }},
		{begins, func(m *world) {
			m.begin(m.shards[1])
			m.carry(m.shards[1], "d", m.interrupted(m.shards[1])["b"])
		}},
		{delivers | ends, func(m *world) {
			m.deliverFirst(m.shards[1].running, 1)
			m.finish(m.shards[1])
		}},
	}},
	{"interrupted pages are carried forward", true, false, func(m *world) {
		a := m.shards[0]
		m.backup(a, wants{"c": {6}})
		m.begin(a)
		m.walkWants(a, wants{"a": {1}, "b": {11}})
		m.deliverAll(a, wants{"a": {1}, "b": {11}})
		m.fail(a)
	}, []step{
		{begins, func(m *world) { m.begin(m.shards[0]) }},
		{0, func(m *world) { m.carry(m.shards[0], "d", m.interrupted(m.shards[0])["b"]) }},
		{changes | registers, func(m *world) { m.deliverFirst(m.shards[0].running, 1) }},
		{ends | changes, func(m *world) { m.finish(m.shards[0]) }},
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
	}, []step{
		{begins, func(m *world) {
			m.begin(m.shards[0])
			m.walkWants(m.shards[0], wants{"b": {10, 4}})
		}},
		{looks | uploads, func(m *world) { m.readWants(m.shards[0], wants{"b": {10, 4}}) }},
		{delivers, func(m *world) { m.deliverAll(m.shards[0], wants{"b": {10, 4}}) }},
		{ends | changes, func(m *world) { m.finish(m.shards[0]) }},
	}},
	{"dedup against a frame that is removed", false, false, func(m *world) {
		a := m.shards[0]
		first := m.backup(a, wants{"a": {1, 2, 3}, "b": {4, 5}})
		m.backup(a, wants{"a": {1}, "b": {4}})
		m.forget(a, first)
	}, []step{
		{begins, func(m *world) {
			m.begin(m.shards[1])
			m.walkWants(m.shards[1], wants{"b": {1, 2, 4}})
		}},
		{looks | uploads, func(m *world) { m.readWants(m.shards[1], wants{"b": {1, 2, 4}}) }},
		{delivers, func(m *world) { m.deliverAll(m.shards[1], wants{"b": {1, 2, 4}}) }},
		{ends | changes, func(m *world) { m.finish(m.shards[1]) }},
	}},
	{"a reader remembers a frame that is removed", false, false, func(m *world) {
		a := m.shards[0]
		first := m.backup(a, wants{"a": {1, 2, 3}})
		m.backup(a, wants{"a": {1}})
		m.forget(a, first)
		m.begin(m.shards[1])
		m.walkWants(m.shards[1], wants{"b": {2}})
		m.readWants(m.shards[1], wants{"b": {2}})
	}, []step{
		{changes | registers, func(m *world) { m.deliverFirst(m.shards[1].running, len(m.shards[1].running.messages)) }},
		{begins | delivers | ends, func(m *world) { m.backup(m.shards[0], wants{"c": {3, 6}}) }},
		{delivers | ends, func(m *world) {
			m.deliverAll(m.shards[1], wants{"b": {2}})
			m.finish(m.shards[1])
		}},
	}},
	{"a moved page, whose snapshot is forgotten", false, false, func(m *world) {
		a := m.shards[0]
		m.backup(a, wants{"a": {6}})
		head := m.backup(a, wants{"a": {1, 2}, "b": {10}})
		m.setBad(head, true)
		m.forget(a, head)
	}, []step{
		{begins, func(m *world) { m.begin(m.shards[0]) }},
		{0, func(m *world) { m.carry(m.shards[0], "d", "1,2") }},
		{changes | registers | ends, func(m *world) {
			m.deliverFirst(m.shards[0].running, 1)
			m.finish(m.shards[0])
		}},
		{forgets, func(m *world) {
			kept := slices.DeleteFunc(slices.Clone(m.shards[0].snapshots), func(s *snapshot) bool { return s.forgotten })
			m.forget(m.shards[0], kept[0])
		}},
	}},
	{"packs are uploaded, and announced or not", false, true, func(m *world) {
		a := m.shards[0]
		m.begin(a)
		m.walkWants(a, wants{"a": {1}, "b": {2}})
		m.readWants(a, wants{"a": {1}, "b": {2}}) // nobody announces what it has stored
		m.fail(a)
		m.record(a.snapshots[0])
	}, []step{
		{begins, func(m *world) {
			m.begin(m.shards[1])
			m.walkWants(m.shards[1], wants{"a": {1, 3}})
		}},
		{looks | uploads, func(m *world) { m.readWants(m.shards[1], wants{"a": {1, 3}}) }},
		{delivers, func(m *world) { m.deliverAll(m.shards[1], wants{"a": {1, 3}}) }},
		{ends | changes, func(m *world) { m.finish(m.shards[1]) }},
	}},
	{"a pack is announced when its snapshot has ended", false, true, func(m *world) {
		a := m.shards[0]
		m.begin(a)
		m.walkWants(a, wants{"a": {1, 2}, "b": {3}})
		m.readWants(a, wants{"a": {1, 2}, "b": {3}})
	}, []step{
		{registers, func(m *world) { m.deliverFirst(m.shards[0].running, 1) }},
		{ends | changes, func(m *world) { m.fail(m.shards[0]) }},
		{0, func(m *world) {
			for len(m.late) > 0 {
				m.deliverLate()
			}
		}},
		{begins | delivers | ends, func(m *world) { m.backup(m.shards[0], wants{"a": {1, 2}}) }},
	}},
}
