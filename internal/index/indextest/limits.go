package indextest

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// open begins a snapshot of the fixture's shard with these numbers of open tasks and batches.
func (f *fixture) open(tasks, batches int) backup.Snapshot {
	f.Helper()
	s := f.begin()
	c := f.claim(s)
	claimed, err := f.x.ClaimTasks(f.ctx, c)
	f.must(err)
	if len(claimed) != 1 {
		f.Fatalf("claimed %d root tasks", len(claimed))
	}
	r := SliceOf(claimed[0])
	for i := range tasks {
		r.Children = append(r.Children, backup.Child{Directories: []string{fmt.Sprint(i)}})
	}
	for i := range batches {
		r.Batches = append(r.Batches, backup.PagesToRead{Pages: []backup.PageVersion{pageOf(fmt.Sprint(i), "")}})
	}
	f.accept(index.Result{Slice: r})
	return s
}

func (f *fixture) claimAny(c index.Claim) []backup.WalkTask {
	f.Helper()
	c.Lease, c.Now = time.Minute, f.now
	if c.Limit == 0 {
		c.Limit = 1000
	}
	tasks, err := f.x.ClaimTasks(f.ctx, c)
	f.must(err)
	return tasks
}

// perFiler counts tasks by filer.
func perFiler(tasks []backup.WalkTask) map[backup.FilerID]int {
	n := map[backup.FilerID]int{}
	for _, t := range tasks {
		n[t.Job.Filer]++
	}
	return n
}

func testLimits(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas", Limits: backup.Limits{WalkTasks: 3, ReadBatches: 2}, Compare: backup.CompareMtime})
	s := f.open(200, 200)
	tasks, batches := f.claimTasks(s), f.claimBatches(s)
	if len(tasks) != 3 || len(batches) != 2 {
		t.Fatalf("claimed %d tasks and %d batches, want 3 and 2", len(tasks), len(batches))
	}
	if tasks[0].Scarce {
		t.Fatal("200 tasks are open for three places, and one is said to be scarce")
	}
	if j := tasks[0].Job; j.Compare != backup.CompareMtime || j.Site != backup.DefaultSite || batches[0].Job.ReadBytesPerSecond != 0 {
		t.Fatalf("job %+v", j)
	}
	if more := f.claimTasks(s); len(more) != 0 {
		t.Fatalf("claimed %d more", len(more))
	}
	// Stalled work counts for the filer, and so does completed work until its result is accepted.
	f.must(f.x.Extend(f.ctx, []index.Held{{Snapshot: s.ID, Task: tasks[0].ID, Worker: "w", Stalled: true}}, time.Minute, f.now))
	f.accept(index.Result{Slice: SliceOf(tasks[1])})
	if more := f.claimTasks(s); len(more) != 1 {
		t.Fatalf("claimed %d more, want one in the place of the settled one", len(more))
	}

	// A changed limit applies from the next claim on. A limit of zero is the default.
	filer.Limits = backup.Limits{WalkTasks: 5}
	f.must(f.x.SetFiler(f.ctx, filer))
	if tasks, batches := f.claimTasks(s), f.claimBatches(s); len(tasks) != 2 || len(batches) != backup.DefaultReadBatches-2 {
		t.Fatalf("claimed %d tasks and %d batches, want 2 and %d", len(tasks), len(batches), backup.DefaultReadBatches-2)
	}
	// The governor's slots are below the limit, never above.
	f.now = f.now.Add(time.Hour)
	f.setLoad(filer.ID, backup.Load{WalkSlots: 2, ReadSlots: 1000})
	if tasks, batches := f.claimTasks(s), f.claimBatches(s); len(tasks) != 2 || len(batches) != backup.DefaultReadBatches {
		t.Fatalf("claimed %d tasks and %d batches, want 2 and %d", len(tasks), len(batches), backup.DefaultReadBatches)
	}
}

// setLoad sets a load as the governor does.
func (f *fixture) setLoad(id backup.FilerID, load backup.Load) {
	f.Helper()
	term, ok, err := f.x.Lead(f.ctx, "keeper", "test", time.Minute)
	f.must(err)
	if !ok {
		f.Fatal("another leads")
	}
	f.must(f.x.SetLoads(f.ctx, term, map[backup.FilerID]backup.Load{id: load}))
}

// A limit in bytes per second is shared by the batches that may be assigned.
func testByteShares(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas"})
	s := f.open(1, 100)
	for _, test := range []struct {
		bytes   int64
		limit   int
		slots   int
		batches int
		share   int64
	}{
		{1000, 0, 0, 1, 1000}, // one reads alone
		{9 << 20, 0, 0, 3, 3 << 20},
		{9 << 20, 2, 0, 2, 9 << 19},
		{9 << 20, 2, 1, 1, 9 << 20},
		{1 << 40, 7, 0, 7, (1 << 40) / 7},
		{1, 0, 0, 1, 1},
	} {
		filer.Limits = backup.Limits{ReadBytesPerSecond: test.bytes, ReadBatches: test.limit}
		f.must(f.x.SetFiler(f.ctx, filer))
		f.setLoad(filer.ID, backup.Load{ReadSlots: test.slots})
		f.now = f.now.Add(time.Hour)
		batches := f.claimBatches(s)
		if len(batches) != test.batches || batches[0].Job.ReadBytesPerSecond != test.share {
			t.Errorf("%+v: %d batches with %d bytes/s each", test, len(batches), batches[0].Job.ReadBytesPerSecond)
		}
		if task := f.claimTask(s); task.Job.ReadBytesPerSecond != 0 {
			t.Errorf("a walk task has a share of %d bytes/s", task.Job.ReadBytesPerSecond)
		}
	}
}

// If a limit changes, the batches that are being read share the new one. They share a lower one by
// their number, even if it allows fewer batches.
func testChangedByteShares(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	other := f.addFiler(backup.Filer{Name: "other", Limits: backup.Limits{ReadBytesPerSecond: 7000}})
	filer := f.addFiler(backup.Filer{Name: "nas"})
	s := f.open(0, 100)
	if n := len(f.claimBatches(s)); n != backup.DefaultReadBatches {
		t.Fatalf("%d batches", n)
	}
	shares := func(want int64) {
		t.Helper()
		got, err := f.x.ReadShares(f.ctx, []backup.FilerID{filer.ID, other.ID, 4711}, f.now)
		f.must(err)
		if len(got) != 2 || got[filer.ID] != want || got[other.ID] != 7000 {
			t.Errorf("shares %v, want %d and 7000", got, want)
		}
	}
	shares(0)
	for _, test := range []struct{ bytes, share int64 }{{64 << 20, 1 << 20}, {6400, 100}, {1, 1}, {1 << 40, 1 << 34}, {0, 0}, {6400, 100}} {
		filer.Limits.ReadBytesPerSecond = test.bytes
		f.must(f.x.SetFiler(f.ctx, filer))
		shares(test.share)
	}
	f.now = f.now.Add(time.Hour) // their leases have ended
	shares(6400)
	if got, err := f.x.ReadShares(f.ctx, nil, f.now); err != nil || len(got) != 0 {
		t.Errorf("shares %v of no filer, %v", got, err)
	}
}

// Filers take turns, regardless of their order, and the oldest work of each is first.
func testTurns(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var filers []backup.Filer
	for i := range 3 {
		filers = append(filers, f.addFiler(backup.Filer{Name: fmt.Sprint("nas", i)}))
		f.open(20, 0)
	}
	first := f.claimAny(index.Claim{Limit: 9})
	if n := perFiler(first); n[filers[0].ID] != 3 || n[filers[1].ID] != 3 || n[filers[2].ID] != 3 {
		t.Fatalf("claimed %v, want three of each", n)
	}
	for i, task := range first {
		if task.Job.Filer != filers[i%3].ID || task.Directories[0] != fmt.Sprint(i/3) {
			t.Fatalf("task %d is %q of filer %d, want them in turn", i, task.Directories, task.Job.Filer)
		}
	}
	// The filer with less assigned work is next.
	for _, task := range first {
		if task.Job.Filer == filers[2].ID {
			f.accept(index.Result{Slice: SliceOf(task)})
		}
	}
	if n := perFiler(f.claimAny(index.Claim{Limit: 3})); n[filers[2].ID] != 3 {
		t.Fatalf("claimed %v, want those of filer %d", n, filers[2].ID)
	}
}

// Queued bounds the work that is queued or in progress, not the work that waits for a filer.
func testQueued(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	slow := f.addFiler(backup.Filer{Name: "slow", Limits: backup.Limits{WalkTasks: 6}})
	f.open(20, 0)
	fine := f.addFiler(backup.Filer{Name: "fine"})
	f.open(20, 0)
	c := index.Claim{Queued: 8}
	tasks := f.claimAny(c)
	if n := perFiler(tasks); n[slow.ID] != 4 || n[fine.ID] != 4 || len(f.claimAny(c)) != 0 {
		t.Fatalf("claimed %v, want four of each and no more", n)
	}
	var held []index.Held
	for _, task := range tasks {
		if task.Job.Filer == slow.ID {
			held = append(held, index.Held{Snapshot: task.Job.Snapshot, Task: task.ID, Worker: "w", Stalled: true})
		}
	}
	f.must(f.x.Extend(f.ctx, held, time.Minute, f.now))
	// Four stall: there is room for four, of which the slow filer may have two.
	if n := perFiler(f.claimAny(c)); n[fine.ID] != 2 || n[slow.ID] != 2 {
		t.Fatalf("claimed %v, want two of each", n)
	}
	if n := perFiler(f.claimAny(index.Claim{Queued: 100})); n[slow.ID] != 0 || n[fine.ID] != 14 {
		t.Fatalf("claimed %v, want what is left of the fine one", n)
	}
	// Stalled work that continues counts again.
	for i := range held {
		held[i].Stalled = false
	}
	f.must(f.x.Extend(f.ctx, held, time.Minute, f.now))
	if more := f.claimAny(index.Claim{Queued: 20}); len(more) != 0 {
		t.Fatalf("claimed %d more", len(more))
	}
}

// A site without workers keeps its share, and no more: the other sites continue.
func testSites(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.must(f.x.RetireFiler(f.ctx, f.shard.Filer, "tester"))
	dead := f.addFiler(backup.Filer{Name: "dead", Site: "dead"})
	f.open(100, 0)
	c := index.Claim{Queued: 20, Limit: 1000}
	// The only site gets everything.
	if tasks := f.claimAny(c); len(tasks) != 20 || tasks[0].Job.Site != "dead" {
		t.Fatalf("claimed %d tasks, want 20", len(tasks))
	}
	f.now = f.now.Add(time.Hour)
	// As soon as there is another one, it leaves room for that.
	live := f.addFiler(backup.Filer{Name: "live", Site: "live"})
	if tasks := f.claimAny(c); len(tasks) != 10 {
		t.Fatalf("claimed %d tasks, want 10", len(tasks))
	}
	f.open(100, 0)
	if n := perFiler(f.claimAny(c)); n[live.ID] != 10 || n[dead.ID] != 0 {
		t.Fatalf("claimed %v, want ten of the site that lives", n)
	}
	// A third site with work gets its share when some work is settled.
	third := f.addFiler(backup.Filer{Name: "third", Site: "third"})
	f.now = f.now.Add(time.Hour)
	f.begin()
	if n := perFiler(f.claimAny(c)); n[live.ID] != 6 || n[dead.ID] != 6 || n[third.ID] != 1 {
		t.Fatalf("claimed %v, want an even share of each", n)
	}
}

// Many claim at the same time while work is settled and stalls, and no bound is ever exceeded.
func testConcurrentLimits(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	const claimers, queued, each = 6, 14, 60
	limits := map[backup.FilerID]int{}
	for i, limit := range []int{2, 5, 11} {
		filer := f.addFiler(backup.Filer{Name: fmt.Sprint("nas", i), Limits: backup.Limits{WalkTasks: limit}})
		limits[filer.ID] = limit
		f.open(each, 0)
	}
	var lock sync.Mutex
	hand := map[backup.FilerID]int{}
	total, done, ever := 0, 0, 0
	var group errgroup.Group
	for i := range claimers {
		x := f.x
		if i%2 == 0 {
			x = f.db.Open()
		}
		group.Go(func() error {
			for {
				tasks, err := x.ClaimTasks(f.ctx, index.Claim{Lease: time.Minute, Queued: queued, Limit: 4 + i, Now: f.now})
				if err != nil {
					return err
				}
				lock.Lock()
				for _, task := range tasks {
					hand[task.Job.Filer]++
					if total++; hand[task.Job.Filer] > limits[task.Job.Filer] || total > queued {
						err = fmt.Errorf("%d tasks of filer %d in hand, %d in all", hand[task.Job.Filer], task.Job.Filer, total)
					}
				}
				ever = max(ever, total)
				lock.Unlock()
				if err != nil {
					return err
				}
				for _, task := range tasks {
					// Subtracted before it is settled, so never too late.
					lock.Lock()
					hand[task.Job.Filer]--
					total--
					done++
					lock.Unlock()
					if _, err := x.Apply(f.ctx, []index.Result{{Slice: SliceOf(task)}}); err != nil {
						return err
					}
				}
				lock.Lock()
				finished := done == len(limits)*each
				lock.Unlock()
				if finished {
					return nil
				}
			}
		})
	}
	f.must(group.Wait())
	if ever < 2 {
		t.Fatal("never two at once: this tests nothing")
	}
}

// Work that stalls forever keeps its slot and its lease as long as its worker lives.
func testExtend(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.open(2, 1)
	c := f.claim(s)
	c.Lease = time.Hour // in the queue
	tasks, err := f.x.ClaimTasks(f.ctx, c)
	f.must(err)
	batch := f.claimBatch(s)
	inHand := func() map[backup.TaskID]index.Work {
		work, err := f.x.InHand(f.ctx, f.now, 100)
		f.must(err)
		byTask := map[backup.TaskID]index.Work{}
		for _, w := range work {
			byTask[w.Task] = w
		}
		return byTask
	}
	first := tasks[0].ID
	if w := inHand()[first]; w.Worker != "" || w.Path != "" || !w.Stalled.IsZero() || !w.Until.Equal(f.now.Add(time.Hour)) || w.Attempt != 1 || w.Snapshot != s.ID {
		t.Fatalf("%+v, want that it is in the queue", w)
	}
	filer, err := f.x.EnsureFiler(f.ctx, "filer")
	f.must(err)
	filer.Site = "oslo"
	f.must(f.x.SetFiler(f.ctx, filer))
	for _, w := range inHand() { // of the tasks and the batch
		if w.Site != "oslo" {
			t.Fatalf("%+v, want the site of its filer", w)
		}
	}
	// A worker holds it: from then on that worker's lease counts, which is shorter.
	minute := f.now.Add(time.Minute)
	f.must(f.x.Extend(f.ctx, []index.Held{
		{Snapshot: s.ID, Task: first, Worker: "w1\x00\xff", Path: "a\x00\xff/b"}, {Snapshot: s.ID, Task: first, Worker: "w1"},
		{Snapshot: s.ID, Batch: batch.ID, Worker: "w2", Stalled: true},
	}, time.Minute, f.now))
	work := inHand()
	if w := work[first]; w.Worker == "" || !w.Until.Equal(minute) || !w.Stalled.IsZero() {
		t.Fatalf("%+v, want a lease of a minute", w)
	}
	if w := work[0]; w.Batch != batch.ID || w.Worker != "w2" || w.Stalled.IsZero() {
		t.Fatalf("%+v, want batch %d stalled", w, batch.ID)
	}
	since := work[0].Stalled
	f.must(f.x.Extend(f.ctx, []index.Held{
		{Snapshot: s.ID, Task: first, Worker: "w1", Path: "a\x00\xff/b"}, {Snapshot: s.ID, Batch: batch.ID, Worker: "w2", Stalled: true},
	}, time.Second, f.now)) // an old report that arrives late
	work = inHand()
	if w := work[first]; !w.Until.Equal(minute) || w.Path != "a\x00\xff/b" {
		t.Fatalf("%+v, want the later end, and the path", w)
	}
	if !work[0].Stalled.Equal(since) {
		t.Fatalf("%+v, want it stalled since %s", work[0], since)
	}
	f.must(f.x.Extend(f.ctx, []index.Held{{Snapshot: s.ID, Batch: batch.ID, Worker: "w2"}}, time.Minute, f.now))
	if w := inHand()[0]; !w.Stalled.IsZero() {
		t.Fatalf("%+v, want it to go on", w)
	}
	work1, err := f.x.InHand(f.ctx, f.now, 2)
	f.must(err)
	if len(work1) != 2 || work1[0].Task != first || work1[1].Task != tasks[1].ID {
		t.Fatalf("%+v, want the tasks", work1)
	}

	// Work that could not be sent, or whose worker is gone, can be claimed at once. Other work
	// cannot.
	before := inHand()
	of := func(task backup.TaskID, batch backup.BatchID, worker string) index.Held {
		return index.Held{Snapshot: s.ID, Task: task, Batch: batch, Worker: worker}
	}
	f.must(f.x.GiveBack(f.ctx, nil))
	f.must(f.x.GiveBack(f.ctx, []index.Held{
		of(4711, 0, ""), of(first, 0, "another"), of(0, batch.ID, "another"), of(0, batch.ID, ""), {Snapshot: backup.SnapshotID{1}, Task: tasks[1].ID},
	}))
	if !maps.Equal(inHand(), before) {
		t.Fatalf("%+v, want as before: %+v", inHand(), before)
	}
	f.must(f.x.GiveBack(f.ctx, []index.Held{of(first, 0, "w1"), of(first, 0, "w1"), of(0, batch.ID, "w2")}))
	if len(inHand()) != 1 {
		t.Fatalf("%+v, want the other task alone", inHand())
	}
	if again := f.claimTask(s); again.ID != first || again.Attempt != 2 || f.claimBatch(s).Attempt != 2 {
		t.Fatalf("%+v, want task %d again", again, first)
	}
	if w := inHand()[first]; w.Worker != "" || w.Path != "" {
		t.Fatalf("%+v, want it in the queue", w)
	}
}
