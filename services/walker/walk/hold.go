package walk

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source"
)

// A hold is one task in hand, and what is known of how its filer answers.
// Whatever asks the source says so (ask), and that it was answered (answer): that is
// all that it takes to see that a filer hangs, for a call that hangs cannot say so itself.
type hold struct {
	svc      *Service
	task     *backup.WalkTask
	delivery *flow.Delivery
	looks    int // how often the task was delivered at this attempt, to any walker
	lane     *lane
	done     func() // ends the reports

	calls    atomic.Int32 // of the source that have not returned
	queued   atomic.Int32 // directories that wait for the lane
	answered atomic.Int64 // when the source did last; where nothing was asked for, when it was asked again
	stalled  bool         // the watchdog's
}

// A lane bounds what is done for one filer at a time, so that one that hangs
// takes no other's place.
type lane struct {
	tokens   chan struct{} // one for each directory being read
	holds    int           // tasks of the filer in hand: the last one takes the lane away
	answered atomic.Int64  // when the filer did last, to any of its tasks
}

// hold takes a task in hand, until release.
func (s *Service) hold(task *backup.WalkTask, d *flow.Delivery) *hold {
	h := &hold{svc: s, task: task, delivery: d, done: sync.OnceFunc(s.report.Task(&task.Job, task.ID))}
	h.answered.Store(s.clock())
	if d != nil { // which it is in tests
		h.looks = d.Attempts()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.lane = s.lanes[task.Job.Filer]
	if h.lane == nil {
		h.lane = &lane{tokens: make(chan struct{}, s.opts.Directories)}
		s.lanes[task.Job.Filer] = h.lane
	}
	h.lane.holds++
	s.holds[h] = struct{}{}
	return h
}

func (h *hold) release() {
	h.done()
	s := h.svc
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.holds, h)
	if h.lane.holds--; h.lane.holds == 0 {
		delete(s.lanes, h.task.Job.Filer)
	}
}

// giveBack hands back the tasks in hand, whatever their goroutines do.
func (s *Service) giveBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.holds {
		h.done()
		h.delivery.Retry(0)
	}
}

func (s *Service) inHand() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holds)
}

// clock is a time in nanoseconds that only goes forward.
func (s *Service) clock() int64 { return int64(time.Since(s.epoch)) }

// ask notes that the source is asked, and returns when.
func (h *hold) ask() (at int64) {
	at = h.svc.clock()
	if h.calls.Load() == 0 {
		h.answered.Store(at) // until now it had nothing to answer
	}
	h.calls.Add(1)
	return at
}

// answer notes that the source has answered what it was asked at a time, and
// returns how long that took.
func (h *hold) answer(asked int64) time.Duration {
	now := h.svc.clock()
	h.answered.Store(now)
	h.lane.answered.Store(now)
	h.calls.Add(-1)
	return time.Duration(now - asked)
}

// believe is source.Believe.
func (h *hold) believe(ctx context.Context, tree source.Tree, mounts []string) error {
	asked := h.ask()
	defer h.answer(asked)
	return source.Believe(ctx, tree, mounts)
}

// enter takes a place in the filer's lane, until leave.
func (h *hold) enter(ctx context.Context) error {
	if h.tryEnter() {
		return nil
	}
	if h.calls.Load() == 0 && h.queued.Load() == 0 {
		h.answered.Store(h.svc.clock())
	}
	h.queued.Add(1)
	defer h.queued.Add(-1)
	select {
	case h.lane.tokens <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *hold) tryEnter() bool {
	select {
	case h.lane.tokens <- struct{}{}:
		return true
	default:
		return false
	}
}

func (h *hold) leave() { <-h.lane.tokens }

// isStalled reports whether the task has waited for the filer for so long. One that only
// waits for the lane does not as long as others in it get answers.
func (h *hold) isStalled(now int64, after time.Duration) bool {
	since := h.answered.Load()
	switch {
	case h.calls.Load() > 0:
	case h.queued.Load() > 0:
		since = max(since, h.lane.answered.Load())
	default: // it waits for the index, say, or works
		return false
	}
	return now-since >= int64(after)
}

// watch looks for stalled tasks until ctx is done.
func (s *Service) watch(ctx context.Context) {
	interval := max(s.opts.StallAfter/4, time.Millisecond)
	beat := s.opts.Health.Loop("stalled tasks", interval+watchedWithin)
	defer beat.Done()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.noteStalls()
			beat.Moved()
		}
	}
}

// watchedWithin is how late the watchdog may be before the walker is taken to hang: it needs
// nothing but this process.
const watchedWithin = time.Minute

func (s *Service) noteStalls() {
	now := s.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := 0
	defer func() { s.opts.Metrics.InHand(len(s.holds), waiting) }()
	for h := range s.holds {
		stalled := h.isStalled(now, s.opts.StallAfter)
		if stalled {
			waiting++
		}
		if stalled == h.stalled {
			continue
		}
		h.stalled = stalled
		s.report.StalledTask(h.task.Job.Snapshot, h.task.ID, stalled)
		job := &h.task.Job
		if !stalled {
			s.opts.Log.Info("the filer answers again", "source", job.Source, "snapshot", job.Snapshot.Short(), "task", h.task.ID)
			continue
		}
		s.opts.Log.Warn("the filer does not answer; the walk task waits apart", "source", job.Source, "snapshot", job.Snapshot.Short(), "task", h.task.ID,
			"seconds", time.Duration(now-h.answered.Load()).Seconds())
		h.delivery.Stalled()
	}
}
