package walk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source"
)

// Options tune a walker; docs/tuning.md says how.
type Options struct {
	Worker      string // name of this process, for people
	Site        string // whose filers it can reach; "": backup.DefaultSite
	Tasks       int    // walk tasks in hand at a time
	Directories int    // directories being read at a time, over all tasks
	// Grain is how coarse the source's clock may be: an entry that changed
	// less than this before the snapshot's start is racy.
	Grain time.Duration
	// WholeSlices gives the first slices of a snapshot full budgets: there is
	// no other walker that a fresh tree should be spread to.
	WholeSlices bool
	// OnRetry, if not nil, is told why a task is handed back.
	OnRetry func(error)
	Log     *slog.Logger
}

// Defaults of Options.
const (
	DefaultTasks       = 4
	DefaultDirectories = 16
	DefaultGrain       = 20 * time.Millisecond

	retryDelay = 2 * time.Second
)

// A Service walks the tasks that it is sent.
type Service struct {
	opts     Options
	conn     *flow.Conn
	index    index.Walking
	source   source.Source
	report   *flow.Reporter
	inFlight chan struct{} // a token for each directory being read
	visitors sync.Pool

	// What only tests change.
	send         func(context.Context, *backup.SliceWalked) error
	budgets      []budget // by generation
	spillEntries int      // of one directory that are held in memory
}

// New returns a walker. Its parts stay the caller's to close.
func New(conn *flow.Conn, idx index.Walking, src source.Source, report *flow.Reporter, o Options) *Service {
	o.Tasks = orDefault(o.Tasks, DefaultTasks)
	o.Directories = orDefault(o.Directories, DefaultDirectories)
	o.Grain = orDefault(o.Grain, DefaultGrain)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		opts: o, conn: conn, index: idx, source: src, report: report,
		inFlight: make(chan struct{}, o.Directories),
		visitors: sync.Pool{New: func() any { return newVisitor() }},
		send: func(ctx context.Context, m *backup.SliceWalked) error {
			return flow.Publish(ctx, conn, flow.Slices, m)
		},
		budgets: budgets, spillEntries: spillEntries,
	}
}

func orDefault[T int | time.Duration](v, def T) T {
	if v > 0 {
		return v
	}
	return def
}

// Run takes tasks until ctx is done; tasks in hand are handed back then.
func (s *Service) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	s.conn.ConsumeWalk(ctx, s.opts.Site, s.opts.Tasks, func(task *backup.WalkTask, d *flow.Delivery) {
		tasks.Go(func() { s.handle(ctx, task, d) })
	})
	tasks.Wait()
}

func (s *Service) handle(ctx context.Context, task *backup.WalkTask, d *flow.Delivery) {
	done := s.report.Task(task.Job.Snapshot, task.ID)
	defer done()
	err := s.walk(ctx, task)
	switch {
	case err == nil:
		d.Ack()
	case ctx.Err() != nil:
		d.Retry(0)
	default:
		s.retrying(task, err)
		d.Retry(retryDelay)
	}
}

func (s *Service) retrying(task *backup.WalkTask, err error) {
	s.opts.Log.Warn("walk task will be tried again", "snapshot", task.Job.Snapshot.Short(), "task", task.ID, "attempt", task.Attempt, "error", err)
	if s.opts.OnRetry != nil {
		s.opts.OnRetry(err)
	}
}

// walk makes one attempt at a task and sends what it found.
func (s *Service) walk(ctx context.Context, task *backup.WalkTask) error {
	tree, err := s.source.Open(ctx, task.Job.Source)
	if err != nil {
		if transient(ctx, err) {
			return err
		}
		return s.fail(ctx, task, err)
	}
	defer tree.Close()
	sl, err := newSlice(s, task, tree)
	if err != nil {
		return s.fail(ctx, task, err)
	}
	err = sl.walk(ctx)
	if err == nil {
		err = sl.result.finish(ctx)
	}
	if errors.Is(err, errRootGone) {
		return s.fail(ctx, task, err)
	}
	return err
}

// fail tells the committer that the shard cannot be walked at all.
func (s *Service) fail(ctx context.Context, task *backup.WalkTask, cause error) error {
	return s.send(ctx, &backup.SliceWalked{
		Snapshot: task.Job.Snapshot, Task: task.ID, Attempt: task.Attempt, Last: true,
		Failed: fmt.Sprintf("cannot walk %s: %v", task.Job.Source, cause),
	})
}

// transient reports whether an error is not the tree's: the same may work later.
func transient(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, backup.ErrUnavailable) ||
		errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}
