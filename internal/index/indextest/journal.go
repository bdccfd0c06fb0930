package indextest

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// The state that a committer needs before a commit, and what it records then.
func testJournal(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	journal := func(want index.LastCommits) {
		t.Helper()
		got, err := f.x.LastCommits(f.ctx, f.shard.ID)
		f.must(err)
		if got != want {
			t.Fatalf("journal %+v, want %+v", got, want)
		}
	}
	_, err := f.x.LastCommits(f.ctx, 4711)
	f.wants(err, backup.ErrNotFound)
	journal(index.LastCommits{})
	attempt := backup.NewPackID()
	commit := func(segment backup.Segment, files int64) {
		t.Helper()
		s := f.walk(func(r *backup.SliceWalked) { r.Counts = backup.Counts{Files: files, Bytes: 10 * files} })
		set := backup.PageSet{Pages: 1 << 40, Sum: [32]byte{1, 31: 0xff}} // the committer's value is not checked
		now := f.now.Add(time.Hour)
		f.must(f.x.Commit(f.ctx, s.ID, segment, set, now))
		segment.Bytes = 0
		if got := f.snapshot(s.ID); got.Segment != segment || got.Pages != set || !got.Ended.Equal(now) || !got.Committed.Equal(now) {
			t.Fatalf("snapshot %+v, want segment %+v and pages %+v, ended at %s", got, segment, set, now)
		}
	}
	commit(backup.Segment{Attempt: attempt, Parts: 3, Checkpoint: true, Bytes: 1 << 40}, 7)
	journal(index.LastCommits{Good: 1, Files: 7, Bytes: 70, CheckpointBytes: 1 << 40})
	commit(backup.Segment{Attempt: attempt, Parts: 1, Bytes: 50}, 8)
	commit(backup.Segment{}, 8) // nothing was changed
	f.fail(f.begin().ID, "")
	commit(backup.Segment{Attempt: attempt, Parts: 2, Bytes: 5}, 9)
	journal(index.LastCommits{Good: 5, Files: 9, Bytes: 90, CheckpointBytes: 1 << 40, SegmentBytes: 55})
	commit(backup.Segment{Attempt: attempt, Parts: 2, Checkpoint: true, Bytes: 500}, 6)
	journal(index.LastCommits{Good: 6, Files: 6, Bytes: 60, CheckpointBytes: 500})
}

// Snapshots that have ended are listed, oldest first, until the store has their records.
func testUnrecorded(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	unrecorded := func(only []backup.SnapshotID, limit int, want ...backup.Snapshot) {
		t.Helper()
		got, err := f.x.Unrecorded(f.ctx, only, limit)
		f.must(err)
		for i := range want {
			want[i] = f.snapshot(want[i].ID)
		}
		if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("unrecorded %+v, want %+v", got, want)
		}
	}
	unrecorded(nil, 10)
	home, start := f.shard, f.now
	runs := f.begin()
	f.must(f.x.Recorded(f.ctx, runs.ID)) // a running snapshot has no record yet
	unrecorded(nil, 10)
	f.shard, f.now = f.newShard("filer", "var"), start.Add(time.Hour)
	first := f.commitPages()
	f.now = start // the clock goes back: they are still in the order of their numbers
	second := f.begin()
	f.fail(second.ID, "no luck")
	f.now = start.Add(3 * time.Hour)
	third := f.commitPages()
	f.shard, f.now = home, start.Add(2*time.Hour)
	unrecorded(nil, 10, first, second, third)
	f.fail(runs.ID, "") // begun before all others
	last := f.commitPages()
	unrecorded(nil, 10, runs, first, second, last, third)
	unrecorded(nil, 2, runs, first)
	unrecorded([]backup.SnapshotID{third.ID, first.ID, backup.NewSnapshotID()}, 10, first, third)
	unrecorded([]backup.SnapshotID{third.ID, first.ID}, 1, first)
	unrecorded([]backup.SnapshotID{}, 10)
	if got := f.snapshot(second.ID); got.Ended.IsZero() || !got.Committed.IsZero() || !f.snapshot(runs.ID).Ended.After(start) {
		t.Fatalf("%+v, want to know when it ended", got)
	}
	for range 2 { // the first call's reply was lost
		f.must(f.x.Recorded(f.ctx, first.ID))
		unrecorded(nil, 10, runs, second, last, third)
	}
	f.must(f.x.Recorded(f.ctx, backup.NewSnapshotID()))
	f.must(f.x.Recorded(f.ctx, runs.ID))
	f.must(f.x.Recorded(f.ctx, second.ID))
	unrecorded(nil, 10, last, third)
}

// A clock that goes back does not change which snapshot of a shard is the newest: its base, its
// last good one and lists agree.
func testClockGoesBack(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	home, start := f.shard, f.now
	hours := func(n int) time.Time { return start.Add(time.Duration(n) * time.Hour) }
	newest := func(want backup.Snapshot, filters ...index.SnapshotFilter) {
		t.Helper()
		for _, filter := range filters {
			filter.States, filter.Limit = []backup.State{backup.Committed}, 1
			got, err := f.x.Snapshots(f.ctx, filter)
			f.must(err)
			if len(got) != 1 || got[0].ID != want.ID {
				t.Fatalf("%+v: the newest is %+v, want snapshot %d", filter, got, want.Number)
			}
		}
	}
	var all []backup.Snapshot
	for i, hour := range []int{5, 2, 3, 1, 7} {
		f.now = hours(hour)
		s := f.begin()
		if i > 0 && (s.Base != all[i-1].Number || s.BaseID != all[i-1].ID) {
			t.Fatalf("snapshot %d is based on %d", s.Number, s.Base)
		}
		if !s.Started.Equal(f.now) {
			t.Fatalf("started %s, want what the clock said: %s", s.Started, f.now)
		}
		f.accept(index.Result{Slice: SliceOf(f.claimTask(s))})
		f.commit(s)
		newest(s, index.SnapshotFilter{}, index.SnapshotFilter{Filer: "filer"}, index.SnapshotFilter{Shard: "home"}, index.SnapshotFilter{Filer: "filer", Shard: "home"})
		if got := f.listShards(index.ShardFilter{Name: "home"})[0]; got.LastGood != s.ID || got.Number != s.Number || !got.Time.Equal(f.now) {
			t.Fatalf("last good %+v, want snapshot %d", got, s.Number)
		}
		all = append(all, s)
	}
	// Also among others: one that began in between, and one of a shard of that name on another
	// filer.
	f.shard, f.now = f.newShard("filer", "var"), hours(6)
	between := f.commitPages()
	f.shard, f.now = f.newShard("other", "home"), hours(4)
	elsewhere := f.commitPages()
	f.shard = home
	for _, test := range []struct {
		filter index.SnapshotFilter
		want   []backup.Snapshot
	}{
		{index.SnapshotFilter{}, []backup.Snapshot{elsewhere, all[0], all[1], all[2], all[3], between, all[4]}},
		{index.SnapshotFilter{Filer: "filer"}, []backup.Snapshot{all[0], all[1], all[2], all[3], between, all[4]}},
		{index.SnapshotFilter{Shard: "home"}, []backup.Snapshot{elsewhere, all[0], all[1], all[2], all[3], all[4]}},
		{index.SnapshotFilter{Filer: "filer", Shard: "home"}, all},
		{index.SnapshotFilter{Limit: 3}, []backup.Snapshot{all[3], between, all[4]}},
		{index.SnapshotFilter{States: []backup.State{backup.Committed}, Limit: 4}, []backup.Snapshot{all[2], all[3], between, all[4]}},
		{index.SnapshotFilter{Since: hours(3)}, []backup.Snapshot{elsewhere, all[0], all[2], between, all[4]}}, // by the clock
		{index.SnapshotFilter{Since: hours(3), Shard: "home", Filer: "filer"}, []backup.Snapshot{all[0], all[2], all[4]}},
	} {
		got, err := f.x.Snapshots(f.ctx, test.filter)
		f.must(err)
		same := func(a, b backup.Snapshot) bool { return a.ID == b.ID }
		if !slices.EqualFunc(got, test.want, same) {
			t.Errorf("%+v: %v, want %v", test.filter, numbers(got), numbers(test.want))
		}
	}
}

func numbers(list []backup.Snapshot) (n []backup.SnapshotNumber) {
	for _, s := range list {
		n = append(n, s.Number)
	}
	return n
}

// The newest catalog in the store is the one with the largest sequence.
func testCatalogs(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	want := func(want index.WrittenCatalog) {
		t.Helper()
		got, err := f.db.Open().WrittenCatalog(f.ctx)
		f.must(err)
		if got.Sequence != want.Sequence || got.Digest != want.Digest || !got.Written.Equal(want.Written) || got.Written.IsZero() != want.Written.IsZero() {
			t.Fatalf("catalog %+v, want %+v", got, want)
		}
	}
	want(index.WrittenCatalog{})
	first := index.WrittenCatalog{Sequence: 1, Digest: [32]byte{1, 31: 2}, Written: f.now}
	f.must(f.x.CatalogWritten(f.ctx, first))
	want(first)
	third := index.WrittenCatalog{Sequence: 3, Digest: [32]byte{3}, Written: f.now.Add(-time.Hour)} // the clock goes back
	f.must(f.x.CatalogWritten(f.ctx, third))
	f.must(f.x.CatalogWritten(f.ctx, index.WrittenCatalog{Sequence: 2, Written: f.now.Add(time.Hour)}))
	f.must(f.x.CatalogWritten(f.ctx, index.WrittenCatalog{Sequence: 3, Digest: [32]byte{4}, Written: f.now}))
	want(third)
}

// The root must be that of the base, unless a new one is requested. In that case, and in the first
// snapshot, it is the one that the root's walker finds.
func testRoots(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	old := backup.Root{FileSystem: "fuse.\xff", ID: "0:61 inode=8\n\x00", Inode: 1<<64 - 1, Born: backup.Time{Sec: -1, Nsec: 999_999_999}}
	moved := backup.Root{FileSystem: "ext4", Inode: 2}
	// begin begins a snapshot, and checks which root it expects.
	begin := func(request backup.Snapshot, base backup.Snapshot, want backup.Root) backup.Snapshot {
		t.Helper()
		s, err := f.x.BeginSnapshot(f.ctx, f.shard.ID, request, f.now)
		f.must(err)
		if s.Root != want || s.Base != base.Number || s.BaseID != base.ID || s.NewRoot != request.NewRoot || f.snapshot(s.ID).Root != want {
			t.Fatalf("snapshot %+v, want it on %d with root %q", s, base.Number, want)
		}
		return s
	}
	// walk makes the root's walker report a root, in one of three parts, and checks the root in the
	// jobs of other work.
	walk := func(s backup.Snapshot, found, want backup.Root) {
		t.Helper()
		task := f.claimTask(s)
		if task.Job.Root != s.Root || task.Job.NewRoot != s.NewRoot || task.Job.AllowShrink != s.AllowShrink || task.Job.Base != s.Base {
			t.Fatalf("root task %+v of %+v", task.Job, s)
		}
		parts := []*backup.SliceWalked{SliceOf(task), SliceOf(task), SliceOf(task)}
		parts[0].Last, parts[1].Last = false, false
		parts[1].Part, parts[2].Part = 1, 2
		parts[1].Root = found
		parts[2].Children, parts[2].Batches = children([][]string{{"x"}}), reads([][]backup.PageVersion{{pageOf("y", "")}})
		f.accept(index.Result{Slice: parts[0]}, index.Result{Slice: parts[1]})
		if got := f.snapshot(s.ID).Root; got != s.Root {
			t.Fatalf("root %q before the result is accepted", got)
		}
		f.accept(index.Result{Slice: parts[2]})
		child, batch := f.claimTask(s), f.claimBatch(s)
		for _, job := range []backup.Job{child.Job, batch.Job} {
			if job.Root != want || job.NewRoot != s.NewRoot || job.AllowShrink != s.AllowShrink {
				t.Fatalf("job %+v, want root %q", job, want)
			}
		}
		other := SliceOf(child) // only the root's walker can set the root
		other.Root = backup.Root{Inode: 4711}
		f.accept(index.Result{Slice: other}, index.Result{Batch: storedOf(batch)})
		if got := f.snapshot(s.ID).Root; got != want {
			t.Fatalf("root %q, want %q", got, want)
		}
	}
	none := backup.Snapshot{}
	s := begin(none, none, backup.Root{})
	walk(s, old, old)
	f.fail(s.ID, "") // a failed snapshot is no base
	first := begin(none, none, backup.Root{})
	walk(first, old, old)
	f.commit(first)
	second := begin(backup.Snapshot{AllowShrink: true}, first, old)
	walk(second, backup.Root{}, old) // a walker that does not know the root
	f.commit(second)
	lost := begin(backup.Snapshot{NewRoot: true}, second, backup.Root{})
	walk(lost, moved, moved)
	f.fail(lost.ID, "")
	third := begin(none, second, old)
	f.fail(third.ID, "the root is another")
	fourth := begin(backup.Snapshot{NewRoot: true}, second, backup.Root{})
	walk(fourth, moved, moved)
	f.commit(fourth)
	fifth := begin(none, fourth, moved)
	empty := backup.Counts{Directories: 1}
	walkCounted(f, fifth, empty)
	f.commit(fifth)
	sixth := begin(none, fifth, backup.Root{}) // any root is accepted in place of an empty one
	walk(sixth, old, old)
	f.commit(sixth)
	begin(none, sixth, old)
}

// walkCounted accepts the result of the root's walker: nothing but these counts.
func walkCounted(f *fixture, s backup.Snapshot, counts backup.Counts) {
	f.Helper()
	slice := SliceOf(f.claimTask(s))
	slice.Counts = counts
	f.accept(index.Result{Slice: slice})
}

// A snapshot compares the attributes that the filer's setting named when the snapshot began.
func testCompare(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas", Compare: backup.CompareMtime})
	s := f.begin()
	filer.Compare = backup.CompareCtime | backup.CompareInode
	f.must(f.x.SetFiler(f.ctx, filer))
	root := f.claimTask(s)
	r := SliceOf(root)
	r.Batches = reads([][]backup.PageVersion{{pageOf("x", "")}})
	f.accept(index.Result{Slice: r})
	batch := f.claimBatch(s)
	if got := f.snapshot(s.ID).Compare; got != backup.CompareMtime || root.Job.Compare != got || batch.Job.Compare != got {
		t.Fatalf("compares %v, its work %v and %v; want what the filer had when it began", got, root.Job.Compare, batch.Job.Compare)
	}
	f.accept(index.Result{Batch: storedOf(batch)})
	f.commit(s)
	if next := f.begin(); next.Compare != filer.Compare || f.claimTask(next).Job.Compare != filer.Compare {
		t.Fatalf("the next one compares %v, want %v", next.Compare, filer.Compare)
	}
}

// The key of a shard is unique and never changes.
func testShardKeys(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas"})
	added := f.shard
	ensured, err := f.x.EnsureShard(f.ctx, filer.ID, "var", "posix:///var")
	f.must(err)
	first := f.begin()
	if added.Key == (backup.ShardKey{}) || ensured.Key == (backup.ShardKey{}) || added.Key == ensured.Key || first.Shard.Key != added.Key {
		t.Fatalf("keys %s and %s, in a snapshot %s", added.Key, ensured.Key, first.Shard.Key)
	}
	f.fail(first.ID, "")
	changed := added
	changed.Key, changed.Source = backup.NewShardKey(), "posix:///moved"
	f.must(f.x.SetShard(f.ctx, changed))
	again, err := f.x.EnsureShard(f.ctx, filer.ID, added.Name, "posix:///moved/again")
	f.must(err)
	f.must(f.x.RetireShard(f.ctx, added.ID, "tester"))
	back, err := f.x.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: added.Name, Source: "posix:///back", Key: backup.NewShardKey()})
	f.must(err)
	if again.Key != added.Key || back.Key != added.Key || f.listShards(index.ShardFilter{Name: "home", Filer: "nas"})[0].Key != added.Key {
		t.Fatalf("keys %s and %s, want %s", again.Key, back.Key, added.Key)
	}
}

// testSubtree reads the pages of a subtree in a base, and all changes with their digests, before
// and after the commit of a snapshot.
func testSubtree(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	second := pageOf("a", "a2")
	second.Key, second.Inode = 1<<62, 0
	first := f.commitPages(pageOf("", "root"), pageOf("a", "a1"), second, pageOf("a/b", "b"), pageOf("a!", "c"), pageOf("z", "z"))
	next := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOf("a", "new"), pageOf("a/c", "new")}
		r.Removed = []string{"a/b"}
	})
	subtree := func(base backup.SnapshotNumber, path string) (pages []backup.PageVersion) {
		t.Helper()
		for p, err := range f.x.Subtree(f.ctx, f.shard.ID, base, path) {
			f.must(err)
			pages = append(pages, p)
		}
		return pages
	}
	for _, path := range []string{"", "a", "a/b", "a!", "nowhere"} {
		if got, want := subtree(1, path), f.pages(first, path); !reflect.DeepEqual(got, want) {
			t.Fatalf("subtree of %q has %+v, want %+v", path, got, want)
		}
	}
	f.wantPaths(subtree(1, "a"), "a", "a", "a/b")
	f.wantPaths(subtree(0, ""))
	for range f.x.Subtree(f.ctx, f.shard.ID, 1, "") {
		break
	}

	allPages := func(s backup.Snapshot, want ...string) {
		t.Helper()
		var pages []backup.PageVersion
		for c, err := range f.x.AllPages(f.ctx, s.ID) {
			f.must(err)
			if c.Ended || c.Digest != listing.Digest(&c.PageVersion) {
				t.Fatalf("%+v, want a page that was added, with its digest", c)
			}
			pages = append(pages, c.PageVersion)
		}
		f.wantPaths(pages, want...)
	}
	running, committed := []string{"", "a", "a", "a/c", "a!", "z"}, []string{"", "a", "a", "a/b", "a!", "z"}
	allPages(next, running...)
	allPages(first, committed...)
	for range f.x.AllPages(f.ctx, next.ID) {
		break
	}
	// A change that ends a page has its digest, and nothing else of it.
	var ended []backup.PageChange
	for _, c := range f.changes(next) {
		if c.Ended {
			ended = append(ended, c)
		}
	}
	old, below := pageOf("a", "a1"), pageOf("a/b", "b")
	want := []backup.PageChange{
		{Ended: true, Digest: listing.Digest(&old), PageVersion: backup.PageVersion{Path: "a"}},
		{Ended: true, Digest: listing.Digest(&below), PageVersion: backup.PageVersion{Path: "a/b"}},
	}
	if !reflect.DeepEqual(ended, want) {
		t.Fatalf("ended %+v, want %+v", ended, want)
	}
	f.commit(next)
	allPages(next, running...)
	allPages(first, committed...)
	f.wantPaths(subtree(2, "a"), "a", "a", "a/c")
	lost := f.walk(func(r *backup.SliceWalked) { r.Removed = []string{"a"} })
	f.fail(lost.ID, "")
	for _, id := range []backup.SnapshotID{lost.ID, backup.NewSnapshotID()} {
		for _, err := range f.x.AllPages(f.ctx, id) {
			f.wants(err, backup.ErrNotFound)
		}
	}
}
