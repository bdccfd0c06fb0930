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

// Options tune a walker; see docs/tuning.md.
type Options struct {
	Worker string // name of this process, for display
	Site   string // whose filers it can reach; "": backup.DefaultSite
	// Tasks is the maximum number of tasks in progress, not counting stalled ones. Tasks cost
	// little: the load on a filer is bounded by its limits, and by Directories.
	Tasks       int
	Directories int // maximum of one filer being read at a time, over all its tasks
	// StallAfter is how long a task waits for an answer of its filer before it counts as stalled,
	// and gives its place to others.
	StallAfter time.Duration
	// StopTimeout is how long Run continues the work in progress after it is stopped.
	StopTimeout time.Duration
	// Alone means that there is no other walker: there is none to spread a fresh tree to, so the
	// first slices get full budgets, and none that might see a tree that this one does not.
	Alone bool
	// Reread makes every file be read again, as if all had changed.
	Reread bool
	// Compile makes the Matcher of a selection, and may return a cached one; nil:
	// selection.Compile.
	Compile func(backup.Selection) (*selection.Matcher, error)
	// OnChange, if not nil, is called, from any goroutine, with each entry that is new or has changed
	// since the last snapshot, except directories. It is called again if the attempt is repeated.
	OnChange func(path string, sizeBytes int64, isNew bool)
	// OnRetry, if not nil, receives the reason why a task is handed back, instead of the log.
	OnRetry func(error)
	Log     *slog.Logger
	Metrics *telemetry.Walker // nil: nothing is measured
	Trace   *telemetry.Tracer // nil: nothing is traced
	Health  *health.Process   // nil: health is not reported
}

// Defaults of Options.
const (
	DefaultTasks       = 16
	DefaultDirectories = 16
	DefaultStallAfter  = 10 * time.Second
	DefaultStopTimeout = 10 * time.Second

	resolveTries = 3
	aloneTasks   = 4 // with Alone: all slices are of one filer, and have full budgets

	// A walker that sees the wrong tree hands the task back after blindDelay, to any walker. After
	// this many attempts by walkers to see the tree, no walker is expected to: rootLooks at the
	// root task or, at a task whose tree some walker has seen, childLooks in each of childAttempts
	// attempts. With these limits, half of the walkers can see the wrong tree without the snapshot
	// failing.
	blindDelay    = time.Second
	rootLooks     = 20
	childLooks    = 10
	childAttempts = 3
)

// A Service walks the tasks that it receives.
type Service struct {
	opts     Options
	conn     *flow.Conn
	index    index.Walking
	source   source.Source
	report   *flow.Reporter
	visitors sync.Pool
	epoch    time.Time    // origin of clock
	stopping atomic.Bool  // slices end at the next directory
	held     atomic.Int64 // entries of large directories in memory

	mu    sync.Mutex
	holds map[*hold]struct{} // the tasks in progress
	lanes map[backup.FilerID]*lane

	// Changed only by tests.
	send         func(context.Context, *backup.SliceWalked) error
	budgets      []budget // by generation
	scarceTime   time.Duration
	spillEntries int // of one directory, held in memory
}

// New returns a walker. The caller closes its parts.
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

// Run takes tasks until ctx is done. Then the tasks in progress end early: each sends its results,
// with the directories not yet walked as child tasks. Tasks that do not end within StopTimeout,
// because a filer or the index does not answer, are handed back. Run then returns although
// goroutines may wait in the kernel for ever.
func (s *Service) Run(ctx context.Context) {
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	s.stopping.Store(false)
	defer s.opts.Metrics.InHand(0, 0) // the process may keep running, drained
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
	grace := min(s.opts.StopTimeout/10, time.Second) // for work that ends when its context does
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
	s.report.HandedBack(err)
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
		err = sl.result.finish(ctx)
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
