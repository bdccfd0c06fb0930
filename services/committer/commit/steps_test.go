package commit

import (
	"slices"

	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
)

// A stepIndex is an index that calls hooks before or after its steps.
type stepIndex struct {
	index.Index
	before, after func(step string) error
}

func (x *stepIndex) step(name string, do func() error) error {
	if x.before != nil {
		if err := x.before(name); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if x.after != nil {
		return x.after(name)
	}
	return nil
}

func (x *stepIndex) ClaimTasks(ctx context.Context, c index.Claim) (tasks []backup.WalkTask, err error) {
	err = x.step("claim tasks", func() error { tasks, err = x.Index.ClaimTasks(ctx, c); return err })
	return tasks, err
}

func (x *stepIndex) ClaimBatches(ctx context.Context, c index.Claim) (batches []backup.ReadBatch, err error) {
	err = x.step("claim batches", func() error { batches, err = x.Index.ClaimBatches(ctx, c); return err })
	return batches, err
}

func (x *stepIndex) Apply(ctx context.Context, results []index.Result) (outcomes []index.Outcome, err error) {
	err = x.step("apply", func() error { outcomes, err = x.Index.Apply(ctx, results); return err })
	return outcomes, err
}

func (x *stepIndex) ClaimCommit(ctx context.Context, id backup.SnapshotID, holder string, ttl time.Duration) (mine bool, err error) {
	err = x.step("claim commit", func() error { mine, err = x.Index.ClaimCommit(ctx, id, holder, ttl); return err })
	return mine, err
}

func (x *stepIndex) SetChurn(ctx context.Context, id backup.SnapshotID, score int64, alarm string) error {
	return x.step("set churn", func() error { return x.Index.SetChurn(ctx, id, score, alarm) })
}

func (x *stepIndex) Commit(ctx context.Context, id backup.SnapshotID, segment backup.Segment, pages backup.PageSet, now time.Time) error {
	return x.step("commit", func() error { return x.Index.Commit(ctx, id, segment, pages, now) })
}

func (x *stepIndex) Fail(ctx context.Context, id backup.SnapshotID, reason string, now time.Time) error {
	return x.step("fail", func() error { return x.Index.Fail(ctx, id, reason, now) })
}

func (x *stepIndex) Recorded(ctx context.Context, id backup.SnapshotID) error {
	return x.step("recorded", func() error { return x.Index.Recorded(ctx, id) })
}

func (x *stepIndex) NextCatalog(ctx context.Context, newest int64) (next int64, err error) {
	err = x.step("next catalog", func() error { next, err = x.Index.NextCatalog(ctx, newest); return err })
	return next, err
}

func (x *stepIndex) CatalogWritten(ctx context.Context, c index.WrittenCatalog) error {
	return x.step("catalog written", func() error { return x.Index.CatalogWritten(ctx, c) })
}

// A committer, its queues and its workers die together at each step, before it and after it. The
// next ones complete the snapshot, and each result counts once.
func TestCrashAtEachStep(t *testing.T) {
	directories := []string{"a", "b", "c"}
	for _, after := range []bool{false, true} {
		for _, n := range []int64{1, 2, 3, 5, 7, 9, 11, 13, 15} {
			crashed := false
			t.Run(fmt.Sprintf("after=%t/%d", after, n), func(t *testing.T) {
				f := newFixture(t)
				snap := f.begin()
				var steps atomic.Int64
				ctx, crash := context.WithCancel(f.ctx)
				at := func(string) error {
					if steps.Add(1) == n {
						crash()
					}
					return ctx.Err()
				}
				idx := &stepIndex{Index: f.idx, before: at}
				if after {
					idx = &stepIndex{Index: f.idx, after: at}
				}
				f.runUntil(ctx, crash, idx, directories)
				if crashed = f.snapshot(snap.ID).State == backup.Running; crashed {
					// Another process, and a queue that has lost all messages.
					ctx, stop := context.WithCancel(f.ctx)
					f.runUntil(ctx, stop, f.idx, directories)
				}
				f.wantDone(snap.ID, directories)
			})
			if !crashed {
				break
			}
		}
	}
}

// runUntil runs one committer with its workers until the snapshot has ended or ctx is done.
func (f *fixture) runUntil(ctx context.Context, stop func(), idx Index, directories []string) {
	f.Helper()
	conn, stopServer := f.queue()
	defer stopServer()
	s := f.service(idx, Options{Poll: 5 * time.Millisecond, OnEnd: func(backup.SnapshotID) { stop() }})
	s.times.lease = quick.lease
	// Finds that all messages are lost.
	if err := s.ensureStreams(ctx); err != nil && ctx.Err() == nil {
		f.Fatal(err)
	}
	wait := f.work(ctx, conn, directories...)
	watchdog := time.AfterFunc(within, func() { f.Error("it does not end"); stop() })
	defer watchdog.Stop()
	s.Run(ctx)
	wait()
}

func (f *fixture) wantDone(id backup.SnapshotID, directories []string) {
	f.Helper()
	s := f.snapshot(id)
	if s.State != backup.Committed || s.Counts.Files != int64(1+len(directories)) || s.TasksSettled != int64(1+len(directories)) || s.BatchesSettled != 1 {
		f.Errorf("snapshot %s (%s): %+v", s.State, s.Reason, s)
		return
	}
	want := map[backup.PageName]string{{}: "listing of "}
	for _, path := range directories {
		want[backup.PageName{Path: path}] = "listing of " + path
	}
	if got := f.pages(id); !maps.Equal(got, want) {
		f.Errorf("pages %v, want %v", got, want)
	}
}

// Any number of committers work concurrently; the index arbitrates.
func TestTwoCommitters(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	var directories []string
	for i := range 100 {
		directories = append(directories, fmt.Sprint("d", i))
	}
	ctx, stop := context.WithCancel(f.ctx)
	var ends atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		s := f.service(f.idx, Options{Poll: 5 * time.Millisecond, OnEnd: func(backup.SnapshotID) { ends.Add(1) }})
		all.Go(func() { s.Run(ctx) })
	}
	all.Go(f.work(ctx, conn, directories...))
	f.ended(snap.ID)
	stop()
	all.Wait()
	f.wantDone(snap.ID, directories)
	if n := ends.Load(); n != 1 {
		t.Errorf("the end was reported %d times", n)
	}
	if len(f.segments(snap.ID)) == 0 {
		t.Error("there is no segment")
	}
}

// A result that comes twice, or of an attempt that was superseded, changes nothing, even if it
// reports that the shard cannot be walked (I3).
func TestLateResultsChangeNothing(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	first := f.claimTask()
	f.must(f.idx.ExpireLeases(f.ctx, snap.ID))
	second := f.claimTask()
	ctx, stop := context.WithCancel(f.ctx)
	var all sync.WaitGroup
	s := f.service(f.idx, Options{Poll: time.Hour})
	_, err := conn.EnsureStreams(f.ctx, []string{backup.DefaultSite})
	f.must(err)
	all.Go(func() { s.Run(ctx) })
	defer all.Wait()
	defer stop()

	wins := indextest.SliceOf(second)
	wins.Counts.Files, wins.Pages, wins.Children = 1, []backup.PageVersion{pageOf("", "second")}, []backup.Child{{Directories: []string{"left"}}}
	f.must(flow.Publish(f.ctx, conn, flow.Slices, wins))
	late := indextest.SliceOf(first)
	late.Counts.Files, late.Pages = 5, []backup.PageVersion{pageOf("", "first")}
	f.until(func() bool { return f.snapshot(snap.ID).TasksSettled == 1 })
	f.must(flow.Publish(f.ctx, conn, flow.Slices, late))
	f.must(flow.Publish(f.ctx, conn, flow.Slices, wins))
	failed := indextest.SliceOf(first)
	failed.Failed = "the root is not there"
	f.must(flow.Publish(f.ctx, conn, flow.Slices, failed))

	children := make(chan *backup.WalkTask, 1)
	all.Go(func() {
		conn.ConsumeWalk(ctx, backup.DefaultSite, 1, func(t *backup.WalkTask, d *flow.Delivery) { children <- t; d.Ack() })
	})
	last := indextest.SliceOf(*<-children)
	last.Counts.Files = 1
	f.must(flow.Publish(f.ctx, conn, flow.Slices, last))
	if got := f.ended(snap.ID); got.State != backup.Committed || got.Counts.Files != 2 {
		t.Errorf("%s (%s), %d files", got.State, got.Reason, got.Counts.Files)
	}
	if got := f.pages(snap.ID)[backup.PageName{}]; got != "second" {
		t.Errorf("the root's page is of the %s attempt", got)
	}
}

func TestShardThatCannotBeWalkedFails(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	task := f.claimTask()
	ctx, stop := context.WithCancel(f.ctx)
	ended := make(chan backup.SnapshotID, 1)
	s := f.service(f.idx, Options{OnEnd: func(id backup.SnapshotID) { ended <- id }})
	var all sync.WaitGroup
	all.Go(func() { s.Run(ctx) })
	defer all.Wait()
	defer stop()
	failed := indextest.SliceOf(task)
	failed.Failed = "the root is not there"
	f.until(func() bool { return flow.Publish(f.ctx, conn, flow.Slices, failed) == nil })
	if id := <-ended; id != snap.ID {
		t.Errorf("%v has ended", id)
	}
	if got := f.snapshot(snap.ID); got.State != backup.Failed || got.Reason != failed.Failed {
		t.Errorf("%s: %q", got.State, got.Reason)
	}
}

func TestTooManyAttemptsFailTheSnapshot(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	_, err := conn.EnsureStreams(f.ctx, []string{backup.DefaultSite})
	f.must(err)
	snap := f.begin()
	for range maxAttempts {
		f.claimTask()
		f.must(f.idx.ExpireLeases(f.ctx, snap.ID))
	}
	f.must(f.service(f.idx, Options{}).dispatch(f.ctx))
	if got := f.snapshot(snap.ID); got.State != backup.Failed {
		t.Errorf("%s", got.State)
	}
}

// Work that could not be sent can be claimed by others at once.
func TestClaimsAreTakenBack(t *testing.T) {
	f := newFixture(t)
	f.queue() // without streams: nothing can be published
	f.begin()
	ctx, cancel := context.WithCancel(f.ctx)
	idx := &stepIndex{Index: f.idx, after: func(step string) error {
		if step == "claim tasks" {
			cancel() // the service is stopped between the claim and its sending
		}
		return nil
	}}
	if err := f.service(idx, Options{QueueLease: time.Hour}).dispatch(ctx); err == nil {
		t.Fatal("it was sent")
	}
	if task := f.claimTask(); task.Attempt != 2 {
		t.Errorf("attempt %d", task.Attempt)
	}
}

// While there are no queues nothing is claimed: an outage costs no attempts.
func TestOutageCostsNoAttempts(t *testing.T) {
	f := newFixture(t)
	_, stopServer := f.queue()
	f.begin()
	stopServer()
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	var all sync.WaitGroup
	failures := make(chan error, 100)
	s := f.service(f.idx, Options{Poll: time.Millisecond, OnRetry: func(err error) {
		select {
		case failures <- err:
		default:
		}
	}})
	all.Go(func() { s.dispatchLoop(ctx) })
	for range 3 {
		<-failures
	}
	stop()
	all.Wait()
	if task := f.claimTask(); task.Attempt != 1 {
		t.Errorf("attempt %d", task.Attempt)
	}
}

// Work assigned for other snapshots leaves room for those that a committer works for.
func TestQueueOfOthersLeavesRoom(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	_, err := conn.EnsureStreams(f.ctx, []string{backup.DefaultSite})
	f.must(err)
	f.begin()
	f.claimTask() // by a process that has died since
	f.shard = value(f.idx.EnsureShard(f.ctx, f.shard.Filer, "/other", "posix:///other"))(f)
	ours := f.begin()
	f.must(f.service(f.idx, Options{Queued: 1, Snapshots: []backup.SnapshotID{ours.ID}}).dispatch(f.ctx))
	work, err := f.idx.InHand(f.ctx, time.Now(), 10)
	if !slices.ContainsFunc(work, func(w index.Work) bool { return w.Snapshot == ours.ID }) || err != nil {
		t.Errorf("%+v is handed out, error %v", work, err)
	}
}

func (f *fixture) until(done func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, within)
	defer cancel()
	for !done() {
		if ctx.Err() != nil {
			f.Fatal("it does not come about")
		}
	}
}

// An announcing index announces one change, and then nothing more.
type announcing struct{ Index }

func (x announcing) ListenSnapshots(ctx context.Context, notify func()) error {
	notify()
	<-ctx.Done()
	return ctx.Err()
}

// An announcement of the index wakes the dispatcher and reaches the scheduler.
func TestAnnouncedSnapshots(t *testing.T) {
	f := newFixture(t)
	told := make(chan struct{}, 1)
	s := f.service(announcing{f.idx}, Options{OnSnapshot: func() { told <- struct{}{} }})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.listenLoop(ctx) }()
	<-told
	<-s.freed
	stop()
	<-ended
}
