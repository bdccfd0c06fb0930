package indextest

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func testClaims(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	pages := [][]backup.PageVersion{{pageOf("x", "wanted"), pageOf("y\xff", "")}, {pageOf("z", "wanted")}}
	pages[0][1].Key, pages[0][1].Listing = 1<<62, []byte{}
	s := f.walk(func(r *backup.SliceWalked) {
		r.Children = children([][]string{{"a", "b\xff"}, {"c"}, {"d"}})
		r.Children[0].Mounts = []string{"a", "m\xff"}
		r.Batches = reads(pages)
		r.Batches[0].Mounts = []string{"a", "b\xff"}
	})
	c := f.claim(s)
	c.Limit = 2
	first, err := f.x.ClaimTasks(f.ctx, c)
	f.must(err)
	if len(first) != 2 || !reflect.DeepEqual(first[0].Directories, []string{"a", "b\xff"}) || !reflect.DeepEqual(first[0].Mounts, []string{"a", "m\xff"}) || first[1].Mounts != nil || first[0].Generation != 1 || first[0].Attempt != 1 {
		t.Fatalf("claimed %+v, want the two oldest", first)
	}
	third := f.claimTask(s)
	if !reflect.DeepEqual(third.Directories, []string{"d"}) || !third.Scarce {
		t.Fatalf("claimed %+v, want the third", third)
	}
	batches := f.claimBatches(s)
	if len(batches) != 2 || !reflect.DeepEqual(batches[0].Pages, pages[0]) || !reflect.DeepEqual(batches[1].Pages, pages[1]) || !reflect.DeepEqual(batches[0].Mounts, []string{"a", "b\xff"}) || !reflect.DeepEqual(batches[0].Job, third.Job) {
		t.Fatalf("claimed %+v, want %+v", batches, pages)
	}
	f.wantLeased(f.now, 3, 2)
	if again := f.claimTasks(s); len(again) != 0 {
		t.Fatalf("claimed %+v again", again)
	}

	// A lease that is extended runs longer than the others.
	f.must(f.x.Extend(f.ctx, []index.Held{
		{Snapshot: s.ID, Task: third.ID}, {Snapshot: s.ID, Task: 4711}, {Snapshot: s.ID, Batch: batches[0].ID},
		// A caller that has guessed the numbers does not know the snapshot.
		{Task: first[0].ID}, {Snapshot: backup.NewSnapshotID(), Task: first[1].ID}, {Snapshot: backup.NewSnapshotID(), Batch: batches[1].ID}, {Snapshot: backup.NewSnapshotID(), Task: third.ID},
	}, time.Hour, f.now))
	f.now = f.now.Add(time.Minute)
	f.wantLeased(f.now, 1, 1)
	again := f.claimTasks(s)
	if len(again) != 2 || again[0].ID != first[0].ID || again[0].Attempt != 2 {
		t.Fatalf("claimed %+v, want the first two again", again)
	}
	if got := f.claimBatch(s); got.ID != batches[1].ID || got.Attempt != 2 {
		t.Fatalf("claimed %+v, want the second batch again", got)
	}

	// The workers are known to be gone.
	f.must(f.x.ExpireLeases(f.ctx, s.ID))
	f.wantLeased(f.now, 0, 0)
	if tasks, batches := f.claimTasks(s), f.claimBatches(s); len(tasks) != 3 || len(batches) != 2 || tasks[0].Attempt != 3 {
		t.Fatalf("claimed %+v and %+v, want all", tasks, batches)
	}
}

func (f *fixture) wantLeased(now time.Time, wantTasks, wantBatches int) {
	f.Helper()
	tasks, batches := 0, 0
	work, err := f.x.InHand(f.ctx, now, 1000)
	f.must(err)
	for _, w := range work {
		if w.Task != 0 {
			tasks++
		} else {
			batches++
		}
	}
	if tasks != wantTasks || batches != wantBatches {
		f.Fatalf("%d tasks and %d batches have a lease, want %d and %d", tasks, batches, wantTasks, wantBatches)
	}
}

func testClaimsOfSnapshots(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.begin()
	f.shard = f.newShard("filer", "other")
	second := f.begin()
	claim := func(of []backup.SnapshotID) []backup.WalkTask {
		tasks, err := f.x.ClaimTasks(f.ctx, index.Claim{Snapshots: of, Lease: time.Minute, Limit: 10, Now: f.now})
		f.must(err)
		return tasks
	}
	if tasks := claim([]backup.SnapshotID{}); len(tasks) != 0 {
		t.Fatalf("claimed %+v of no snapshot", tasks)
	}
	if tasks := claim([]backup.SnapshotID{second.ID}); len(tasks) != 1 || tasks[0].Job.Snapshot != second.ID {
		t.Fatalf("claimed %+v, want the second snapshot's", tasks)
	}
	if tasks := claim(nil); len(tasks) != 1 || tasks[0].Job.Snapshot != first.ID {
		t.Fatalf("claimed %+v, want what is left: the first snapshot's", tasks)
	}
	f.fail(first.ID, "")
	f.now = f.now.Add(time.Hour)
	if tasks := claim(nil); len(tasks) != 1 || tasks[0].Job.Snapshot != second.ID {
		t.Fatalf("claimed %+v, want nothing of a snapshot that has failed", tasks)
	}
}

// Concurrent claims, also in two processes, never return the same attempt.
func testConcurrentClaims(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	const total = 300
	s := f.walk(func(r *backup.SliceWalked) {
		for i := range total {
			r.Children = append(r.Children, backup.Child{Directories: []string{fmt.Sprint(i)}})
		}
	})
	other := f.db.Open()
	var lock sync.Mutex
	claimed := map[backup.TaskID]int{}
	var group errgroup.Group
	for i := range 6 {
		x := f.x
		if i%2 == 0 {
			x = other
		}
		group.Go(func() error {
			for {
				c := f.claim(s)
				c.Limit = 7
				tasks, err := x.ClaimTasks(f.ctx, c)
				if err != nil {
					return err
				}
				lock.Lock()
				for _, task := range tasks {
					claimed[task.ID]++
				}
				done := len(claimed) == total
				lock.Unlock()
				if done {
					return nil
				}
			}
		})
	}
	f.must(group.Wait())
	for id, n := range claimed {
		if n != 1 {
			t.Fatalf("task %d was claimed %d times", id, n)
		}
	}
}

// The first attempt that commits wins. Only its batches and children count (I3).
func testLateAttempts(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	first := f.claimTask(s)
	f.now = f.now.Add(time.Hour)
	second := f.claimTask(s)
	if first.ID != second.ID || second.Attempt != 2 {
		t.Fatalf("claimed %+v, want another attempt at task %d", second, first.ID)
	}
	won := SliceOf(first) // its lease has run out, but it is the first to arrive
	won.Pages = []backup.PageVersion{pageOf("", "won")}
	won.Children = children([][]string{{"won"}})
	won.Counts = backup.Counts{Files: 1}
	lost := SliceOf(second)
	lost.Pages = []backup.PageVersion{pageOf("", "lost"), pageOf("lost", "")}
	lost.Children = children([][]string{{"lost"}})
	lost.Batches = reads([][]backup.PageVersion{{pageOf("lost", "")}})
	lost.Counts = backup.Counts{Files: 100}

	forged := SliceOf(second)
	forged.Attempt = 3
	if o := f.apply(index.Result{Slice: forged})[0]; o.Late {
		t.Fatalf("%+v of an attempt that was never made", o)
	} else {
		f.wants(o.Err, backup.ErrInvalid)
	}
	if o := f.accept(index.Result{Slice: won})[0]; !o.Announced || o.Complete {
		t.Fatalf("%+v, want new work announced", o)
	}
	for range 2 { // however often it arrives, and the winner's own result again too
		for _, r := range []*backup.SliceWalked{lost, won} {
			if o := f.apply(index.Result{Slice: r})[0]; o != (index.Outcome{Late: true}) {
				t.Fatalf("%+v of attempt %d, want it late", o, r.Attempt)
			}
		}
	}
	child := f.claimTask(s)
	if len(f.claimBatches(s)) != 0 || !reflect.DeepEqual(child.Directories, []string{"won"}) {
		t.Fatalf("claimed %+v, want the winner's child alone", child)
	}
	if o := f.accept(index.Result{Slice: SliceOf(child)})[0]; !o.Complete || o.Announced {
		t.Fatalf("%+v of the last task, want the snapshot complete", o)
	}
	f.commit(s)
	f.wantPaths(f.pages(s, ""), "")
	if got := f.snapshot(s.ID); got.Counts.Files != 1 || got.TasksAnnounced != 2 || got.TasksSettled != 2 || got.BatchesAnnounced != 0 {
		t.Fatalf("snapshot %+v, want the winner's counts", got)
	}
}

func testParts(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	losing := f.claimTask(s)
	f.now = f.now.Add(time.Hour)
	winning := f.claimTask(s)
	parts := func(task backup.WalkTask, name string) []index.Result {
		var list []index.Result
		for i := range 3 {
			r := SliceOf(task)
			r.Part, r.Last = int32(i), i == 2
			path := fmt.Sprint(name, i)
			r.Pages = []backup.PageVersion{pageOf(path, "page")}
			r.Ended = []backup.PageName{{Path: path, Key: 9}}
			r.Removed = []string{path + "/gone\xff"}
			r.Batches = reads([][]backup.PageVersion{{pageOf(path+"/batch", "b")}})
			r.Children = children([][]string{{path + "/child", path + "/other"}})
			r.Counts = backup.Counts{Files: 1, Bytes: 1 << 40, WalkSeconds: 0.5}
			r.Problems = []backup.Problem{{Path: path + "\xff", Op: "open", Err: "permission denied"}}
			list = append(list, index.Result{Slice: r})
		}
		return list
	}
	lost, won := parts(losing, "lost"), parts(winning, "won")

	f.accept(lost[0])
	f.wantRows("slice_parts", 1)
	f.wants(f.apply(lost[2])[0].Err, index.ErrPartMissing)
	f.wants(f.apply(won[2])[0].Err, index.ErrPartMissing)
	if got := f.snapshot(s.ID); got.TasksSettled != 0 || got.Counts.Files != 0 {
		t.Fatalf("snapshot %+v, want nothing accepted", got)
	}
	// The same attempt, walked by another worker: its parts do not fit the others.
	other := parts(winning, "other")
	for _, r := range other {
		r.Slice.Run = 7
	}
	f.accept(other[0])
	f.accept(won[1])
	f.wants(f.apply(won[2])[0].Err, index.ErrPartMissing)
	f.wants(f.apply(other[2])[0].Err, index.ErrPartMissing)
	// Out of order, twice, and the last with another in one call.
	f.accept(won[1])
	f.accept(won[1])
	if o := f.accept(won[0], won[2]); o[0].Announced || !o[1].Announced || o[1].Complete {
		t.Fatalf("%+v, want the work announced by the last part", o)
	}
	for _, late := range append(slices.Clone(lost), won...) {
		if o := f.apply(late)[0]; o != (index.Outcome{Late: true}) {
			t.Fatalf("%+v of a part that comes afterwards, want it late", o)
		}
	}
	f.wantRows("slice_parts", 0) // the loser's parts are removed as well
	children, batches := f.claimTasks(s), f.claimBatches(s)
	if len(children) != 3 || !reflect.DeepEqual(children[0].Directories, []string{"won0/child", "won0/other"}) || len(batches) != 3 {
		t.Fatalf("claimed %+v and %+v, want the winner's", children, batches)
	}
	for _, child := range children {
		f.accept(index.Result{Slice: SliceOf(child)})
	}
	for _, batch := range batches {
		f.accept(index.Result{Batch: storedOf(batch)})
	}
	f.commit(s)
	f.wantPaths(f.pages(s, ""), "won0", "won0/batch", "won1", "won1/batch", "won2", "won2/batch")
	if got := f.snapshot(s.ID).Counts; got != (backup.Counts{Files: 3, Bytes: 3 << 40, WalkSeconds: 1.5, Errors: 3}) {
		t.Fatalf("counts %+v", got)
	}
}

// Many committers receive the same results, each several times and in another order. The snapshot
// completes exactly once, with exact counts (I2, I4).
func testConcurrentApply(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	const width, committers = 24, 5
	s := f.walk(func(r *backup.SliceWalked) {
		for i := range width {
			r.Children = append(r.Children, backup.Child{Directories: []string{fmt.Sprint(i)}})
		}
		r.Counts.Directories = 1
	})
	var results []index.Result
	for i, task := range f.claimTasks(s) {
		r := SliceOf(task)
		r.Pages = []backup.PageVersion{pageOf(task.Directories[0], "x")}
		r.Batches = reads([][]backup.PageVersion{{pageOf(fmt.Sprint("batch", i), "y")}})
		r.Counts = backup.Counts{Directories: 1, Files: 10}
		results = append(results, index.Result{Slice: r})
	}
	complete := f.applyEverywhere(results, committers)
	if complete != 0 {
		t.Fatalf("complete %d times with open batches", complete)
	}
	// All packs have some chunks in common.
	results = nil
	packs := make([]*backup.PackStored, width)
	for i, batch := range f.claimBatches(s) {
		p := packOf(s, 1, 2, 3, 100+i, 101+i)
		packs[i] = p
		r := storedOf(batch, p.Pack)
		r.Counts.NewBytes = 7
		results = append(results, index.Result{Pack: p}, index.Result{Batch: r})
	}
	if complete = f.applyEverywhere(results, committers); complete != 1 {
		t.Fatalf("complete %d times, want once", complete)
	}
	got := f.snapshot(s.ID)
	if got.TasksAnnounced != width+1 || got.TasksSettled != width+1 || got.BatchesAnnounced != width || got.BatchesSettled != width ||
		got.Counts != (backup.Counts{Directories: width + 1, Files: 10 * width, NewBytes: 7 * width}) {
		t.Fatalf("snapshot %+v", got)
	}
	f.commit(s)
	if pages := f.pages(s, ""); len(pages) != 2*width {
		t.Fatalf("%d pages, want %d", len(pages), 2*width)
	}
	// No place is lost, in any order: the last live pack has the chunks of all.
	f.wantRows("chunks", 3+width+1)
	f.wantRows("chunk_copies", 5*width-(3+width+1))
	for i, p := range packs {
		for n, l := range f.locate(1, 2, 3) {
			if !slices.ContainsFunc(packs[i:], func(p *backup.PackStored) bool { return at(p, n) == l }) {
				t.Fatalf("with %d packs condemned, chunk %d is at %+v", i, n+1, l)
			}
		}
		f.befall(p, condemned)
	}
}

// applyEverywhere makes each committer apply all results, three at a time, until none has to be
// delivered again. It returns how often the snapshot became complete.
func (f *fixture) applyEverywhere(results []index.Result, committers int) int {
	f.Helper()
	var lock sync.Mutex
	complete := 0
	var group errgroup.Group
	for c := range committers {
		x := f.x
		if c%2 == 0 {
			x = f.db.Open()
		}
		group.Go(func() error {
			// Each in an order of its own. Results that must be delivered again go to the end.
			queue := append(slices.Clone(results[c*len(results)/committers:]), results...)
			if c%2 == 1 {
				slices.Reverse(queue)
			}
			for len(queue) > 0 {
				n := min(3, len(queue))
				outcomes, err := x.Apply(f.ctx, queue[:n])
				if err != nil {
					return err
				}
				for i, o := range outcomes {
					if o.Err != nil {
						queue = append(queue, queue[i])
					}
					if o.Complete {
						lock.Lock()
						complete++
						lock.Unlock()
					}
				}
				queue = queue[n:]
			}
			return nil
		})
	}
	f.must(group.Wait())
	return complete
}
