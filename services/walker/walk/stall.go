package walk

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/source"
)

// A lane bounds the directories of one filer that are read at a time, so that a filer that hangs
// takes no other's place.
type lane struct {
	tokens   chan struct{} // one for each directory being read
	holds    int           // tasks of the filer in progress: the last one removes the lane
	answered atomic.Int64  // time of the filer's last answer, to any of its tasks
}

// clock is a monotonic time in nanoseconds.
func (s *Service) clock() int64 { return int64(time.Since(s.epoch)) }

// ask records the start of a source call, and returns its time.
func (h *hold) ask() (at int64) {
	at = h.svc.clock()
	if h.calls.Load() == 0 {
		h.answered.Store(at) // until now no call was pending
	}
	h.calls.Add(1)
	return at
}

// answer records the end of the source call that began at asked, and returns its duration.
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

// isStalled reports whether the task has waited for the filer for the duration after. A task that
// only waits for the lane is not stalled while others in the lane get answers.
func (h *hold) isStalled(now int64, after time.Duration) bool {
	since := h.answered.Load()
	switch {
	case h.calls.Load() > 0:
	case h.queued.Load() > 0:
		since = max(since, h.lane.answered.Load())
	default: // it waits for something else, such as the index, or works
		return false
	}
	return now-since >= int64(after)
}

// watch looks for stalled tasks until ctx is done.
func (s *Service) watch(ctx context.Context) {
	interval := max(s.opts.StallAfter/4, time.Millisecond)
	beat := s.opts.Health.Loop("stalled tasks", interval+watchedWithin)
	defer beat.Done()
	loop.Every(ctx, interval, func() {
		s.noteStalls()
		beat.Moved()
	})
}

// watchedWithin is how late the watchdog may be before the walker counts as hung: the watchdog
// depends on nothing outside this process.
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
