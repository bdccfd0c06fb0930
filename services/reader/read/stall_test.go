package read

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/stall"
	"github.com/bctl/bctl/internal/testenv"
)

const within = time.Minute

// A told delivery reports to the test how it ended.
type told chan string

func (d told) Ack()                { d <- "acknowledged" }
func (d told) Retry(time.Duration) { d <- "handed back" }
func (d told) RetryLater()         { d <- "failed" }
func (d told) Stalled()            { d <- "stalled" }
func (told) Attempts() int         { return 1 }

func (told) Trace(ctx context.Context) context.Context { return ctx }

func (d told) wants(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-d:
		if got != want {
			t.Fatalf("the batch is %s, want %s", got, want)
		}
	case <-time.After(within):
		t.Fatalf("the batch is not %s", want)
	}
}

// otherFiler begins a snapshot of the same directory for another filer.
func (f *fixture) otherFiler(name string) *fixture {
	f.Helper()
	other := *f
	filer := must(f.idx.EnsureFiler(f.ctx, name))(f)
	other.shard = must(f.idx.EnsureShard(f.ctx, filer.ID, name, posix.URL(f.dir)))(f)
	return &other
}

// batchesOf is batchOf with one batch per directory.
func (f *fixture) batchesOf(paths ...string) (messages []*backup.ReadBatch) {
	f.Helper()
	var batches [][]backup.PageVersion
	f.begin()
	for _, path := range paths {
		batches = append(batches, f.pagesOf(path))
	}
	f.announce(batches...)
	for range batches {
		messages = append(messages, f.claim())
	}
	return messages
}

// packsStayOpen makes packs wait for more while a batch of their snapshot is being read.
func packsStayOpen(t *testing.T) {
	before := maxPackAge
	maxPackAge = time.Hour
	t.Cleanup(func() { maxPackAge = before })
}

// A run is a reader that takes batches from the test, until it is stopped.
type run struct {
	t     *testing.T
	give  func(*backup.ReadBatch) told
	stop  func()
	drain func()
	ended chan struct{}
}

func runReader(t *testing.T, s *Service) *run {
	ctx, stop := context.WithCancelCause(context.Background())
	handles := make(chan func(*backup.ReadBatch, delivery))
	r := &run{t: t, stop: func() { stop(nil) }, drain: func() { stop(flow.ErrDrained) }, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		s.run(ctx, func(handle func(*backup.ReadBatch, delivery)) { handles <- handle; <-ctx.Done() })
	}()
	handle := <-handles
	r.give = func(msg *backup.ReadBatch) told {
		d := make(told, 8)
		handle(msg, d)
		return d
	}
	t.Cleanup(r.stopped)
	return r
}

func (r *run) stopped() {
	r.t.Helper()
	r.stop()
	select {
	case <-r.ended:
	case <-time.After(within):
		r.t.Error("the reader does not stop")
	}
}

// hang makes reads of a file wait until release is called; begun is signaled when one does.
func (s *unsteadySource) hang(t *testing.T, name string) (begun <-chan struct{}, release func()) {
	waits, over := make(chan struct{}, 8), make(chan struct{})
	s.onRead[name] = func() { waits <- struct{}{}; <-over }
	release = sync.OnceFunc(func() { close(over) })
	t.Cleanup(release)
	return waits, release
}

var twoDirectories = treetest.Tree{
	"good": treetest.Dir(), "good/file": treetest.File("good"),
	"bad": treetest.Dir(), "bad/a": treetest.File("read before it hangs"), "bad/hangs": treetest.File(random(1, 100_000)),
}

// A filer that hangs takes nothing from others, nor from its own batches that do not hang: no
// token, no slot in progress, no buffer, and no pack waits for it.
func TestStalledBatchKeepsNothingFromOthers(t *testing.T) {
	packsStayOpen(t)
	f := newFixture(t, twoDirectories)
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{
		Batches: 1, InHand: 1, Linger: time.Millisecond, StallAfter: 50 * time.Millisecond,
	})
	f.reader = s
	begun, release := f.unsteady().hang(t, "hangs")
	r := runReader(t, s)
	batches := f.batchesOf("bad", "good")
	other := f.otherFiler("other")
	otherBatch := other.batchOf("good")

	bad := r.give(batches[0])
	<-begun
	bad.wants(t, "stalled")
	r.give(otherBatch).wants(t, "acknowledged")
	r.give(batches[1]).wants(t, "acknowledged")
	other.commit()
	other.wantTreeOf("good")
	f.until(func() bool { return s.watch.Busy() == 0 }) // a batch ends after its delivery

	release()
	bad.wants(t, "acknowledged")
	f.commit()
	f.wantTree()
	f.until(func() bool { return s.watch.InProgress() == 0 })
	if n := s.packer.busy(); n != 0 {
		t.Errorf("%d may add to packs", n)
	}
	for name, slots := range map[string]*stall.Slots{"reading": s.reading, "in hand": s.inHand, "small buffers": s.small.slots} {
		if n := slots.Taken(); n != 0 {
			t.Errorf("%s: %d slots are taken", name, n)
		}
	}
	if s.small.spare != 2 {
		t.Errorf("%d buffers are spare", s.small.spare)
	}
}

// wantTreeOf is wantTree for one directory of the shard.
func (f *fixture) wantTreeOf(path string) {
	f.Helper()
	for name := range f.entries() {
		if name != path+"/file" {
			f.Errorf("%s is in the snapshot", name)
		}
	}
	f.wantTree()
}

// A filer that is slow, but does not stall, has no more than its share in progress.
func TestCrowdedFilerLeavesSlots(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"1": treetest.Dir(), "1/hangs": treetest.File("1"), "2": treetest.Dir(), "2/hangs": treetest.File("2"),
		"good": treetest.Dir(), "good/file": treetest.File("good"),
	})
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{
		Batches: 1, InHand: 1, Linger: time.Millisecond, StallAfter: time.Hour,
	})
	f.reader = s
	begun, release := f.unsteady().hang(t, "hangs")
	r := runReader(t, s)
	batches := f.batchesOf("1", "2")
	slow := r.give(batches[0])
	<-begun
	r.give(batches[1]).wants(t, "handed back")
	other := f.otherFiler("other")
	fast := r.give(other.batchOf("good"))
	for s.known.count() == 0 || s.packer.busy() > 1 { // the other is read meanwhile
		_, _ = f.idx.Snapshot(f.ctx, f.snap.ID) // a query that sets the pace
	}
	release()
	slow.wants(t, "acknowledged")
	fast.wants(t, "acknowledged")
}

// A reader that is stopped finishes its work in progress, with packs that wait for no more chunks.
func TestStopFinishesWhatIsInHand(t *testing.T) {
	packsStayOpen(t)
	f := newFixture(t, twoDirectories)
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{Linger: time.Hour, StopTimeout: within})
	f.reader = s
	begun, release := f.unsteady().hang(t, "hangs")
	r := runReader(t, s)
	batches := f.batchesOf("bad", "good")
	bad := r.give(batches[0])
	<-begun
	good := r.give(batches[1])
	for s.known.count() == 0 || s.packer.busy() > 1 { // it waits for its pack
		_, _ = f.idx.Snapshot(f.ctx, f.snap.ID) // a query that sets the pace
	}
	r.stop()
	good.wants(t, "acknowledged") // although another may still add to its pack
	release()
	bad.wants(t, "acknowledged")
	r.stopped()
	f.commit()
	f.wantTree()
}

// A reader whose filer hangs stops nevertheless, and hands back what it cannot finish.
func TestStopWithAFilerThatHangs(t *testing.T) {
	f := newFixture(t, twoDirectories)
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{Batches: 1, Linger: time.Millisecond, StopTimeout: 100 * time.Millisecond})
	f.reader = s
	begun, release := f.unsteady().hang(t, "hangs")
	r := runReader(t, s)
	batches := f.batchesOf("bad", "good")
	bad := r.give(batches[0])
	<-begun
	waits := r.give(batches[1])
	r.stopped()
	waits.wants(t, "handed back") // it was not begun
	bad.wants(t, "handed back")
	release()
	bad.wants(t, "handed back") // by the goroutine that was left behind: a Delivery ends once
	for s.watch.Busy() > 0 {
		_, _ = f.idx.Snapshot(f.ctx, f.snap.ID) // a query that sets the pace
	}
	if snap := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t); snap.Complete() {
		t.Error("the batches are settled")
	}
	f.reader = f.newReader(Options{})
	for _, msg := range batches {
		f.read(msg)
	}
	f.commit()
	f.wantTree()
}

// While a call of a filer hangs, a reader that stops goes on reporting the batch: the keeper
// assigns it again when the process has ended. A drained one does not end, and reports it no more.
func TestReportsOfAHungBatch(t *testing.T) {
	for _, drains := range []bool{false, true} {
		f := newFixture(t, twoDirectories)
		s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{StopTimeout: 100 * time.Millisecond})
		f.reader = s
		begun, release := f.unsteady().hang(t, "hangs")
		defer release()
		r := runReader(t, s)
		r.give(f.batchesOf("bad")[0])
		<-begun
		if drains {
			r.drain()
		}
		r.stopped()
		var i flow.Instance
		if s.Report.InHand(&i); (i.Batches == 0) != drains {
			t.Errorf("drained: %t, %d batches are reported", drains, i.Batches)
		}
	}
}

// queue connects to a NATS server with the streams made.
func queue(t *testing.T) *flow.Conn {
	conn := must(flow.Connect(flow.Options{URL: testenv.NATS(t).URL(), Memory: true}))(t)
	t.Cleanup(conn.Close)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		_, err := conn.EnsureStreams(ctx, []string{"here"})
		if err == nil {
			return conn
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// onQueue runs the fixture's reader with reports, until stop is called.
func (f *fixture) onQueue() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { f.reader.Report.Run(ctx, 20*time.Millisecond) })
	all.Go(func() { f.reader.Run(ctx) })
	stop = func() { cancel(); all.Wait() }
	f.Cleanup(stop)
	return stop
}

func (f *fixture) publish(conn *flow.Conn, messages ...*backup.ReadBatch) {
	f.Helper()
	for _, msg := range messages {
		msg.Job.Site = "here"
		if err := flow.Publish(f.ctx, conn, flow.Read, msg); err != nil {
			f.Fatal(err)
		}
	}
}

// A filer's behavior is reported: how long its opens take, and which batches stall.
func TestReaderTellsWhatTheFilerDoes(t *testing.T) {
	conn := queue(t)
	f := newFixture(t, twoDirectories)
	progress := make(chan *backup.Progress, 1000)
	defer must(conn.SubscribeProgress(func(p *backup.Progress) { progress <- p }))(t)()
	f.reader = f.makeReader(Parts{Conn: conn, Report: flow.NewReporter(conn, "reader")}, Options{
		Site: "here", Linger: time.Millisecond, StallAfter: 50 * time.Millisecond, StopTimeout: 100 * time.Millisecond,
	})
	_, release := f.unsteady().hang(t, "hangs")
	f.onQueue()
	messages := f.batchesOf("bad", "good")
	f.publish(conn, messages...)
	var opens int64
	var openSeconds float64
	await := func(what string, done func(*backup.Progress) bool) {
		t.Helper()
		for timeout := time.After(within); ; {
			select {
			case p := <-progress:
				opens, openSeconds = opens+p.Opens, openSeconds+p.OpenSeconds
				if p.Filer != f.shard.Filer {
					t.Errorf("filer %d", p.Filer)
				}
				if done(p) {
					return
				}
			case <-timeout:
				t.Fatalf("it is not told that %s", what)
			}
		}
	}
	hangs := messages[0].ID
	await("the batch is stalled", func(p *backup.Progress) bool { return slices.Contains(p.StalledBatches, hangs) })
	release()
	await("all files were opened", func(p *backup.Progress) bool { return opens == 3 && len(p.StalledBatches) == 0 })
	if openSeconds < 0.05 {
		t.Errorf("%d opens, of which one hung, took %v s", opens, openSeconds)
	}
}

// Another reader takes a batch that a stopping reader hands back.
func TestAnotherReaderTakesWhatIsHandedBack(t *testing.T) {
	conn := queue(t)
	f := newFixture(t, twoDirectories)
	options := Options{Site: "here", Linger: time.Millisecond, StopTimeout: 100 * time.Millisecond}
	f.reader = f.makeReader(Parts{Conn: conn, Report: flow.NewReporter(conn, "first")}, options)
	begun, _ := f.unsteady().hang(t, "hangs")
	stop := f.onQueue()
	f.publish(conn, f.batchesOf("bad", "good")...)
	<-begun
	stop()
	f.reader = f.makeReader(Parts{Conn: conn, Report: flow.NewReporter(conn, "second")}, options)
	f.onQueue()
	ctx, cancel := context.WithTimeout(f.ctx, within)
	defer cancel()
	for {
		snap, err := f.idx.Snapshot(ctx, f.snap.ID)
		if err != nil {
			t.Fatal(err)
		}
		if snap.Complete() {
			break
		}
	}
	f.commit()
	f.wantTree()
}

// A stalled batch gives back its slots, and takes again what it needs to continue.
func TestStalledBatchGivesBackItsSlots(t *testing.T) {
	f := newFixture(t, nil)
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{})
	d := make(told, 8)
	b := s.begin(&backup.ReadBatch{}, d)
	if !s.inHand.TryTake(b.filer()) {
		t.Fatal("there is no slot for one batch")
	}
	b.counted.Store(true)
	s.reading.Force(b.filer())
	s.packer.join(b.msg.Job.Snapshot)
	b.Stalled(true)
	d.wants(t, "stalled")
	if s.inHand.Taken() != 0 || s.reading.Taken() != 0 || s.packer.busy() != 0 {
		t.Error("the stalled batch keeps its slots")
	}
	b.Resumed(time.Second)
	if s.reading.Taken() != 1 || s.packer.busy() != 1 {
		t.Error("the batch does not take part again")
	}
	b.end()
	if s.inHand.Taken() != 0 {
		t.Error("the batch gives back what it has not got")
	}
}

// The lines about a stall name filer, shard, snapshot and batch, with the keys of all other events.
func TestLinesOfAStall(t *testing.T) {
	f := newFixture(t, twoDirectories)
	var log bytes.Buffer
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{
		Linger: time.Millisecond, StallAfter: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	f.reader = s
	begun, release := f.unsteady().hang(t, "hangs")
	r := runReader(t, s)
	msg := f.batchOf("bad")
	msg.Job.FilerName, msg.Job.ShardName = "nas1", "home"
	d := r.give(msg)
	<-begun
	d.wants(t, "stalled")
	release()
	d.wants(t, "acknowledged")
	r.stopped()
	of := fmt.Sprintf(" filer=nas1 shard=home snapshot=%s batch=%d", f.snap.ID.Short(), msg.ID)
	for _, event := range []string{
		`msg="the filer does not answer: its read batches are stalled"` + of + "\n",
		`msg="the filer answers again"` + of + " seconds=",
	} {
		if got := strings.Count(log.String(), event); got != 1 {
			t.Errorf("%d lines with %s, want one:\n%s", got, event, &log)
		}
	}
}
