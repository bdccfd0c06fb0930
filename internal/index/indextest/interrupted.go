package indextest

import (
	"reflect"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// listInterrupted returns the content that failed snapshots have left of pages, "-" for a page
// without any.
func (f *fixture) listInterrupted(pages ...backup.PageName) []string {
	f.Helper()
	listings, err := f.x.InterruptedListings(f.ctx, f.shard.ID, pages)
	f.must(err)
	if len(listings) != len(pages) {
		f.Fatalf("%d listings of %d pages", len(listings), len(pages))
	}
	contents := make([]string, len(pages))
	for i := range listings {
		contents[i] = "-"
		if listings[i] != nil {
			contents[i] = contentOf(listings[i])
		}
	}
	return contents
}

func (f *fixture) wantInterrupted(want ...string) {
	f.Helper()
	names := []backup.PageName{{Path: "a"}, {Path: "a", Key: 7}, {Path: "b"}, {Path: "c"}, {Path: ""}}
	if got := f.listInterrupted(names...); !reflect.DeepEqual(got, want) {
		f.Fatalf("interrupted pages %q, want %q", got, want)
	}
}

// wantJobs claims all work of a snapshot, and checks its jobs.
func (f *fixture) wantJobs(s backup.Snapshot, interrupted bool) (tasks []backup.WalkTask, batches []backup.ReadBatch) {
	f.Helper()
	if f.snapshot(s.ID).Interrupted != interrupted || s.Interrupted != interrupted {
		f.Fatalf("snapshot %d is said to have content of interrupted ones: %t, want %t", s.Number, s.Interrupted, interrupted)
	}
	tasks, batches = f.claimTasks(s), f.claimBatches(s)
	for _, t := range tasks {
		if t.Job.Interrupted != interrupted {
			f.Fatalf("task %+v, want interrupted: %t", t, interrupted)
		}
	}
	for _, b := range batches {
		if b.Job.Interrupted != interrupted {
			f.Fatalf("batch %+v, want interrupted: %t", b, interrupted)
		}
	}
	return tasks, batches
}

// The content of failed snapshots is kept for those that follow, page by page, until one of the
// shard is committed.
func testInterrupted(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	second := pageOf("a", "a7")
	second.Key, second.Inode = 7, 0
	f.commitPages(pageOf("", "root"), pageOf("a", "a"), second, pageOf("c", "c"))

	// A snapshot that ends before it has pages leaves nothing.
	f.fail(f.begin().ID, "")
	s := f.begin()
	tasks, _ := f.wantJobs(s, false)
	// Pages of slices and of batches are kept. Ended, unchanged and unread pages are not.
	r := SliceOf(tasks[0])
	r.Pages = []backup.PageVersion{pageOf("a", "a of 3"), pageOf("", "root")}
	r.Ended = []backup.PageName{{Path: "c"}}
	r.Batches = reads([][]backup.PageVersion{{pageOf("b", "wanted")}, {pageOf("d", "wanted")}})
	f.accept(index.Result{Slice: r})
	stored := storedOf(f.claimBatches(s)[0])
	stored.Pages = []backup.PageVersion{pageOf("b", "b of 3")}
	f.accept(index.Result{Batch: stored})
	f.wantInterrupted("-", "-", "-", "-", "-") // the snapshot is running
	f.fail(s.ID, "")
	f.wantInterrupted("a of 3", "-", "b of 3", "-", "-")
	f.wants(f.x.Fail(f.ctx, s.ID, "again", f.now), backup.ErrNotFound)
	f.wantInterrupted("a of 3", "-", "b of 3", "-", "-")

	// The next snapshot's work is marked, the snapshot works with its own pages, and it leaves its
	// pages in place of the earlier ones. The failed one has its number minus 1.
	s = f.begin()
	tasks, _ = f.wantJobs(s, true)
	r = SliceOf(tasks[0])
	r.Pages = []backup.PageVersion{pageOf("a", "a of 4")}
	r.Removed = []string{"c"}
	r.Children, r.Batches = children([][]string{{"b"}}), reads([][]backup.PageVersion{{pageOf("e", "wanted")}})
	f.accept(index.Result{Slice: r})
	f.wantJobs(s, true)
	f.wantInterrupted("a of 3", "-", "b of 3", "-", "-")
	f.fail(s.ID, "")
	f.wantInterrupted("a of 4", "-", "b of 3", "-", "-")
	if got := f.snapshot(s.ID); got.Interrupted {
		t.Fatalf("%+v, want that one that has ended uses nothing", got)
	}

	// A failure without pages changes nothing of that, and neither does another shard.
	f.fail(f.begin().ID, "")
	f.wantInterrupted("a of 4", "-", "b of 3", "-", "-")
	home := f.shard
	f.shard = f.newShard("filer", "other")
	f.wantInterrupted("-", "-", "-", "-", "-")
	other := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("a", "another shard's")} })
	f.fail(other.ID, "")
	f.commitPages(pageOf("c", "another shard's"))
	f.wantInterrupted("-", "-", "-", "-", "-")
	f.fail(f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("b", "another shard's")} }).ID, "")
	f.shard = home
	f.wantInterrupted("a of 4", "-", "b of 3", "-", "-")

	// A commit removes all of them, whether or not it has carried them forward.
	last := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("c", "c of the last")} })
	f.commit(last)
	f.wantInterrupted("-", "-", "-", "-", "-")
	f.wantRows("interrupted_pages", 1) // that of the other shard
	f.wantPaths(f.pages(last, ""), "", "a", "a", "c")
	f.wantJobs(f.begin(), false)
	if listings, err := f.x.InterruptedListings(f.ctx, f.shard.ID, nil); err != nil || len(listings) != 0 {
		t.Fatalf("listings %q, %v of nothing", listings, err)
	}
}
