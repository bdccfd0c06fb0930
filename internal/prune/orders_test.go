package prune_test

import (
	"fmt"
	"testing"

	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// TestOrders takes four snapshots of a shard, each of which is committed or fails, and forgets each
// at any time afterwards, or never, while the next one runs or before it begins. A pass follows
// each step. make test-exhaustive runs all histories, on both indexes.
func TestOrders(t *testing.T) {
	every := 83
	switch {
	case testtarget.Runs(testtarget.Exhaustive):
		every = 1
	case testtarget.Runs(testtarget.Often):
		every = 41
	}
	var orders []order
	n := 0
	for commits := range 16 {
		// A snapshot i is forgotten after the end of snapshot i, i+1, …, or never.
		for first := range 5 {
			for second := range 4 {
				for third := range 3 {
					for last := range 2 {
						for running := range 2 {
							if n++; n%every == 0 {
								orders = append(orders, order{commits, [4]int{first, 1 + second, 2 + third, 3 + last}, running == 1})
							}
						}
					}
				}
			}
		}
	}
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 0)
			m.exact = true
			m.orders(orders)
			t.Logf("%d of %d orders: %v", len(orders), n, m.counts)
		})
	}
}

// orders makes all histories. They advance together, so that one pass is for all of them.
func (m *world) orders(orders []order) {
	m.Helper()
	for i, o := range orders {
		m.shards = append(m.shards, &shard{Shard: m.ensureShard(fmt.Sprintf("%d %+v", i, o))})
	}
	for i := range 4 {
		for j, s := range m.shards {
			m.trace = nil
			m.note("%+v", orders[j])
			m.order(s, &orders[j], i)
		}
		m.twoPasses()
	}
	m.checkNoLeaks()
	m.empty()
}

// An order is what becomes of four snapshots.
type order struct {
	commits int    // bit i: snapshot i is committed
	forgets [4]int // after which one a snapshot is forgotten; 4: never
	running bool   // while the next one runs
}

// order takes snapshot i, and forgets those whose time has come. What each finds differs.
func (m *world) order(s *shard, o *order, i int) {
	m.Helper()
	n := 100 * int(s.ID) // each shard has chunks of its own
	found := []wants{{"a": {n + 1}, "b": {n + 2}}, {"a": {n + 3}, "c": {n + 4}}, {"b": {n + 5}}, {"c": {n + 1, n + 6}}}[i]
	if s.running == nil {
		m.begin(s)
	}
	m.walkWants(s, found)
	m.deliverAll(s, found)
	if o.commits>>i&1 == 1 {
		m.finish(s)
	} else {
		m.fail(s)
		m.record(s.snapshots[len(s.snapshots)-1])
	}
	if o.running && i < 3 {
		m.begin(s)
	}
	for k, snap := range s.snapshots {
		if o.forgets[k] == i {
			if last := s.lastGood(); last == snap && last != firstGood(s) {
				m.setBad(snap, true)
			}
			m.forget(s, snap)
		}
	}
}

func firstGood(s *shard) *snapshot {
	for _, snap := range s.snapshots {
		if snap.committed && !snap.forgotten && !snap.bad {
			return snap
		}
	}
	return nil
}
