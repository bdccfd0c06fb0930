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
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/run/health"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/telemetry"
)

// Options tune a walker; docs/tuning.md says how.
type Options struct {
	Worker string // name of this process, for people
	Site   string // whose filers it can reach; "": backup.DefaultSite
	// Tasks in hand at a time, beside stalled ones. They cost little: what a filer
	// has to bear is bounded by its limits, and by Directories.
	Tasks       int
	Directories int // of one filer, being read at a time, over all its tasks
	// StallAfter is how long a task waits for an answer of its filer before it counts
	// as stalled, and gives its place to others.
	StallAfter time.Duration
	// StopTimeout is how long Run goes on, when it is told to stop, with what is in hand.
	StopTimeout time.Duration
	// Alone: there is no other walker that a fresh tree should be spread to, so
	// that its first slices get full budgets, or that might see what this one does
	// not.
	Alone bool
	// Reread has every file read again, as if all had changed.
	Reread bool
	// Compile makes the Matcher of a selection, also one that the caller keeps; nil: selection.Compile.
	Compile func(backup.Selection) (*selection.Matcher, error)
	// OnRetry, if not nil, is told why a task is handed back, in place of the log.
	OnRetry func(error)
	Log     *slog.Logger
	Metrics *telemetry.Walker // nil: nothing is measured
	Trace   *telemetry.Tracer // nil: nothing is traced
	Health  *health.Process   // nil: nobody asks
}

// Defaults of Options.
const (
	DefaultTasks       = 16
	DefaultDirectories = 16
	DefaultStallAfter  = 10 * time.Second
	DefaultStopTimeout = 10 * time.Second

	resolveTries = 3
	aloneTasks   = 4 // where there are whole slices of one filer only

	// A walker that sees another tree than it should hands the task back after
	// blindDelay, to any walker. No walker sees the right tree where so many have
	// looked: at the root task, or, at a task whose tree somebody has seen, so many
	// each time it was handed out. Half of the walkers can be blind then without
	// being taken for all.
	blindDelay    = time.Second
	rootLooks     = 20
	childLooks    = 10
	childAttempts = 3
)

// A Service walks the tasks that it is sent.
type Service struct {
	opts     Options
	conn     *flow.Conn
	index    index.Walking
	source   source.Source
	report   *flow.Reporter
	visitors sync.Pool
	epoch    time.Time    // that clock counts from
	stopping atomic.Bool  // slices end at the next directory
	held     atomic.Int64 // entries of large directories in memory

	mu    sync.Mutex
	holds map[*hold]struct{} // the tasks in hand
	lanes map[backup.FilerID]*lane

	// What only tests change.
	send         func(context.Context, *backup.SliceWalked) error
	budgets      []budget // by generation
	scarceTime   time.Duration
	spillEntries int // of one directory that are held in memory
}

// New returns a walker. Its parts stay the caller's to close.
func New(conn *flow.Conn, idx index.Walking, src source.Source, report *flow.Reporter, o Options) *Service {
	if o.Alone {
		o.Tasks = orDefault(o.Tasks, aloneTasks)
	}
	o.Tasks = orDefault(o.Tasks, DefaultTasks)
	o.Directories = orDefault(o.Directories, DefaultDirectories)
	o.StallAfter = orDefault(o.StallAfter, DefaultStallAfter)
	o.StopTimeout = orDefault(o.StopTimeout, DefaultStopTimeout)
	if o.Compile == nil {
		o.Compile = selection.Compile
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		opts: o, conn: conn, index: idx, source: src, report: report,
		visitors: sync.Pool{New: func() any { return newVisitor() }},
		epoch:    time.Now(),
		holds:    map[*hold]struct{}{}, lanes: map[backup.FilerID]*lane{},
		send: func(ctx context.Context, m *backup.SliceWalked) error {
			return flow.Publish(ctx, conn, flow.Slices, m)
		},
		budgets: budgets, scarceTime: scarceTime, spillEntries: spillEntries,
	}
}

func orDefault[T int | time.Duration](v, def T) T {
	if v > 0 {
		return v
	}
	return def
}

// Run takes tasks until ctx is done. Then those in hand end early: each sends
// what it has, with what it has not walked as child tasks. What does not end
// within StopTimeout, because a filer or the index does not answer, is handed back, and Run
// returns although goroutines may wait in the kernel for ever.
func (s *Service) Run(ctx context.Context) {
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	s.stopping.Store(false)
	defer s.opts.Metrics.InHand(0, 0) // the process may go on, drained
	defer context.AfterFunc(ctx, func() { s.stopping.Store(true) })()
	var watchdog, tasks sync.WaitGroup
	defer watchdog.Wait()
	defer abandon()
	watchdog.Go(func() { s.watch(working) })
	s.conn.ConsumeWalk(ctx, s.opts.Site, s.opts.Tasks, func(task *backup.WalkTask, d *flow.Delivery) {
		h := s.hold(task, d)
		tasks.Go(func() { s.handle(working, h) })
	})
	ended := make(chan struct{})
	go func() { tasks.Wait(); close(ended) }()
	grace := min(s.opts.StopTimeout/10, time.Second) // for what ends when its context does
	if endsWithin(ended, s.opts.StopTimeout-grace) {
		return
	}
	abandon()
	s.giveBack()
	if !endsWithin(ended, grace) {
		s.opts.Log.Warn("stopped without tasks that wait for their filers", "tasks", s.inHand())
	}
}

func endsWithin(ended <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ended:
		return true
	case <-t.C:
		return false
	}
}

// errStopped: the walker was told to stop before it had walked anything.
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

// walk makes one attempt at a task and sends what it found.
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
		err = sl.result.finish(ctx)
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, errStopped) {
		return err
	}
	if away := h.believe(ctx, tree, nil); away != nil {
		err = away // and the rest follows from that
	}
	if isRootGone(err) || errors.Is(err, source.ErrExpired) || source.IsOtherTree(err) {
		return s.notWalked(ctx, h, &task, err)
	}
	return err
}

func isRootGone(err error) bool { return errors.Is(err, errRootGone) }

// notWalked decides whether a task whose tree cannot be read may be walked by
// another walker, or later, or the snapshot fails.
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

// isBlind reports whether no walker sees the tree of a task that this one does
// not see, at so many looks at this attempt.
func (s *Service) isBlind(task *backup.WalkTask, looks int) bool {
	switch {
	case s.opts.Alone:
		return true
	case task.Generation == 0:
		return looks >= rootLooks
	}
	return looks >= childLooks && task.Attempt >= childAttempts
}

// open opens the tree of a job. Where the job names source snapshots, it
// decides which is taken: job.Source is that one then.
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
			break // else it was rotated away just now
		}
	}
	return nil, err
}

// fail tells the committer that the shard cannot be walked at all.
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

// transient reports whether an error is not the tree's: the same may work later.
func transient(ctx context.Context, err error) bool {
	return ctx.Err() != nil || source.IsTransient(err)
}
