package indextest

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Results that no honest worker sends are refused, change nothing, and affect no other result.
func testInvalidResults(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.walk(func(r *backup.SliceWalked) {
		r.Children = children([][]string{{"child"}})
		r.Batches = reads([][]backup.PageVersion{{pageOf("batch", "b")}})
		r.Pages = []backup.PageVersion{pageOf("", "root")}
	})
	task, batch := f.claimTask(s), f.claimBatch(s)
	f.shard = f.newShard("filer", "other")
	stranger := f.begin()
	before := f.snapshot(s.ID)

	var bad []index.Result
	slice := func(change func(*backup.SliceWalked)) {
		r := SliceOf(task)
		change(r)
		bad = append(bad, index.Result{Slice: r})
	}
	stored := func(change func(*backup.BatchStored)) {
		r := storedOf(batch)
		change(r)
		bad = append(bad, index.Result{Batch: r})
	}
	pack := func(change func(*backup.PackStored)) {
		p := packOf(s, 1)
		change(p)
		bad = append(bad, index.Result{Pack: p})
	}
	bad = append(bad, index.Result{}, index.Result{Slice: SliceOf(task), Batch: storedOf(batch)})
	for _, path := range []string{"/", "a/", "/a", "a//b", ".", "a/../b", "nul\x00", strings.Repeat("n", 1021), strings.Repeat("n/", backup.MaxPathBytes/2) + "n"} {
		slice(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{{Path: path}} })
		slice(func(r *backup.SliceWalked) { r.Ended = []backup.PageName{{Path: path}} })
		slice(func(r *backup.SliceWalked) { r.Removed = []string{path} })
		slice(func(r *backup.SliceWalked) { r.Children = children([][]string{{path}}) })
		slice(func(r *backup.SliceWalked) { r.Batches = reads([][]backup.PageVersion{{{Path: path}}}) })
		stored(func(r *backup.BatchStored) { r.Pages = []backup.PageVersion{{Path: path}} })
	}
	for _, change := range []func(*backup.Counts){
		func(c *backup.Counts) { c.Directories = -1 }, func(c *backup.Counts) { c.Errors = math.MaxInt64 },
		func(c *backup.Counts) { c.ReadSeconds = math.NaN() }, func(c *backup.Counts) { c.WalkSeconds = math.Inf(1) },
		func(c *backup.Counts) { c.CommitSeconds = -1 },
	} {
		slice(func(r *backup.SliceWalked) { change(&r.Counts) })
		stored(func(r *backup.BatchStored) { change(&r.Counts) })
	}
	slice(func(r *backup.SliceWalked) { r.Counts.Files = -1 }) // in a batch it is a correction
	slice(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{{Key: -1}} })
	slice(func(r *backup.SliceWalked) { r.Ended = []backup.PageName{{Key: -1}} })
	slice(func(r *backup.SliceWalked) { r.Removed = []string{""} })
	slice(func(r *backup.SliceWalked) { r.Children = children([][]string{{}}) })
	slice(func(r *backup.SliceWalked) { r.Batches = reads([][]backup.PageVersion{{}}) })
	slice(func(r *backup.SliceWalked) {
		r.Problems = []backup.Problem{{Path: strings.Repeat("n", backup.MaxPathBytes+1)}}
	})
	slice(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{{Listing: make([]byte, index.MaxListingBytes+1)}}
	})
	for _, root := range []backup.Root{
		{ID: strings.Repeat("i", 4096)}, {FileSystem: strings.Repeat("\xff", 1400)}, {Born: backup.Time{Sec: 1, Nsec: 1_000_000_000}},
	} {
		slice(func(r *backup.SliceWalked) { r.Root = root })
	}
	slice(func(r *backup.SliceWalked) { r.Part, r.Last = -1, false })
	slice(func(r *backup.SliceWalked) { r.Part, r.Last = index.MaxParts, false })
	slice(func(r *backup.SliceWalked) { r.Attempt = 0 })
	slice(func(r *backup.SliceWalked) { r.Attempt = math.MaxInt32 })
	slice(func(r *backup.SliceWalked) { r.Task = -1 })
	slice(func(r *backup.SliceWalked) { r.Snapshot = stranger.ID })
	stored(func(r *backup.BatchStored) { r.Attempt = 2 })
	stored(func(r *backup.BatchStored) { r.Batch = 0 })
	stored(func(r *backup.BatchStored) { r.Snapshot = stranger.ID })
	stored(func(r *backup.BatchStored) { r.Pages = nil })
	stored(func(r *backup.BatchStored) { r.Pages = []backup.PageVersion{pageOf("elsewhere", "b")} })
	stored(func(r *backup.BatchStored) { r.Pages = append(r.Pages, r.Pages...) })
	for _, garbage := range []string{"", "no listing", string(listingOf("")) + "more"} {
		stored(func(r *backup.BatchStored) {
			r.Pages = slices.Clone(r.Pages)
			r.Pages[0].Listing = []byte(garbage)
		})
	}
	stored(func(r *backup.BatchStored) { r.ReliesOn = make([]backup.PackID, index.MaxReliesOn+1) })
	pack(func(p *backup.PackStored) { p.StoredBytes = -1 })
	pack(func(p *backup.PackStored) { p.Chunks[0].Frame = math.MaxUint32 })
	pack(func(p *backup.PackStored) { p.Chunks[0].Frame = uint32(len(p.FrameBytes)) })
	pack(func(p *backup.PackStored) { p.FrameBytes = nil })
	pack(func(p *backup.PackStored) { p.FrameBytes = make([]uint32, index.MaxChunks+1) })
	pack(func(p *backup.PackStored) { p.Chunks[0].Offset = math.MaxUint32 })
	pack(func(p *backup.PackStored) { p.Chunks[0].Length = math.MaxUint32 })

	lists := func(lists ...backup.ChunkList) {
		bad = append(bad, index.Result{Lists: &backup.ListsStored{Snapshot: s.ID, Lists: lists}})
	}
	half := make([]backup.ChunkID, index.MaxChunks/2)
	lists(make([]backup.ChunkList, index.MaxChunks+1)...)
	lists(backup.ChunkList{Chunks: half}, backup.ChunkList{List: backup.ChunkID{1}, Chunks: half})
	bad = append(bad, index.Result{Lists: &backup.ListsStored{Snapshot: s.ID}, Pack: packOf(s, 1)})

	for i, o := range f.apply(bad...) {
		if o.Late || o.Announced || o.Complete {
			t.Errorf("forged result %d: %+v", i, o)
		}
		if !errors.Is(o.Err, backup.ErrInvalid) {
			f.Errorf("forged result %d: %v, want invalid", i, o.Err)
		}
	}
	if after := f.snapshot(s.ID); !reflect.DeepEqual(after, before) {
		t.Fatalf("snapshot %+v, want it as before: %+v", after, before)
	}
	// Good results among forged ones are accepted, and have their own outcomes.
	good := SliceOf(task)
	good.Pages = []backup.PageVersion{pageOf("child", "c")}
	outcomes := f.apply(bad[3], index.Result{Slice: good}, bad[len(bad)-1], index.Result{Batch: storedOf(batch)}, bad[0])
	for i, o := range outcomes {
		if want := i%2 == 1; (o.Err == nil) != want || o.Complete != (i == 3) {
			t.Fatalf("outcome %d: %+v", i, o)
		}
	}
	f.commit(s)
	f.wantPaths(f.pages(s, ""), "", "batch", "child")
}

// Results of several snapshots may be in one call.
func testMixedSnapshots(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var snapshots []backup.Snapshot
	var results []index.Result
	for i := range 3 {
		f.shard = f.newShard("filer", fmt.Sprint(i))
		s := f.begin()
		r := SliceOf(f.claimTask(s))
		r.Pages = []backup.PageVersion{pageOf("", fmt.Sprint(i)), pageOf("same", fmt.Sprint(i))}
		snapshots, results = append(snapshots, s), append(results, index.Result{Slice: r}, index.Result{Pack: packOf(s, i)})
	}
	f.fail(snapshots[1].ID, "")
	for i, o := range f.apply(results...) {
		if late := i/2 == 1; o.Err != nil || o.Late != late || o.Complete != (!late && i%2 == 0) {
			t.Fatalf("outcome %d: %+v", i, o)
		}
	}
	f.wantLocations(f.locate(1), index.Location{})
	for i, s := range snapshots {
		if i == 1 {
			continue
		}
		f.commit(s)
		if pages := f.pages(s, ""); len(pages) != 2 || contentOf(pages[0].Listing) != fmt.Sprint(i) {
			t.Fatalf("snapshot %d: pages %+v", i, pages)
		}
	}
}

// A result whose commit was not acknowledged is applied again: it is late, and nothing is counted
// twice. The same holds for a result of a snapshot that has ended.
func testAppliedThenError(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a")
	p := packOf(s, 1)
	root := SliceOf(backup.WalkTask{Job: backup.Job{Snapshot: s.ID}, ID: 1, Attempt: 1})
	result := index.Result{Batch: storedOf(batches[0], p.Pack)}
	result.Batch.Counts.Files = 5
	// Also twice in one call.
	if o := f.apply(index.Result{Pack: p}, result, result, index.Result{Pack: p}); o[1].Err != nil || !o[1].Complete || o[2] != (index.Outcome{Late: true}) {
		t.Fatalf("%+v, want the first accepted and the second late", o)
	}
	for _, ended := range []func(){func() {}, func() { f.commit(s) }} {
		ended()
		before := f.snapshot(s.ID)
		o := f.apply(result, result, index.Result{Slice: root})
		for i := range o {
			if o[i] != (index.Outcome{Late: true}) {
				t.Fatalf("%+v, want all late", o)
			}
		}
		if after := f.snapshot(s.ID); !reflect.DeepEqual(after, before) {
			t.Fatalf("snapshot %+v, want it as before: %+v", after, before)
		}
	}
	if o := f.apply(index.Result{Pack: p})[0]; o != (index.Outcome{Late: true}) {
		t.Fatalf("%+v of a pack for a committed snapshot, want it late", o)
	}
	f.wantRows("packs", 1)
	f.wantRows("chunks", 1)
	unknown := *p
	unknown.Snapshot = backup.NewSnapshotID()
	if o := f.apply(index.Result{Pack: &unknown})[0]; o != (index.Outcome{Late: true}) {
		t.Fatalf("%+v of a pack for no snapshot, want it late", o)
	}
	if outcomes, err := f.x.Apply(f.ctx, nil); err != nil || len(outcomes) != 0 {
		t.Fatalf("%v, %v of nothing", outcomes, err)
	}
}

// Only a running and complete snapshot is committed, and only once.
func testCommit(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	complete := func(want ...backup.SnapshotID) {
		t.Helper()
		got, err := f.x.CompleteSnapshots(f.ctx, nil)
		f.must(err)
		if len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
			t.Fatalf("complete: %v, want %v", got, want)
		}
	}
	complete()
	f.wants(f.x.Commit(f.ctx, s.ID, backup.Segment{}, backup.PageSet{}, f.now), backup.ErrNotFound)
	r := SliceOf(f.claimTask(s))
	r.Pages, r.Batches = []backup.PageVersion{pageOf("", "root")}, reads([][]backup.PageVersion{{pageOf("b", "b")}})
	f.accept(index.Result{Slice: r})
	complete()
	f.wants(f.x.Commit(f.ctx, s.ID, backup.Segment{}, backup.PageSet{}, f.now), backup.ErrNotFound)
	f.accept(index.Result{Batch: storedOf(f.claimBatch(s))})
	complete(s.ID)
	if got, err := f.x.CompleteSnapshots(f.ctx, []backup.SnapshotID{backup.NewSnapshotID()}); err != nil || len(got) != 0 {
		t.Fatalf("complete: %v, %v", got, err)
	}
	// It is not visible before the commit point.
	for _, err := range f.x.Pages(f.ctx, s.ID, "") {
		f.wants(err, backup.ErrNotFound)
	}
	f.commit(s)
	complete()
	if got := f.snapshot(s.ID); got.State != backup.Committed || got.Committed.IsZero() || !got.Complete() {
		t.Fatalf("snapshot %+v", got)
	}
	f.wantPaths(f.pages(s, ""), "", "b")
	f.wants(f.x.Commit(f.ctx, s.ID, backup.Segment{}, backup.PageSet{}, f.now), backup.ErrNotFound)
	f.wants(f.x.Fail(f.ctx, s.ID, "", f.now), backup.ErrNotFound)
	f.wants(f.x.Commit(f.ctx, backup.NewSnapshotID(), backup.Segment{}, backup.PageSet{}, f.now), backup.ErrNotFound)
	f.wants(f.x.Fail(f.ctx, backup.NewSnapshotID(), "", f.now), backup.ErrNotFound)
	failed := f.begin()
	f.must(f.x.Fail(f.ctx, failed.ID, "first", f.now))
	f.wants(f.x.Fail(f.ctx, failed.ID, "second", f.now), backup.ErrNotFound)
	if got := f.snapshot(failed.ID); got.Reason != "first" {
		t.Errorf("reason %q", got.Reason)
	}
}

// A failed snapshot leaves pages exactly as they were, and keeps its counts.
func testFail(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitPages(pageOf("", "1"), pageOf("a", "1"), pageOf("a/b", "1"), pageOf("c", "1"))
	second := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOf("c", "2")}
		r.Removed = []string{"a/b"}
	})
	f.commit(second)
	before, earlier := f.pages(second, ""), f.pages(first, "")
	for range 2 { // one failure after the other
		s := f.walk(func(r *backup.SliceWalked) {
			r.Pages = []backup.PageVersion{pageOf("", "3"), pageOf("new", "3"), pageOf("a/b", "3"), pageOf("c", "1")}
			r.Removed = []string{"a"}
			r.Ended = []backup.PageName{{Path: "c"}}
			r.Batches = reads([][]backup.PageVersion{{pageOf("b", "b")}})
			r.Children = children([][]string{{"x"}})
			r.Counts.Files = 3
			r.Problems = []backup.Problem{{Path: "p"}}
		})
		f.fail(s.ID, "the power went")
		f.wants(f.x.Fail(f.ctx, s.ID, "again", f.now), backup.ErrNotFound) // the first reply was lost
		got := f.snapshot(s.ID)
		if got.State != backup.Failed || got.Reason != "the power went" || got.Counts.Files != 3 || got.Counts.Errors != 1 {
			t.Fatalf("snapshot %+v", got)
		}
		f.now = f.now.Add(24 * 3600e9)
		if tasks, batches := f.claimTasks(s), f.claimBatches(s); len(tasks)+len(batches) > 0 {
			t.Fatalf("claimed %+v and %+v of a failed snapshot", tasks, batches)
		}
		for _, err := range f.x.Changes(f.ctx, s.ID) {
			f.wants(err, backup.ErrNotFound)
		}
		if pages, old := f.pages(second, ""), f.pages(first, ""); !reflect.DeepEqual(pages, before) || !reflect.DeepEqual(old, earlier) {
			t.Fatalf("pages %+v and %+v, want %+v and %+v", pages, old, before, earlier)
		}
	}
	// The next one is based on the last that was committed.
	last := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("a", "5")} })
	f.commit(last)
	f.wantPaths(f.pages(last, ""), "", "a", "c")
	if got := f.pages(last, "c"); contentOf(got[0].Listing) != "2" || last.Base != 2 || last.Number != 5 {
		t.Fatalf("page %+v of snapshot %d on %d", got, last.Number, last.Base)
	}
}

func testProblems(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.walk(func(r *backup.SliceWalked) {
		r.Problems = []backup.Problem{{Path: "b\xff", Op: "open", Err: "bad\xff\x00byte"}, {Path: "a", Op: strings.Repeat("o", 1000), Err: strings.Repeat("e", 1<<20)}}
		r.Counts.Errors = 1 // fewer than there are
		r.Children = children([][]string{{"many"}})
	})
	problems := func() (list []backup.Problem) {
		for p, err := range f.x.Problems(f.ctx, s.ID) {
			f.must(err)
			list = append(list, p)
		}
		return list
	}
	got := problems()
	if len(got) != 2 || got[0].Path != "a" || len(got[0].Op) != 64 || got[1] != (backup.Problem{Path: "b\xff", Op: "open", Err: "bad\uFFFD\uFFFDbyte"}) {
		t.Fatalf("problems %.300q", got)
	}
	r := SliceOf(f.claimTask(s))
	r.Problems = make([]backup.Problem, 12_000)
	for i := range r.Problems {
		r.Problems[i] = backup.Problem{Path: fmt.Sprintf("many/%06d", i), Op: "stat", Err: "no"}
	}
	f.accept(index.Result{Slice: r})
	if n := len(problems()); n != 10_000 || f.snapshot(s.ID).Counts.Errors != 12_002 {
		t.Fatalf("%d problems stored, %d counted; want 10,000 and 12,002", n, f.snapshot(s.ID).Counts.Errors)
	}
}
