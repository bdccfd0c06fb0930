package indextest

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// inShares yields all versions at once, and once more in shares, and compares their numbers.
func inShares(f *fixture, needed []backup.SnapshotNumber) iter.Seq2[index.Version, error] {
	all := 0
	for _, err := range f.x.Versions(f.ctx, f.shard.ID, needed, index.Share{}) {
		f.must(err)
		all++
	}
	return func(yield func(index.Version, error) bool) {
		const of = 3
		for n := range of {
			for v, err := range f.x.Versions(f.ctx, f.shard.ID, needed, index.Share{N: n, Of: of}) {
				if all--; !yield(v, err) {
					return
				}
			}
		}
		if all != 0 {
			f.Errorf("all versions are %d more than those of all shares", all)
		}
	}
}

// Versions yields what needed snapshots have, with the listings as they were put, and Locations the
// whole places of chunks.
func testChecking(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitPages(pageOf("", "root"), pageOf("a", "1"))
	second := f.commitPages(pageOf("a", "2"))
	third := f.commitPages(pageOf("a", "3"))
	f.walk(func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("a", "4")} })
	wantVersions := func(needed []backup.SnapshotNumber, want ...string) {
		t.Helper()
		var got []string
		for v, err := range inShares(f, needed) {
			f.must(err)
			path, err := backup.PathOfKey(v.PathKey)
			f.must(err)
			row := backup.PageVersion{Path: path, Key: v.Key, Fingerprint: v.Fingerprint, Inode: v.Inode, Listing: v.Listing}
			if listing.Digest(&row) != v.Digest || v.Directory != listing.DirectoryID(path) {
				t.Errorf("the version of %q from %d does not match its digest", path, v.First)
			}
			last := fmt.Sprint(v.Last)
			if v.Last == math.MaxInt64 {
				last = "open"
			}
			got = append(got, fmt.Sprintf("%s %d-%s", path, v.First, last))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("needed %v: %q, want %q", needed, got, want)
		}
	}
	numbers := []backup.SnapshotNumber{first.Number, second.Number, third.Number}
	wantVersions(numbers, " 1-open", "a 1-1", "a 2-2", "a 3-3")
	wantVersions(numbers[1:2], " 1-open", "a 2-2")
	wantVersions([]backup.SnapshotNumber{4}, " 1-open", "a 4-open")
	wantVersions(nil, " 1-open", "a 1-1", "a 2-2", "a 3-3", "a 4-open")
	wantVersions([]backup.SnapshotNumber{})

	s := f.running()
	p, copied := packOf(s, 1, 2, 3), packOf(s, 3)
	f.accept(index.Result{Pack: p}, index.Result{Pack: copied})
	got := map[index.ChunkLocation]bool{}
	for l, err := range f.x.Locations(f.ctx, f.packRows(p)) {
		f.must(err)
		got[l] = true
	}
	for _, c := range p.Chunks {
		want := index.ChunkLocation{PlaceOf: index.PlaceOf{Chunk: c.ID, Pack: f.packRows(p)[0], Frame: c.Frame}, Start: c.Offset, Length: c.Length}
		if !got[want] {
			t.Errorf("%+v is missing in %+v", want, got)
		}
	}
	all := 0
	for _, err := range f.x.Locations(f.ctx, nil) {
		f.must(err)
		all++
	}
	if len(got) != 3 || all != 4 {
		t.Errorf("%d locations in the pack, and %d in all", len(got), all)
	}
}

// A page that is to be read again equals no other, and its entries count as changed, in the next
// snapshot that is compared with it, and not in the one after that.
func testReread(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	page, other := pageOfFiles("a", 1), pageOf("b", "1")
	first := f.commitPages(page, other)
	name := []backup.PageName{{Path: "a"}, {Path: "b"}}
	want := func(base backup.SnapshotNumber, again bool) {
		t.Helper()
		marks, _, err := f.x.Marks(f.ctx, f.shard.ID, base, nil, nil, 10)
		f.must(err)
		listings, err := f.x.Listings(f.ctx, f.shard.ID, base, name)
		f.must(err)
		if marks[0].Fingerprint.Matches(page.Fingerprint) == again || !marks[1].Fingerprint.Matches(other.Fingerprint) {
			t.Errorf("base %d: fingerprints %v and %v", base, marks[0].Fingerprint, marks[1].Fingerprint)
		}
		for i := range listings {
			p, err := listing.Decode(listings[i])
			f.must(err)
			if flagged := p.Entries[0].Flags&backup.Provisional != 0; flagged != (again && i == 0) {
				t.Errorf("base %d, page %d: flags %b", base, i, p.Entries[0].Flags)
			}
		}
	}
	want(first.Number, false)
	f.must(f.x.Reread(f.ctx, []index.PageID{{Shard: f.shard.ID, Directory: listing.DirectoryID("a")}}))
	want(first.Number, true)
	noted := []index.PageID{}
	for id, err := range f.x.ToReread(f.ctx) {
		f.must(err)
		noted = append(noted, id)
	}
	if len(noted) != 1 || noted[0] != (index.PageID{Shard: f.shard.ID, Directory: listing.DirectoryID("a")}) {
		t.Errorf("to be read again: %v", noted)
	}
	if got := f.pages(first, "a"); len(got) != 1 || !got[0].Fingerprint.Matches(page.Fingerprint) || string(got[0].Listing) != string(page.Listing) {
		t.Error("the version itself has changed")
	}
	// A snapshot that fails does not end it, and one that is committed does.
	s := f.walk(func(*backup.SliceWalked) {})
	want(first.Number, true)
	f.fail(s.ID, "")
	want(first.Number, true)
	f.must(f.x.Reread(f.ctx, []index.PageID{{Shard: f.shard.ID, Directory: listing.DirectoryID("a")}}))
	second := f.commitPages()
	want(second.Number, false)
	// A snapshot that is running may have walked the page before.
	s = f.walk(func(*backup.SliceWalked) {})
	f.must(f.x.Reread(f.ctx, []index.PageID{{Shard: f.shard.ID, Directory: listing.DirectoryID("a")}}))
	f.commit(s)
	want(s.Number, true)
	third := f.commitPages()
	want(third.Number, false)
	f.wantRows("reread_pages", 0)
}

// The content of lost lists stays known when their places are dropped, until it is stored again and
// dropped.
func testLoseLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b")
	p := packOf(s, 101, 102)
	f.accept(index.Result{Pack: p}, listsStored(s, chunkList(101, 1, 2), nestedList(102, 101)))
	f.accept(withLists(batches[0], 101))
	term := f.lead("pruner", "first", time.Minute, true)
	drop := func(p *backup.PackStored) {
		t.Helper()
		rows := f.packRows(p)
		f.must(f.x.Condemn(f.ctx, term, rows))
		f.must(f.x.Deleting(f.ctx, term, rows))
		for digit := range 256 {
			f.must(f.x.DropPlaces(f.ctx, rows, byte(digit)))
		}
		f.must(f.x.DropLists(f.ctx))
	}
	f.must(f.x.LoseLists(f.ctx, term, f.packRows(p)))
	drop(p)
	f.wantRows("chunk_lists", 2)
	if known, err := f.x.HasLists(f.ctx, chunkIDs([]int{101, 102})); err != nil || !known {
		t.Fatalf("the lists are known: %t, %v", known, err)
	}
	f.accept(withLists(batches[1], 101)) // of a file that cannot be read again

	again := packOf(s, 101, 102)
	f.accept(index.Result{Pack: again}, listsStored(s, chunkList(101, 1, 2)))
	f.must(f.x.DropLists(f.ctx))
	drop(again)
	f.wantRows("chunk_lists", 0)
	f.must(f.x.Resign(f.ctx, term))
	f.wants(f.x.LoseLists(f.ctx, term, f.packRows(p)), index.ErrNotLeading)
}

// A pack that is dropped because the store has lost it can be taken back as it was, and until then
// a sweep leaves its object alone.
func testLostPacks(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	p := packOf(s, 1, 2, 3)
	f.accept(index.Result{Pack: p})
	f.fail(s.ID, "") // its snapshot has ended
	term := f.lead("pruner", "first", time.Minute, true)
	rows := f.packRows(p)
	before := f.packsOf()
	f.must(f.x.Condemn(f.ctx, term, rows))
	f.must(f.x.NoteLost(f.ctx, term, rows))
	f.must(f.x.NoteLost(f.ctx, term, rows)) // after a crash
	f.must(f.x.Deleting(f.ctx, term, rows))
	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, rows, byte(digit)))
	}
	_, err := f.x.DropPacks(f.ctx, rows)
	f.must(err)
	named := func(want bool) {
		t.Helper()
		found, err := f.x.Recognize(f.ctx, index.Term{}, []index.StoredObject{{Snapshot: s.ID, ID: p.Pack}})
		f.must(err)
		if !found[0].Ended || found[0].Named != want {
			t.Fatalf("%+v, want named: %t", found[0], want)
		}
	}
	named(true)
	if objects, err := f.x.LostObjects(f.ctx); err != nil || len(objects) != 1 || objects[0].ID != p.Pack {
		t.Fatalf("objects of lost packs: %+v, %v", objects, err)
	}
	lost, err := f.x.LostPacks(f.ctx)
	f.must(err)
	if len(lost) != 1 || lost[0].Snapshot != s.ID || lost[0].Object != p.Pack || lost[0].Pack != p.Pack || lost[0].Bytes != before[0].Bytes || len(lost[0].Chunks) != 3 {
		t.Fatalf("lost: %+v", lost)
	}
	taken, err := f.x.TakeBack(f.ctx, lost)
	f.must(err)
	if len(taken) != 1 {
		t.Fatalf("taken back: %+v", taken)
	}
	if got := f.packsOf(); len(got) != 1 || got[0].PackPlace != before[0].PackPlace {
		t.Errorf("packs %+v, want %+v", got, before)
	}
	places, err := f.x.Locate(f.ctx, chunkIDs([]int{1, 2, 3}))
	f.must(err)
	for i, at := range places {
		if at.Pack != p.Pack {
			t.Errorf("chunk %d is at %+v", i+1, at)
		}
	}
	f.wantRows("lost_packs", 0)

	// While a snapshot runs that may rely on it, its row stays, and it cannot be taken back.
	runs := f.begin()
	rows = f.packRows(p)
	f.must(f.x.Condemn(f.ctx, term, rows))
	f.must(f.x.NoteLost(f.ctx, term, rows))
	f.must(f.x.Deleting(f.ctx, term, rows))
	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, rows, byte(digit)))
	}
	f.must(f.x.Gone(f.ctx, rows))
	if dropped, err := f.x.DropPacks(f.ctx, rows); err != nil || dropped != 0 {
		t.Fatalf("dropped %d, %v", dropped, err)
	}
	lost, err = f.x.LostPacks(f.ctx)
	f.must(err)
	if taken, err = f.x.TakeBack(f.ctx, lost); err != nil || len(taken) != 0 {
		t.Fatalf("taken back: %+v, %v", taken, err)
	}
	named(true)
	f.wantRows("lost_packs", 1)
	f.fail(runs.ID, "")
	if dropped, err := f.x.DropPacks(f.ctx, rows); err != nil || dropped != 1 {
		t.Fatalf("dropped %d, %v", dropped, err)
	}
	if taken, err = f.x.TakeBack(f.ctx, lost); err != nil || len(taken) != 1 {
		t.Fatalf("taken back: %+v, %v", taken, err)
	}

	// One whose content is elsewhere is forgotten.
	f.must(f.x.NoteLost(f.ctx, term, f.packRows(p)))
	lost, err = f.x.LostPacks(f.ctx)
	f.must(err)
	f.must(f.x.ForgetLost(f.ctx, lost))
	f.wantRows("lost_packs", 0)
	f.must(f.x.Resign(f.ctx, term))
	f.wants(f.x.NoteLost(f.ctx, term, f.packRows(p)), index.ErrNotLeading)
}

// packsOf returns all packs.
func (f *fixture) packsOf() (packs []index.Pack) {
	f.Helper()
	for p, err := range f.x.Packs(f.ctx) {
		f.must(err)
		packs = append(packs, p)
	}
	return packs
}

// What the store has lost of the journal is written again.
func testRepairing(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.commitRecorded(pageOf("a", "1"))
	f.must(f.x.Unrecord(f.ctx, s.ID))
	missing, err := f.x.Unrecorded(f.ctx, nil, 10)
	f.must(err)
	if len(missing) != 1 || missing[0].ID != s.ID {
		t.Errorf("without a record: %+v", missing)
	}
	f.must(f.x.RequireCheckpoint(f.ctx, f.shard.ID))
	last, err := f.x.LastCommits(f.ctx, f.shard.ID)
	f.must(err)
	if last.SegmentBytes <= max(last.CheckpointBytes, 1<<20) {
		t.Errorf("%+v: the next segment is no checkpoint", last)
	}
	f.must(f.x.CatalogWritten(f.ctx, index.WrittenCatalog{Sequence: 1, Digest: [32]byte{1}, Written: f.now}))
	f.must(f.x.LoseCatalog(f.ctx))
	written, err := f.x.WrittenCatalog(f.ctx)
	f.must(err)
	if written.Digest != ([32]byte{}) || written.Sequence <= 1 {
		t.Errorf("catalog %+v", written)
	}
	f.must(f.x.NoteRepair(f.ctx, "alice", "repository", "why"))
	f.must(f.x.NotePurge(f.ctx, "alice", "request 7", false))
	f.must(f.x.NotePurge(f.ctx, "alice", "complete", true))
	f.wantLog("alice: repair repository: why", "alice: purge repository: request 7", "alice: purged repository: complete")
}
