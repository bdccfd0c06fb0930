package walk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/stall"
)

// inFlight is one task in progress. It is the stall.Owner of the task's work.
type inFlight struct {
	svc      *Service
	work     *stall.Work
	task     *backup.WalkTask
	delivery *flow.Delivery
	looks    int    // deliveries of the task at this attempt, to any walker
	done     func() // ends the reports
}

// begin registers a task as in progress, until its end.
func (s *Service) begin(task *backup.WalkTask, d *flow.Delivery) *inFlight {
	t := &inFlight{svc: s, task: task, delivery: d, done: sync.OnceFunc(s.report.Task(&task.Job, task.ID))}
	if d != nil { // nil in tests
		t.looks = d.Attempts()
	}
	t.work = s.watch.Begin(task.Job.Filer, t)
	return t
}

func (t *inFlight) end() {
	t.done()
	t.work.End()
}

// Stalled gives the task's slot to another. The directories that it reads keep their slots, which
// only tasks of its filer could have.
func (t *inFlight) Stalled(first bool) {
	t.svc.report.StalledTask(t.task.Job.Snapshot, t.task.ID, true)
	if first {
		t.svc.opts.Log.Warn("the filer does not answer: its walk tasks are stalled", "filer", t.task.Job.FilerName, "shard", t.task.Job.ShardName,
			"snapshot", t.task.Job.Snapshot.Short(), "task", t.task.ID, "seconds", t.svc.opts.StallAfter.Seconds())
	}
	t.delivery.Stalled()
}

// Resumed implements stall.Owner.
func (t *inFlight) Resumed(hung time.Duration) {
	t.svc.report.StalledTask(t.task.Job.Snapshot, t.task.ID, false)
	if hung > 0 {
		t.svc.opts.Log.Info("the filer answers again", "filer", t.task.Job.FilerName, "shard", t.task.Job.ShardName,
			"snapshot", t.task.Job.Snapshot.Short(), "task", t.task.ID, "seconds", hung.Seconds())
	}
}

// handBack leaves the task to another walker, although its goroutines may still run. A stalled task
// is in no queue. If the process ends, it stays reported: the keeper then assigns it again at once,
// and otherwise when its lease has ended.
func (t *inFlight) handBack(ends bool) {
	if !ends || !t.delivery.IsStalled() {
		t.done()
	}
	t.delivery.Retry(0)
}

// enter takes one of the filer's slots for directories that are being read, until leave.
func (t *inFlight) enter(ctx context.Context) error { return t.work.Enter(ctx, t.svc.directories) }
func (t *inFlight) tryEnter() bool                  { return t.work.TryEnter(t.svc.directories) }
func (t *inFlight) leave()                          { t.work.Leave(t.svc.directories) }

// errStopped means that the walker was stopped before it had walked anything.
var errStopped = errors.New("the walker stops")

// handle makes an attempt at a task, which Run has received, and ends its delivery.
func (s *Service) handle(ctx context.Context, t *inFlight) {
	defer t.end()
	started := time.Now()
	traced, span := s.opts.Trace.Start(t.delivery.Trace(ctx), "walk slice", t.task.Job.Snapshot,
		slog.Int64("task", int64(t.task.ID)), slog.Int("attempt", int(t.task.Attempt)))
	err := s.walk(traced, t)
	span.End(err)
	switch {
	case err == nil:
		s.opts.Metrics.Slice(time.Since(started))
		t.delivery.Ack()
	case ctx.Err() != nil, errors.Is(err, errStopped):
		t.delivery.Retry(0)
	case source.IsOtherTree(err):
		s.retrying(t.task, err)
		t.delivery.Retry(blindDelay)
	default:
		s.retrying(t.task, err)
		t.delivery.RetryLater()
	}
}

func (s *Service) retrying(task *backup.WalkTask, err error) {
	s.report.HandedBack(task.Job.Snapshot, err, source.IsOtherTree(err))
	s.opts.Metrics.Retry(err)
	if s.opts.OnRetry != nil {
		s.opts.OnRetry(err)
		return
	}
	s.opts.Log.Warn("walk task will be tried again", "filer", task.Job.FilerName, "shard", task.Job.ShardName, "snapshot", task.Job.Snapshot.Short(), "task", task.ID,
		"attempt", task.Attempt, "error", err)
}

// walk makes one attempt at a task: it walks down from the task's directories (slice.walk), visits
// each directory (visitor.visit), and sends the result (findings.finish).
func (s *Service) walk(ctx context.Context, t *inFlight) error {
	if s.stopping.Load() {
		return errStopped
	}
	task := *t.task
	tree, err := s.open(ctx, t, &task.Job)
	if err != nil {
		return s.notWalked(ctx, t, &task, err)
	}
	defer tree.Close()
	sl, err := newSlice(s, t, &task, tree)
	if err != nil {
		return s.fail(ctx, &task, err)
	}
	if err := sl.walk(ctx); err != nil {
		return s.interrupted(ctx, t, &task, tree, err)
	}
	if err := sl.findings.finish(ctx); err != nil {
		return s.interrupted(ctx, t, &task, tree, err)
	}
	s.report.Saw(task.Job.Snapshot)
	return nil
}

// interrupted decides how an attempt ends that failed with err after its tree was opened.
func (s *Service) interrupted(ctx context.Context, t *inFlight, task *backup.WalkTask, tree source.Tree, err error) error {
	if ctx.Err() != nil || errors.Is(err, errStopped) {
		return err
	}
	if away := source.CheckTree(ctx, tree, nil); away != nil {
		err = away // the other errors follow from that
	}
	if isRootGone(err) || errors.Is(err, source.ErrExpired) || source.IsOtherTree(err) {
		return s.notWalked(ctx, t, task, err)
	}
	return err
}

func isRootGone(err error) bool { return errors.Is(err, errRootGone) }

// notWalked decides whether a task whose tree cannot be read is left to another walker, or a later
// time, or fails the snapshot.
func (s *Service) notWalked(ctx context.Context, t *inFlight, task *backup.WalkTask, err error) error {
	mayPass := transient(ctx, err)
	if source.IsOtherTree(err) && ctx.Err() == nil {
		mayPass = !s.isBlind(task, t.looks)
	}
	if mayPass {
		return err
	}
	return s.fail(ctx, task, err)
}

// isBlind reports whether, after this many deliveries of the task at this attempt, no other walker
// is expected to see its tree either.
func (s *Service) isBlind(task *backup.WalkTask, looks int) bool {
	switch {
	case s.opts.Alone:
		return true
	case task.Generation == 0:
		return looks >= rootLooks
	}
	return looks >= childLooks && task.Attempt >= childAttempts
}

// open opens the tree of a job through the task's source, which passes each call on to the real
// source, and notes when it is answered (package stall). If the job names source snapshots, open
// chooses one and sets job.Source to it.
func (s *Service) open(ctx context.Context, t *inFlight, job *backup.Job) (tree source.Tree, err error) {
	src := t.work.Source(s.source)
	if job.Snapshots == "" {
		return source.OpenRoot(ctx, src, job.Source, job.Root, job.Compare)
	}
	for range resolveTries {
		var resolved string
		if resolved, err = source.ResolveRoot(ctx, src, job.Source, job.Snapshots, job.Root, job.Compare); err != nil {
			return nil, err
		}
		if tree, err = src.Open(ctx, resolved); err == nil {
			s.opts.Log.Info("source snapshot taken", "snapshot", job.Snapshot.Short(), "task", t.task.ID, "source", resolved)
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
		reason = fmt.Sprintf("%v: back the shard up again; if this happens often, set --snapshots of the shard to source snapshots that are kept for longer than a backup takes", cause)
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
