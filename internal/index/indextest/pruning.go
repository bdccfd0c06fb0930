package indextest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func (f *fixture) wantNeeded(without []backup.SnapshotID, want ...backup.SnapshotNumber) {
	f.Helper()
	needed, err := f.x.Needed(f.ctx, without)
	f.must(err)
	if !slices.Equal(needed[f.shard.ID], want) {
		f.Fatalf("needed %v, want %v", needed[f.shard.ID], want)
	}
}

func testNeeded(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.wantNeeded(nil)
	var all []backup.Snapshot
	for i := range 4 {
		all = append(all, f.commitRecorded(pageOf("a", fmt.Sprint(i))))
	}
	f.must(f.forget(all[1]))
	f.wantNeeded(nil, 1, 3, 4)
	f.wantNeeded([]backup.SnapshotID{all[2].ID, all[3].ID}, 1, 4) // the newest one stays
	f.fail(f.begin().ID, "")
	f.wantNeeded(nil, 1, 3, 4)
	running := f.begin()
	f.wantNeeded([]backup.SnapshotID{running.ID, all[0].ID}, 3, 4, 6)
	f.fail(running.ID, "")
	f.must(f.x.SetBad(f.ctx, all[3].ID, "tester", "damaged"))
	f.must(f.forget(all[3]))
	f.wantNeeded(nil, 1, 3, 4)
	f.shard = f.newShard("filer", "other")
	f.wantNeeded(nil)
}

// Pages exist in all ranges of five snapshots, of which all possible sets are forgotten: exactly
// the versions that no other snapshot has are deleted.
func testDropVersions(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	const snapshots = 5
	rows := 0
	for set := range 1 << (snapshots - 1) {
		f.shard = f.newShard("filer", fmt.Sprint("forgets ", set))
		var all []backup.Snapshot
		for n := 1; n <= snapshots; n++ {
			s := f.walk(func(r *backup.SliceWalked) {
				for other := 1; other <= snapshots; other++ {
					if other < n {
						r.Removed = append(r.Removed, fmt.Sprintf("%d-%d", other, n-1))
					}
					if other >= n {
						r.Pages = append(r.Pages, pageOf(fmt.Sprintf("%d-%d", n, other), ""))
					}
				}
			})
			f.commit(s)
			f.must(f.x.Recorded(f.ctx, s.ID))
			all = append(all, s)
		}
		kept := map[int]bool{snapshots: true}
		for i := range snapshots - 1 {
			if set>>i&1 == 0 {
				kept[i+1] = true
			} else {
				f.must(f.forget(all[i]))
			}
		}
		want := int64(0)
		for first := 1; first <= snapshots; first++ {
			for last := first; last <= snapshots; last++ {
				has := false
				for n := first; n <= last; n++ {
					has = has || kept[n]
				}
				if !has {
					want++
				}
			}
		}
		for _, want := range []int64{want, 0} {
			dropped, err := f.x.DropVersions(f.ctx, f.shard.ID)
			f.must(err)
			if dropped != want {
				t.Fatalf("of set %b: %d versions dropped, want %d", set, dropped, want)
			}
		}
		rows += snapshots*(snapshots+1)/2 - int(want)
		f.wantRows("pages", rows)
		for i, s := range all {
			if kept[i+1] {
				f.wantVersions(s, snapshots)
			}
		}
	}
}

// wantVersions checks that a snapshot has the pages of all ranges that contain it.
func (f *fixture) wantVersions(s backup.Snapshot, snapshots int) {
	f.Helper()
	var want []string
	for first := 1; first <= int(s.Number); first++ {
		for last := int(s.Number); last <= snapshots; last++ {
			want = append(want, fmt.Sprintf("%d-%d", first, last))
		}
	}
	f.wantPaths(f.pages(s, ""), want...)
}

// Nothing remains of a retired shard whose snapshots are all forgotten. If it is taken back into
// service, its next snapshot has no base.
func testDropVersionsOfRetired(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first, second := f.commitRecorded(pageOf("a", "1")), f.commitRecorded(pageOf("b", "1"))
	failed := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("c", "1")} })
	f.fail(failed.ID, "")
	f.must(f.x.RetireShard(f.ctx, f.shard.ID, "tester"))
	f.must(f.forget(second))
	drop := func(want int64, numbers ...backup.SnapshotNumber) {
		t.Helper()
		n, err := f.x.DropVersions(f.ctx, f.shard.ID)
		f.must(err)
		if n != want {
			t.Fatalf("%d versions dropped, want %d", n, want)
		}
		f.wantNeeded(nil, numbers...)
	}
	drop(0, 1, 2)
	f.wantRows("interrupted_pages", 1)
	f.must(f.forget(first))
	// It is taken back before it is closed, and is retired again.
	f.newShard("filer", "home")
	drop(0, 2)
	f.must(f.x.RetireShard(f.ctx, f.shard.ID, "tester"))
	drop(2)
	f.wantRows("pages", 0)
	f.wantRows("interrupted_pages", 0)
	f.newShard("filer", "home")
	next := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("d", "1")} })
	if next.Number != 4 || next.Base != 0 || next.BaseID != (backup.SnapshotID{}) || next.Interrupted {
		t.Fatalf("it begins as %+v", next)
	}
	f.commit(next)
	f.wantPaths(f.pages(next, ""), "d")
}

func testFence(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	want := func(want backup.SnapshotNumber) {
		t.Helper()
		fence, err := f.x.Fence(f.ctx)
		f.must(err)
		if len(fence) != 1 || fence[f.shard.ID] != want {
			t.Fatalf("fence %v, want %d", fence, want)
		}
	}
	want(1)
	f.commitPages(pageOf("a", "1"))
	want(2)
	running := f.begin()
	want(2)
	f.fail(running.ID, "")
	want(3)
}

// wantReferences checks the content of the listings that refer to chunks.
func (f *fixture) wantReferences(from backup.SnapshotNumber, needed []backup.SnapshotNumber, want ...string) {
	f.Helper()
	var got []string
	for data, err := range f.x.References(f.ctx, f.shard.ID, from, needed) {
		f.must(err)
		got = append(got, contentOf(data))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.Fatalf("references from %d, needed by %v: %q, want %q", from, needed, got, want)
	}
}

func testReferences(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.wantReferences(0, nil)
	f.commitPages(pageOf("a", "a 1"), pageOf("b", "b 1"))
	f.commitPages(pageOf("a", "a 2"))
	failed := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("b", "interrupted")} })
	f.wantReferences(3, nil, "interrupted")
	f.fail(failed.ID, "")
	f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("c", "c 4")} })
	f.wantReferences(0, nil, "a 1", "a 2", "b 1", "c 4", "interrupted")
	f.wantReferences(2, nil, "a 2", "c 4", "interrupted")
	f.wantReferences(4, nil, "c 4", "interrupted")
	f.wantReferences(5, nil, "interrupted")
	f.wantReferences(0, []backup.SnapshotNumber{}, "interrupted")
	f.wantReferences(0, []backup.SnapshotNumber{1}, "a 1", "b 1", "interrupted")
	f.wantReferences(0, []backup.SnapshotNumber{2}, "a 2", "b 1", "interrupted")
	f.wantReferences(2, []backup.SnapshotNumber{1, 2}, "a 2", "interrupted")
	f.wantReferences(0, []backup.SnapshotNumber{1, 4}, "a 1", "a 2", "b 1", "c 4", "interrupted")
	for range f.x.References(f.ctx, f.shard.ID, 0, nil) {
		break // and the rest is not wanted
	}

	// A page that is interrupted in the meantime is there once.
	seen := 0
	for data, err := range f.x.References(f.ctx, f.shard.ID, 4, nil) {
		f.must(err)
		if contentOf(data) == "c 4" {
			seen++
		}
		if running, err := f.x.Snapshots(f.ctx, index.SnapshotFilter{States: []backup.State{backup.Running}}); err == nil && len(running) > 0 {
			f.fail(running[0].ID, "")
		}
	}
	if seen != 1 {
		t.Fatalf("the page was seen %d times", seen)
	}
}

// packRows returns the rows of packs.
func (f *fixture) packRows(packs ...*backup.PackStored) []int64 {
	f.Helper()
	rows := make([]int64, len(packs))
	for p, err := range f.x.Packs(f.ctx) {
		f.must(err)
		for i := range packs {
			if packs[i].Pack == p.Pack {
				rows[i] = p.Row
			}
		}
	}
	return rows
}

// wantPack checks the state of a pack.
func (f *fixture) wantPack(p *backup.PackStored, condemned, deleting, running bool) {
	f.Helper()
	for got, err := range f.x.Packs(f.ctx) {
		f.must(err)
		if got.Pack != p.Pack {
			continue
		}
		want := index.Pack{
			Row: got.Row, PackPlace: index.PackPlace{Pack: p.Pack, Snapshot: p.Snapshot, Object: p.Pack, Bytes: p.StoredBytes},
			Chunks: int64(len(p.Chunks)), Condemned: condemned, Deleting: deleting, Running: running,
		}
		if got != want {
			f.Fatalf("pack %+v, want %+v", got, want)
		}
		return
	}
	f.Fatalf("there is no pack %s", p.Pack)
}

// Only the leader condemns packs, takes that back and deletes them, in this order.
func testCondemn(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b", "c")
	one, other := packOf(s, 1, 2), packOf(s, 3)
	f.accept(index.Result{Pack: one}, index.Result{Pack: other})
	rows := f.packRows(one, other)
	first := f.lead("pruner", "first", time.Minute, true)
	f.wantPack(one, false, false, true)
	f.must(f.x.Deleting(f.ctx, first, rows)) // they are not condemned
	f.wantPack(one, false, false, true)
	f.must(f.x.Condemn(f.ctx, first, rows))
	f.wantPack(one, true, false, true)
	f.wants(f.apply(index.Result{Batch: storedOf(batches[0], one.Pack)})[0].Err, index.ErrCondemned)
	f.must(f.x.Acquit(f.ctx, first, rows[:1]))
	f.wantPack(one, false, false, true)
	f.wantPack(other, true, false, true)
	f.accept(index.Result{Batch: storedOf(batches[0], one.Pack)})

	f.must(f.x.Resign(f.ctx, first))
	f.wants(f.x.Acquit(f.ctx, first, rows), index.ErrNotLeading)
	second := f.lead("pruner", "second", time.Minute, true)
	for _, change := range []func() error{
		func() error { return f.x.Condemn(f.ctx, first, rows) },
		func() error { return f.x.Acquit(f.ctx, first, rows) },
		func() error { return f.x.Deleting(f.ctx, first, rows) },
	} {
		f.wants(change(), index.ErrNotLeading)
	}
	f.wantPack(one, false, false, true)
	f.wantPack(other, true, false, true)
	f.must(f.x.Deleting(f.ctx, second, rows))
	f.wantPack(one, false, false, true)
	f.wantPack(other, true, true, true)
	f.must(f.x.Acquit(f.ctx, second, rows)) // too late
	f.wantPack(other, true, true, true)
	f.wants(f.apply(index.Result{Batch: storedOf(batches[1], other.Pack)})[0].Err, index.ErrCondemned)

	// The row remains until the snapshot has ended.
	f.must(f.x.DropPlaces(f.ctx, rows[1:], chunkID(3)[0]))
	f.wantDropped(rows, 0)
	f.fail(s.ID, "")
	f.wantPack(one, false, false, false)
	f.wantDropped(rows, 1)
	f.wantRows("packs", 1)
	f.must(f.x.Condemn(f.ctx, second, nil))
}

func (f *fixture) wantDropped(rows []int64, want int) {
	f.Helper()
	n, err := f.x.DropPacks(f.ctx, rows)
	f.must(err)
	if n != want {
		f.Fatalf("%d packs dropped, want %d", n, want)
	}
}

// A chunk keeps its places in other packs, and a list chunk with one of them is still known.
func testDropPlaces(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	all := numbersTo(60)
	first, second, third := packOf(s, all...), packOf(s, all[:40]...), packOf(s, all[:20]...)
	f.accept(index.Result{Pack: first})
	f.accept(index.Result{Pack: second})
	f.accept(index.Result{Pack: third})
	var lists []backup.ChunkList
	for _, n := range all {
		lists = append(lists, chunkList(n, 100+n))
	}
	f.accept(listsStored(s, lists...))
	places := f.places(nil)
	if len(places) != 120 {
		t.Fatalf("%d places", len(places))
	}
	packs := map[int64]int{}
	for p := range places {
		packs[p.Pack]++
	}
	for row, n := range packs {
		if of := f.places([]int64{row, 1 << 40}); len(of) != n {
			t.Errorf("%d places in pack %d, want %d", len(of), row, n)
		}
	}
	if of := f.places([]int64{}); len(of) != 0 {
		t.Errorf("%d places in no pack", len(of))
	}
	drop := func(packs ...*backup.PackStored) {
		t.Helper()
		for digit := range 256 {
			f.must(f.x.DropPlaces(f.ctx, f.packRows(packs...), byte(digit)))
		}
	}
	has := func(n int, want bool) {
		t.Helper()
		known, err := f.x.HasLists(f.ctx, []backup.ChunkID{chunkID(n), chunkID(n)})
		f.must(err)
		if known != want {
			t.Fatalf("list %d is known: %t", n, known)
		}
	}
	drop()
	drop(second)
	f.wantRows("chunks", 60)
	f.wantRows("chunk_copies", 20)
	drop(first)
	f.wantRows("chunks", 20)
	f.wantRows("chunk_copies", 0)
	f.wantRows("chunk_lists", 20)
	for n, l := range f.locate(all...) {
		want := index.Location{}
		if n < 20 {
			want = at(third, n)
		}
		if l != want {
			t.Fatalf("chunk %d is at %+v, want %+v", n, l, want)
		}
		has(n, n < 20)
	}
	known, err := f.x.HasLists(f.ctx, chunkIDs(all))
	f.must(err)
	if known {
		t.Fatal("some lists are gone")
	}
	drop(third)
	f.wantRows("chunks", 0)
	f.wantRows("chunk_lists", 0)
}

// Lists without a place are deleted, and so are lists of lists that refer to one that is gone. A
// batch that needs such a list is refused.
func testDropLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b")
	low, high := packOf(s, 1, 201), packOf(s, 2, 211, 221, 202)
	f.accept(index.Result{Pack: low}, index.Result{Pack: high},
		listsStored(s, nestedList(221, 211), nestedList(211, 201, 202), chunkList(201, 1), chunkList(202, 2), chunkList(203, 3)))
	f.wantRows("chunk_lists", 5)
	f.must(f.x.DropLists(f.ctx)) // the last one
	f.wantRows("chunk_lists", 4)
	f.accept(withLists(batches[0], 221))
	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, f.packRows(low), byte(digit)))
	}
	f.wantRows("chunk_lists", 3)
	f.wants(f.apply(withLists(batches[1], 221))[0].Err, index.ErrListUnknown)
	f.wants(f.apply(listsStored(s, nestedList(231, 211)))[0].Err, index.ErrListUnknown)
	f.must(f.x.DropLists(f.ctx))
	f.wantRows("chunk_lists", 1)
	f.accept(index.Result{Pack: packOf(s, 1, 201)}, listsStored(s, nestedList(221, 211), nestedList(211, 201, 202), chunkList(201, 1)), withLists(batches[1], 221))
	f.must(f.x.DropLists(f.ctx))
	f.wantRows("chunk_lists", 4)
	lists := 0
	for l, err := range f.x.ChunkLists(f.ctx) {
		f.must(err)
		want := map[backup.ChunkID]backup.ChunkList{
			chunkID(221): nestedList(221, 211), chunkID(211): nestedList(211, 201, 202), chunkID(201): chunkList(201, 1), chunkID(202): chunkList(202, 2),
		}[l.List]
		if l.Nested != want.Nested || !slices.Equal(l.Chunks, want.Chunks) {
			t.Fatalf("list %+v, want %+v", l, want)
		}
		lists++
	}
	if lists != 4 {
		t.Fatalf("%d lists", lists)
	}
}

// commitSegment commits a snapshot with such a segment, and records it.
func (f *fixture) commitSegment(segment backup.Segment) backup.Snapshot {
	f.Helper()
	s := f.walk(func(*backup.SliceWalked) {})
	if segment.Parts > 0 {
		segment.Attempt = backup.NewPackID()
	}
	f.must(f.x.Commit(f.ctx, s.ID, segment, backup.PageSet{}, f.now))
	f.must(f.x.Recorded(f.ctx, s.ID))
	s.Segment = segment
	return s
}

// A forgotten snapshot is needed while the chain of segments of a kept one goes through it.
func testChains(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	checkpoint, segment, unchanged := backup.Segment{Parts: 2, Checkpoint: true, Bytes: 9}, backup.Segment{Parts: 1, Bytes: 1}, backup.Segment{}
	for _, c := range []struct {
		segments []backup.Segment
		needed   []bool // of all except the last one
	}{
		{[]backup.Segment{segment, segment, segment}, []bool{true, true}},
		{[]backup.Segment{segment, checkpoint, segment}, []bool{false, true}},
		{[]backup.Segment{segment, segment, checkpoint}, []bool{false, false}},
		{[]backup.Segment{checkpoint, unchanged, unchanged}, []bool{true, true}},
		// A checkpoint of nothing has no segment: the chain goes on.
		{[]backup.Segment{segment, {Checkpoint: true}, segment}, []bool{true, true}},
	} {
		f.shard = f.newShard("filer", fmt.Sprint(c.segments))
		var all []backup.Snapshot
		for _, s := range c.segments {
			all = append(all, f.commitSegment(s))
		}
		for i := range c.needed {
			f.must(f.forget(all[i]))
		}
		i := 0
		forgotten, err := f.x.Forgotten(f.ctx)
		f.must(err)
		for _, got := range forgotten {
			if got.Shard != f.shard.ID {
				continue
			}
			want := index.Forgotten{ID: all[i].ID, Shard: f.shard.ID, Number: all[i].Number, Segment: all[i].Segment, Needed: c.needed[i]}
			want.Segment.Bytes = 0
			if got != want {
				t.Fatalf("%+v: %+v, want %+v", c.segments, got, want)
			}
			i++
		}
		if i != len(c.needed) {
			t.Fatalf("%d snapshots are forgotten", i)
		}
	}
}

func testRemove(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitRecorded(pageOf("a", "1"))
	f.commitRecorded(pageOf("a", "2"))
	ended := func(id backup.SnapshotID, wantKnown, wantEnded bool) {
		t.Helper()
		got, err := f.x.Recognize(f.ctx, index.Term{}, []index.StoredObject{{Snapshot: id}})
		f.must(err)
		if got[0].Known != wantKnown || got[0].Ended != wantEnded {
			t.Fatalf("%+v, want known: %t, ended: %t", got[0], wantKnown, wantEnded)
		}
	}
	running := f.begin()
	ended(running.ID, true, false)
	f.wants(f.x.Remove(f.ctx, running.ID), index.ErrKept)
	f.fail(running.ID, "")
	ended(running.ID, true, true)
	f.wants(f.x.Remove(f.ctx, running.ID), index.ErrKept) // not forgotten
	f.wants(f.x.Remove(f.ctx, first.ID), index.ErrKept)
	f.must(f.forget(first))
	ended(first.ID, true, true)
	f.must(f.x.Remove(f.ctx, first.ID))
	f.wants(f.x.Remove(f.ctx, first.ID), backup.ErrNotFound)
	ended(first.ID, true, true)
	ended(backup.NewSnapshotID(), false, false)

	third := f.commitRecorded(pageOf("a", "3"))
	f.must(f.x.SetBad(f.ctx, third.ID, "tester", "damaged"))
	f.must(f.forget(third))
	f.wants(f.x.Remove(f.ctx, third.ID), index.ErrKept) // the base of the next one
}

// places returns how often each place in some packs is yielded; nil: in all packs.
func (f *fixture) places(rows []int64) map[index.PlaceOf]int {
	f.Helper()
	places := map[index.PlaceOf]int{}
	for p, err := range f.x.Places(f.ctx, rows) {
		f.must(err)
		places[p]++
	}
	return places
}
