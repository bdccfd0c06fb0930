package read

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/loop"
)

const (
	// stallTicks is how many ticks of the watch a call of the source may last before its batch
	// counts as stalled. A call only records the tick at which it began.
	stallTicks = 8
	// callStalled replaces that tick once the batch is stalled.
	callStalled = -1
	// maxStalled bounds the stalled batches. Further ones keep their shares, so that in the end
	// nothing more is taken.
	maxStalled = 256
	// watchedWithin is how late the watch may be before the reader counts as hung: the watch
	// depends on nothing outside this process.
	watchedWithin = time.Minute
)

// A watch knows the batches in progress, and finds those whose filer does not answer.
type watch struct {
	clock atomic.Int64 // ticks, from 1

	mu      sync.Mutex
	hand    map[*batch]struct{}
	stalled int
	changed chan struct{} // signaled when a batch is done, or stalls
}

func newWatch() *watch {
	w := &watch{hand: map[*batch]struct{}{}, changed: make(chan struct{}, 1)}
	w.clock.Store(1)
	return w
}

// watchCalls looks for calls that last too long, until ctx is done.
func (s *Service) watchCalls(ctx context.Context) {
	interval := max(s.opts.StallAfter/stallTicks, time.Millisecond)
	beat := s.opts.Health.Loop("stalled batches", interval+watchedWithin)
	defer beat.Done()
	loop.Every(ctx, interval, func() {
		s.lookAtCalls(s.watch.clock.Add(1))
		beat.Moved()
	})
}

func (s *Service) lookAtCalls(now int64) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	defer func() { s.opts.Metrics.InHand(len(s.watch.hand), s.watch.stalled) }()
	for b := range s.watch.hand {
		since := b.call.Load()
		if since > 0 && now-since > stallTicks && s.watch.stalled < maxStalled && b.call.CompareAndSwap(since, callStalled) {
			s.stall(b)
		}
	}
}

// stall takes from a batch the resources that others need. The batch keeps waiting for the filer,
// and holds the window that the filer may still write to. The caller holds the watch's mu.
func (s *Service) stall(b *batch) {
	b.stalled = true
	s.watch.stalled++
	loop.Wake(s.watch.changed)
	if b.window != nil { // its goroutine does not touch it until the call returns
		b.window.home.replace(b.window)
	}
	s.reading.give(b.filer())
	s.packer.end(b.msg.Job.Snapshot)
	s.putDown(b)
	s.Report.StalledBatch(b.msg.Job.Snapshot, b.msg.ID, true)
	b.delivery.Stalled()
	s.opts.Log.Warn("the filer does not answer; the read batch waits apart", "source", b.msg.Job.Source, "snapshot", b.msg.Job.Snapshot.Short(), "batch", b.msg.ID)
}

// goOn lets a stalled batch continue. It does not wait for its turn, because it holds a window.
func (s *Service) goOn(b *batch) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	b.stalled = false
	s.watch.stalled--
	s.reading.force(b.filer())
	s.packer.begin(b.msg.Job.Snapshot)
	s.Report.StalledBatch(b.msg.Job.Snapshot, b.msg.ID, false)
	s.opts.Log.Info("the filer answers again", "source", b.msg.Job.Source, "snapshot", b.msg.Job.Snapshot.Short(), "batch", b.msg.ID)
}

// pickUp counts a batch as in progress, unless its filer has too many already.
func (s *Service) pickUp(b *batch) bool {
	if !s.inHand.tryTake(b.filer()) {
		return false
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	b.counted = true
	s.watch.hand[b] = struct{}{}
	return true
}

// done ends what pickUp began.
func (s *Service) done(b *batch) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	delete(s.watch.hand, b)
	s.putDown(b)
	loop.Wake(s.watch.changed)
}

// putDown stops counting a batch as in progress. The caller holds the watch's mu.
func (s *Service) putDown(b *batch) {
	if b.counted {
		b.counted = false
		s.inHand.give(b.filer())
	}
}

// busy returns the number of batches that are in progress and not stalled.
func (w *watch) busy() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.hand) - w.stalled
}

// handBack hands back the batches in progress, without waiting for their goroutines.
func (w *watch) handBack() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for b := range w.hand {
		b.delivery.Retry(0)
	}
}
