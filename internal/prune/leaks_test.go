package prune_test

import (
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// checkNoLeaks checks that all that remains is needed. Nothing runs, and two passes have run.
func (m *world) checkNoLeaks() {
	m.Helper()
	needed := map[int]bool{}
	kept := map[backup.SnapshotID]bool{}
	for _, s := range m.shards {
		for _, c := range m.interrupted(s) {
			addChunks(needed, c.chunks())
		}
		n, err := m.x.DropVersions(m.ctx, s.ID)
		m.must(err)
		if n > 0 {
			m.fatalf("shard %d: %d versions of pages remain that nothing needs", s.ID, n)
		}
		head := s.head()
		for _, snap := range s.snapshots {
			if !snap.forgotten || snap == head {
				kept[snap.ID] = true
				for _, c := range snap.pages {
					addChunks(needed, c.chunks())
				}
			}
		}
	}
	live := map[backup.ChunkID]bool{}
	for n := range needed {
		live[chunkID(n)] = true
	}
	packs := m.checkPacks(live)
	m.checkLists()
	m.checkObjects(packs, kept)
	for _, s := range m.shards {
		s.snapshots = slices.DeleteFunc(s.snapshots, func(snap *snapshot) bool { return snap.removed })
	}
}

// checkPacks checks that each frame of each pack has a live chunk, and that each place is in a
// pack.
func (m *world) checkPacks(live map[backup.ChunkID]bool) map[string]bool {
	m.Helper()
	type inPack struct {
		row   int64
		frame uint32
	}
	frames := map[inPack]bool{}
	objects, rows, used := map[string]bool{}, map[int64]index.Pack{}, map[int64]bool{}
	for p, err := range m.x.Packs(m.ctx) {
		m.must(err)
		rows[p.Row] = p
		objects[store.PackName(p.Snapshot, p.Object)] = true
		if p.Condemned || p.Deleting || p.Running {
			m.fatalf("pack %+v remains", p)
		}
	}
	for place, err := range m.x.Places(m.ctx, nil) {
		m.must(err)
		if _, ok := rows[place.Pack]; !ok {
			m.fatalf("chunk %s is in pack %d, which does not exist", place.Chunk, place.Pack)
		}
		used[place.Pack] = used[place.Pack] || live[place.Chunk]
		frames[inPack{place.Pack, place.Frame}] = frames[inPack{place.Pack, place.Frame}] || live[place.Chunk]
	}
	for f, err := range m.x.Frames(m.ctx) {
		m.must(err)
		for n, length := range f.Bytes {
			if length > 0 && !frames[inPack{f.Row, uint32(n)}] {
				m.fatalf("frame %d of pack %+v remains, and nothing needs it", n, rows[f.Row])
			}
		}
	}
	for row, p := range rows {
		if !used[row] {
			m.fatalf("pack %+v remains, and nothing needs it", p)
		}
	}
	return objects
}

// checkLists checks that each list that the index knows has a place, and that it knows the lists
// below it.
func (m *world) checkLists() {
	m.Helper()
	var ids, below []backup.ChunkID
	for l, err := range m.x.ChunkLists(m.ctx) {
		m.must(err)
		ids = append(ids, l.List)
		if l.Nested {
			below = append(below, l.Chunks...)
		}
	}
	known, err := m.x.HasLists(m.ctx, m.listsAmong(below))
	m.must(err)
	if !known {
		m.fatalf("a list remains, and one of those below it does not: %s", below)
	}
	found, err := m.x.LocateReadable(m.ctx, ids)
	m.must(err)
	if i := slices.Index(found, index.Location{}); i >= 0 {
		m.fatalf("list %s remains, and has no place", ids[i])
	}
}

// listsAmong returns those of the chunks that are lists.
func (m *world) listsAmong(ids []backup.ChunkID) (found []backup.ChunkID) {
	for _, n := range listNumbers {
		if slices.Contains(ids, chunkID(n)) {
			found = append(found, chunkID(n))
		}
	}
	return found
}

// chained returns the snapshots whose segments the snapshots in kept need.
func (m *world) chained(kept map[backup.SnapshotID]bool) map[backup.SnapshotID]bool {
	chained := map[backup.SnapshotID]bool{}
	for _, s := range m.shards {
		byID := map[backup.SnapshotID]*snapshot{}
		for _, snap := range s.snapshots {
			byID[snap.ID] = snap
		}
		for _, at := range s.snapshots {
			if !kept[at.ID] || !at.committed {
				continue
			}
			for at != nil {
				chained[at.ID] = true
				if at.Segment.Checkpoint && at.Segment.Parts > 0 {
					break
				}
				at = byID[at.BaseID]
			}
		}
	}
	return chained
}

// checkObjects checks which objects the store has. Sweeps have deleted packs that were never
// registered.
func (m *world) checkObjects(packs map[string]bool, kept map[backup.SnapshotID]bool) {
	m.Helper()
	forgotten, err := m.x.Forgotten(m.ctx)
	m.must(err)
	chained := m.chained(kept)
	for _, f := range forgotten {
		if !f.Needed || !chained[f.ID] {
			m.fatalf("snapshot %s remains, and nothing needs it", f.ID)
		}
	}
	wanted := map[string]bool{}
	for _, s := range m.shards {
		for _, snap := range s.snapshots {
			if snap.removed = !kept[snap.ID] && !chained[snap.ID]; snap.removed {
				continue
			}
			if snap.recorded {
				wanted[store.CommitName(snap.ID)] = true
			}
			for part := range snap.Segment.Parts {
				wanted[store.SegmentName(snap.ID, snap.Segment.Attempt, part)] = true
			}
		}
	}
	for _, g := range m.parityGroups() {
		for n := range g.Bodies {
			wanted[g.Name(n)] = true
		}
		for i := range g.Members {
			if !packs[g.Members[i].Name()] {
				m.fatalf("group %s has %s, which is gone", g.ID, g.Members[i].Name())
			}
		}
	}
	for o, err := range m.s.List(m.ctx, "") {
		m.must(err)
		if strings.HasPrefix(o.Name, store.PacksPrefix) {
			if !packs[o.Name] && !m.left[o.Name] {
				m.fatalf("object %s remains, and nothing needs it", o.Name)
			}
			delete(packs, o.Name)
			continue
		}
		if !wanted[o.Name] {
			m.fatalf("object %s remains, and nothing needs it", o.Name)
		}
		delete(wanted, o.Name)
	}
	if len(packs)+len(wanted) > 0 {
		m.fatalf("objects %v and %v are gone", packs, wanted)
	}
}

// empty forgets everything, and checks that two passes leave nothing.
func (m *world) empty() {
	m.Helper()
	for name := range m.left {
		m.must(m.s.Delete(m.ctx, name))
	}
	clear(m.left)
	for _, s := range m.shards {
		if !s.retired {
			m.retire(s)
		}
		if s.hold != 0 {
			m.must(m.x.RemoveHold(m.ctx, s.hold, "test", ""))
			s.hold = 0
		}
		for _, snap := range s.snapshots {
			if snap.hold != 0 {
				m.must(m.x.RemoveHold(m.ctx, snap.hold, "test", ""))
				snap.hold = 0
			}
			if snap.reading != (backup.PackID{}) {
				m.readOrEnd(snap)
			}
			if !snap.recorded {
				m.record(snap)
			}
			if !snap.forgotten {
				m.forget(s, snap)
			}
		}
	}
	m.twoPasses()
	m.checkNoLeaks()
	for p, err := range m.x.Packs(m.ctx) {
		m.must(err)
		m.fatalf("pack %+v remains", p)
	}
	for o, err := range m.s.List(m.ctx, "") {
		m.must(err)
		m.fatalf("object %s remains", o.Name)
	}
	for _, s := range m.shards {
		for data, err := range m.x.References(m.ctx, s.ID, 0, nil) {
			m.must(err)
			m.fatalf("shard %d: a page with %q remains", s.ID, contentOfListing(data))
		}
		if s.last > 0 {
			m.retire(s) // back into service
		}
		s.snapshots = nil
	}
}
