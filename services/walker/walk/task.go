package walk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

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

// errStopped means that the walker was stopped before it had walked anything.
var errStopped = errors.New("the walker stops")

func (s *Service) handle(ctx context.Context, h *hold) {
	defer h.release()
	started := time.Now()
	traced, span := s.opts.Trace.Start(h.delivery.Trace(ctx), "walk slice", h.task.Job.Snapshot,
		slog.Int64("task", int64(h.task.ID)), slog.Int("attempt", int(h.task.Attempt)))
	err := s.walk(traced, h)
	span.End(err)
	switch {
	case err == nil:
		s.opts.Metrics.Slice(time.Since(started))
		h.delivery.Ack()
	case ctx.Err() != nil, errors.Is(err, errStopped):
		h.delivery.Retry(0)
	case source.IsOtherTree(err):
		s.retrying(h.task, err)
		h.delivery.Retry(blindDelay)
	default:
		s.retrying(h.task, err)
		h.delivery.RetryLater()
	}
}

func (s *Service) retrying(task *backup.WalkTask, err error) {
	s.opts.Metrics.Retry(err)
	if s.opts.OnRetry != nil {
		s.opts.OnRetry(err)
		return
	}
	s.opts.Log.Warn("walk task will be tried again", "source", task.Job.Source, "snapshot", task.Job.Snapshot.Short(), "task", task.ID,
		"attempt", task.Attempt, "error", err)
}

// walk makes one attempt at a task and sends the result.
func (s *Service) walk(ctx context.Context, h *hold) error {
	if s.stopping.Load() {
		return errStopped
	}
	task := *h.task
	tree, err := s.open(ctx, h, &task.Job)
	if err != nil {
		return s.notWalked(ctx, h, &task, err)
	}
	defer tree.Close()
	sl, err := newSlice(s, h, &task, tree)
	if err != nil {
		return s.fail(ctx, &task, err)
	}
	err = sl.walk(ctx)
	if err == nil {
		err = sl.findings.finish(ctx)
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, errStopped) {
		return err
	}
	if away := h.believe(ctx, tree, nil); away != nil {
		err = away // the other errors follow from that
	}
	if isRootGone(err) || errors.Is(err, source.ErrExpired) || source.IsOtherTree(err) {
		return s.notWalked(ctx, h, &task, err)
	}
	return err
}

func isRootGone(err error) bool { return errors.Is(err, errRootGone) }

// notWalked decides whether a task whose tree cannot be read is left to another walker, or a later
// time, or fails the snapshot.
func (s *Service) notWalked(ctx context.Context, h *hold, task *backup.WalkTask, err error) error {
	mayPass := transient(ctx, err)
	if source.IsOtherTree(err) && ctx.Err() == nil {
		mayPass = !s.isBlind(task, h.looks)
	}
	if mayPass {
		return err
	}
	return s.fail(ctx, task, err)
}

// isBlind reports whether no walker is expected to see a task's tree that this one does not see,
// after this many looks at this attempt.
func (s *Service) isBlind(task *backup.WalkTask, looks int) bool {
	switch {
	case s.opts.Alone:
		return true
	case task.Generation == 0:
		return looks >= rootLooks
	}
	return looks >= childLooks && task.Attempt >= childAttempts
}

// open opens the tree of a job. If the job names source snapshots, open chooses one and sets
// job.Source to it.
func (s *Service) open(ctx context.Context, h *hold, job *backup.Job) (tree source.Tree, err error) {
	asked := h.ask()
	defer func() { h.answer(asked) }()
	if job.Snapshots == "" {
		return source.OpenRoot(ctx, s.source, job.Source, job.Root, job.Compare)
	}
	for range resolveTries {
		var resolved string
		if resolved, err = source.ResolveRoot(ctx, s.source, job.Source, job.Snapshots, job.Root, job.Compare); err != nil {
			return nil, err
		}
		if tree, err = s.source.Open(ctx, resolved); err == nil {
			s.opts.Log.Info("source snapshot taken", "snapshot", job.Snapshot.Short(), "task", h.task.ID, "source", resolved)
			job.Source = resolved
			return tree, nil
		}
		if !errors.Is(err, source.ErrExpired) {
			break // otherwise it was rotated away just now
		}
	}
	return nil, err
}

// fail reports to the committer that the shard cannot be walked at all.
func (s *Service) fail(ctx context.Context, task *backup.WalkTask, cause error) error {
	reason := fmt.Sprintf("cannot walk %s: %v", task.Job.Source, cause)
	if errors.Is(cause, source.ErrExpired) {
		reason = fmt.Sprintf("%v: back the shard up again; where this comes often, let it name source snapshots that are kept for longer than a backup takes", cause)
	}
	return s.send(ctx, &backup.SliceWalked{
		Snapshot: task.Job.Snapshot, Task: task.ID, Attempt: task.Attempt, Last: true,
		Failed: reason,
	})
}

// transient reports whether an error is not caused by the tree: a retry may succeed.
func transient(ctx context.Context, err error) bool {
	return ctx.Err() != nil || source.IsTransient(err)
}
