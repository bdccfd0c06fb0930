package commit

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/testenv"
)

// quick are the times of a keeper that a test can wait for.
var quick = times{term: 600 * time.Millisecond, renew: 100 * time.Millisecond, streams: 100 * time.Millisecond, strays: 50 * time.Millisecond, govern: 50 * time.Millisecond, note: 20 * time.Millisecond, record: 50 * time.Millisecond,
	lease: 300 * time.Millisecond,
}

// start runs a committer until the test ends or stop is called.
func (f *fixture) start(idx Index, o Options) (s *Service, stop func()) {
	f.Helper()
	s = f.service(idx, o)
	s.times = quick
	ctx, cancel := context.WithCancel(f.ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	f.Cleanup(stop)
	return s, stop
}

// deleteStreams deletes all streams with their messages, as a connection to a server in the process
// does when it ends.
func (f *fixture) deleteStreams() {
	f.Helper()
	value(flow.Connect(flow.Options{InProcess: f.nats, Memory: true}))(f).Close()
}

func (f *fixture) streamsAreThere() bool { return f.conn.HaveStreams(f.ctx) == nil }

// inHand returns the work that is assigned.
func (f *fixture) inHand() []index.Work {
	f.Helper()
	return value(f.idx.InHand(f.ctx, time.Now(), 1000))(f)
}

// A mortal index fails for one committer, which cannot renew its term any more.
type mortal struct {
	index.Index
	dead atomic.Bool
}

func (x *mortal) Lead(ctx context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	if x.dead.Load() {
		return index.Term{}, false, errPower
	}
	return x.Index.Lead(ctx, role, holder, ttl)
}

// One committer leads. One that cannot renew its term stops by itself, before the next one starts,
// which then maintains the streams.
func TestKeeperFailsOver(t *testing.T) {
	f := newFixture(t)
	f.queue()
	dying := &mortal{Index: f.idx}
	log := &testenv.Buffer{}
	first, _ := f.start(dying, Options{Worker: "one", Log: slog.New(slog.NewTextHandler(log, nil))})
	f.until(first.leading)
	f.until(f.streamsAreThere)
	second, stopSecond := f.start(f.idx, Options{Worker: "two"})
	dying.dead.Store(true)
	f.until(func() bool {
		leads := second.leading()
		if leads && first.leading() {
			f.Fatal("two lead")
		}
		return leads
	})
	f.until(func() bool {
		return strings.Contains(log.String(), "reason=\"the term could not be renewed: "+errPower.Error())
	})
	f.deleteStreams()
	f.until(f.streamsAreThere)

	// A leader that is stopped resigns: the next need not wait.
	dying.dead.Store(false)
	stopSecond()
	term, ok, err := f.idx.Lead(f.ctx, keeperRole, "somebody else", time.Hour)
	if err != nil || !ok && !first.leading() {
		f.until(first.leading)
		return
	}
	if ok && term.Epoch < 3 {
		t.Errorf("epoch %d of the third term", term.Epoch)
	}
}

// A snapshot was begun before the first committer of a fleet starts: it makes the streams, and
// warns of no loss.
func TestFirstStreamsAreNoLoss(t *testing.T) {
	f := newFixture(t)
	f.queue()
	f.begin()
	log := &testenv.Buffer{}
	f.start(f.idx, Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	f.until(func() bool { return f.streamsAreThere() && len(f.inHand()) == 1 })
	if strings.Contains(log.String(), "stream was missing") {
		t.Error(log.String())
	}
	f.deleteStreams()
	f.until(func() bool { return strings.Contains(log.String(), "stream was missing") })
}

// All streams are deleted during a run: the keeper makes them again, and their work is assigned
// again at once, not when its lease expires.
func TestStreamsAreDeletedInMidRun(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	f.start(f.idx, Options{QueueLease: time.Hour, Lease: time.Hour})
	f.until(func() bool { return len(f.inHand()) == 1 })
	f.deleteStreams()
	directories := []string{"a", "b"}
	ctx, stop := context.WithCancel(f.ctx)
	wait := f.work(ctx, conn, directories...)
	if got := f.ended(snap.ID); got.State != backup.Committed {
		t.Errorf("%s: %s", got.State, got.Reason)
	}
	stop()
	wait()
	f.wantDone(snap.ID, directories)
}

// Work that was assigned by a clock that was ahead, by two hours or by a year, is assigned again at
// once.
func TestWorkOfTheFutureIsHandedOut(t *testing.T) {
	for _, by := range []time.Duration{2 * time.Hour, 365 * 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) { testWorkOfTheFuture(t, by) })
	}
}

func testWorkOfTheFuture(t *testing.T, by time.Duration) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	ahead := index.Claim{Lease: time.Minute, Limit: 10, Now: time.Now().Add(by)}
	if n := len(value(f.idx.ClaimTasks(f.ctx, ahead))(f)); n != 1 {
		t.Fatalf("claimed %d tasks, want the first", n)
	}
	ctx, stop := context.WithCancel(f.ctx)
	wait := f.work(ctx, conn, "a")
	f.start(f.idx, Options{})
	if got := f.ended(snap.ID); got.State != backup.Committed {
		t.Errorf("%s: %s", got.State, got.Reason)
	}
	stop()
	wait()
	f.wantDone(snap.ID, []string{"a"})
}

// A site to which a filer is moved gets its queues, and the work goes there.
func TestWorkOfAnotherSite(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	f.start(f.idx, Options{})
	f.until(f.streamsAreThere)
	filer := value(f.idx.ListFilers(f.ctx, index.FilerFilter{}))(f)[0].Filer
	filer.Site = "berlin"
	f.must(f.idx.SetFiler(f.ctx, filer))
	f.begin()
	ctx, stop := context.WithCancel(f.ctx)
	var all sync.WaitGroup
	got := make(chan *backup.WalkTask, 1)
	all.Go(func() {
		conn.ConsumeWalk(ctx, "berlin", 1, func(t *backup.WalkTask, d *flow.Delivery) { got <- t; d.Ack() })
	})
	if task := <-got; task.Job.Site != "berlin" {
		t.Errorf("site %q", task.Job.Site)
	}
	stop()
	all.Wait()
}

// A worker's work in progress is recorded within about a second, with a lease that ends soon after
// the worker does, and so is the filer's latency.
func TestReportsAreWritten(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	const lease = time.Minute
	f.start(f.idx, Options{Lease: lease, QueueLease: time.Hour})
	f.until(func() bool { return len(f.inHand()) == 1 })
	task := f.inHand()[0]
	if task.Worker != "" || time.Until(task.Until) < lease {
		t.Fatalf("before a worker reported: %+v", task)
	}
	report := backup.Progress{Worker: "w1", Snapshot: snap.ID, Filer: snap.Filer.ID, Tasks: []backup.TaskID{task.Task}, Path: "a/b", Stats: 1000, StatSeconds: 2}
	tell := func(check func(index.Work, backup.Load) bool) {
		t.Helper()
		f.until(func() bool {
			f.must(conn.PublishProgress(&report))
			w := f.inHand()
			return len(w) == 1 && check(w[0], value(f.idx.ListFilers(f.ctx, index.FilerFilter{}))(f)[0].Load)
		})
	}
	tell(func(w index.Work, l backup.Load) bool {
		return w.Worker == "w1" && w.Path == "a/b" && w.Stalled.IsZero() && time.Until(w.Until) <= lease && l.WalkLatency > 0
	})
	report.StatSeconds, report.StalledTasks = 200, report.Tasks
	tell(func(w index.Work, l backup.Load) bool {
		return !w.Stalled.IsZero() && l.WalkLatency > 10*l.WalkIdle
	})
}

// Limits of a filer hold for any number of committers, and a change takes effect with the next
// claim.
func TestLimitsChangeWhileRunning(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	limit := func(tasks int) {
		t.Helper()
		filer := value(f.idx.ListFilers(f.ctx, index.FilerFilter{}))(f)[0].Filer
		filer.Limits.WalkTasks = tasks
		f.must(f.idx.SetFiler(f.ctx, filer))
	}
	limit(2)
	f.begin()
	task := f.claimTask()
	slice := indextest.SliceOf(task)
	for i := range 20 {
		slice.Children = append(slice.Children, backup.Child{Directories: []string{string(rune('a' + i))}})
	}
	f.apply(index.Result{Slice: slice})
	for range 2 {
		f.start(f.idx, Options{Poll: 10 * time.Millisecond, QueueLease: time.Hour})
	}
	var most atomic.Int64
	walking := make(chan *backup.WalkTask, 20)
	ctx, stop := context.WithCancel(f.ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() {
		conn.ConsumeWalk(ctx, "", 20, func(t *backup.WalkTask, d *flow.Delivery) { walking <- t; d.Ack() })
	})
	settle := func() {
		t.Helper()
		f.must(flow.Publish(f.ctx, conn, flow.Slices, indextest.SliceOf(*<-walking)))
	}
	handedOut := func(n int) {
		t.Helper()
		f.until(func() bool {
			now := len(f.inHand())
			most.Store(max(most.Load(), int64(now)))
			return now == n
		})
	}
	handedOut(2)
	for range 6 {
		settle() // each makes room for another
	}
	handedOut(2)
	if most.Load() > 2 {
		t.Errorf("%d were handed out, the limit was 2", most.Load())
	}
	limit(5)
	handedOut(5)
	limit(1)
	for range 4 {
		settle()
	}
	handedOut(1)
	if most.Load() > 5 {
		t.Errorf("%d were handed out, the limit was 5", most.Load())
	}
}

func TestCancelledSnapshotFails(t *testing.T) {
	f := newFixture(t)
	f.queue()
	snap := f.begin()
	ended := make(chan backup.SnapshotID, 1)
	f.must(f.idx.RequestCancel(f.ctx, snap.ID, "cancelled by ops"))
	f.start(f.idx, Options{OnEnd: func(id backup.SnapshotID) { ended <- id }})
	if id := <-ended; id != snap.ID {
		t.Errorf("%v has ended", id)
	}
	if got := f.snapshot(snap.ID); got.State != backup.Failed || got.Reason != "cancelled by ops" {
		t.Errorf("%s: %q", got.State, got.Reason)
	}
}

// A committer that is stopped finishes its current transaction.
func TestStopFinishesWhatIsInHand(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	task := f.claimTask()
	var stop func()
	idx := &stepIndex{Index: f.idx}
	stopped := make(chan struct{})
	idx.before = func(step string) error {
		if step == "apply" {
			go func() { stop(); close(stopped) }()
			<-f.stopping(idx)
		}
		return nil
	}
	_, stop = f.start(idx, Options{})
	f.until(f.streamsAreThere)
	f.must(flow.Publish(f.ctx, conn, flow.Slices, indextest.SliceOf(task)))
	<-stopped
	if got := f.snapshot(snap.ID); got.TasksSettled != 1 {
		t.Errorf("%d tasks are settled: the result was not applied", got.TasksSettled)
	}
}

// A call that hangs does not keep a committer from stopping.
func TestStopTimeout(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	f.begin()
	task := f.claimTask()
	hangs, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	idx := &stepIndex{Index: f.idx, before: func(step string) error {
		if step == "apply" {
			close(hangs)
			<-release
			return errors.New("it hung")
		}
		return nil
	}}
	_, stop := f.start(idx, Options{StopTimeout: 50 * time.Millisecond})
	f.until(f.streamsAreThere)
	f.must(flow.Publish(f.ctx, conn, flow.Slices, indextest.SliceOf(task)))
	<-hangs
	stop()
}

// stopping returns a channel that is closed soon after a started service was stopped: when it has
// resigned.
func (f *fixture) stopping(idx *stepIndex) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		for ctx := f.ctx; ctx.Err() == nil; {
			if _, ok, err := idx.Lead(ctx, keeperRole, "the test", time.Minute); err != nil || ok {
				return
			}
		}
	}()
	return c
}

// A batch that can never be read fails its snapshot.
func TestBatchThatCannotBeReadFails(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.walked(func(s *backup.SliceWalked) { s.Batches = toRead(pageOf("", "wanted")) })
	batches := value(f.idx.ClaimBatches(f.ctx, index.Claim{Lease: time.Hour, Limit: 1, Queued: 10, Now: time.Now()}))(f)
	f.start(f.idx, Options{})
	f.until(f.streamsAreThere)
	f.must(flow.Publish(f.ctx, conn, flow.Batches, &backup.BatchStored{Snapshot: snap.ID, Batch: batches[0].ID, Attempt: 1, Failed: "the source snapshot has expired"}))
	if got := f.ended(snap.ID); got.State != backup.Failed || got.Reason != "the source snapshot has expired" {
		t.Errorf("%s: %q", got.State, got.Reason)
	}
}
