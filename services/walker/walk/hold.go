package walk

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source"
)

// A hold is one task in progress, and the state of its filer's answers. Bracket every source call
// with ask and answer. A hung call cannot report itself, so the watchdog looks for an ask without
// an answer.
type hold struct {
	svc      *Service
	task     *backup.WalkTask
	delivery *flow.Delivery
	looks    int // deliveries of the task at this attempt, to any walker
	lane     *lane
	done     func() // ends the reports

	calls  atomic.Int32 // calls of the source that have not returned
	queued atomic.Int32 // directories that wait for the lane
	// Time of the source's last answer or, if no call was pending, of the next ask.
	answered atomic.Int64
	stalled  bool // written by the watchdog
}

// A lane bounds the directories of one filer that are read at a time, so that a filer that hangs
// takes no other's place.
type lane struct {
	tokens   chan struct{} // one for each directory being read
	holds    int           // tasks of the filer in progress: the last one removes the lane
	answered atomic.Int64  // time of the filer's last answer, to any of its tasks
}

// hold registers a task as in progress until release.
func (s *Service) hold(task *backup.WalkTask, d *flow.Delivery) *hold {
	h := &hold{svc: s, task: task, delivery: d, done: sync.OnceFunc(s.report.Task(&task.Job, task.ID))}
	h.answered.Store(s.clock())
	if d != nil { // nil in tests
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

// giveBack hands back the tasks in progress, even if their goroutines still run.
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
