package walk

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/stall"
	"github.com/bctl/bctl/internal/telemetry"
)

// Options tune a walker; see docs/tuning.md.
type Options struct {
	Worker string // name of this process, for display
	Site   string // whose filers it can reach; "": backup.DefaultSite
	// Tasks is the maximum number of tasks in progress, not counting stalled ones. Tasks cost
	// little: the load on a filer is bounded by its limits, and by Directories.
	Tasks       int
	Directories int // maximum number of one filer's that are read at a time, over all its tasks
	// StallAfter is how long a task waits for an answer of its filer before it counts as stalled,
	// and gives its slot to others.
	StallAfter time.Duration
	// StopTimeout is how long Run continues the work in progress after it is stopped.
	StopTimeout time.Duration
	// Alone means that there is no other walker. So a fresh tree cannot be spread over walkers, and
	// the first slices get full budgets. No other walker might see a tree that this one does not
	// see.
	Alone bool
	// Reread makes every file be read again, as if all had changed.
	Reread bool
	// Compile makes the Matcher of a selection, and may return a cached one; nil:
	// selection.Compile.
	Compile func(backup.Selection) (*selection.Matcher, error)
	// OnChange, if not nil, is called, from any goroutine, with each entry that is new or has
	// changed since the last snapshot, except directories. It is called again if the attempt is
	// repeated.
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

	// A walker that sees the wrong tree hands the task back after blindDelay, to any walker. If
	// walkers have looked for the tree in vain for a number of times, no walker is expected to see
	// it. For the root task, the number is rootLooks. For a task whose tree some walker has seen,
	// it is childLooks in each of childAttempts attempts. With these limits, half of the walkers
	// can see the wrong tree without the snapshot failing. If the keeper knows that no walker sees
	// the tree (flow.Unseen), it fails the snapshot after half as long, with a reason that says so.
	blindDelay    = time.Second
	rootLooks     = 40
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
	stopping atomic.Bool  // slices end at the next directory
	buffered atomic.Int64 // entries of large directories in memory

	watch       *stall.Watch // of the tasks in progress
	directories *stall.Slots // for those that are being read

	// Changed only by tests. send publishes to flow.Slices.
	send         func(context.Context, *backup.SliceWalked) error
	budgets      []budget // by generation
	scarceTime   time.Duration
	spillEntries int // of one directory, held in memory
}

// New returns a walker. The caller closes its parts.
func New(conn *flow.Conn, idx index.Walking, src source.Source, report *flow.Reporter, o Options) *Service {
	tasks := DefaultTasks
	if o.Alone {
		tasks = aloneTasks
	}
	o.Tasks = cmp.Or(max(o.Tasks, 0), tasks)
	o.Directories = cmp.Or(max(o.Directories, 0), DefaultDirectories)
	o.StallAfter = cmp.Or(max(o.StallAfter, 0), DefaultStallAfter)
	o.StopTimeout = cmp.Or(max(o.StopTimeout, 0), DefaultStopTimeout)
	if o.Compile == nil {
		o.Compile = selection.Compile
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		opts: o, conn: conn, index: idx, source: src, report: report,
		visitors: sync.Pool{New: func() any { return newVisitor() }},
		// If a filer hangs in all directories that it may have open, other filers still have their
		// slots.
		directories: stall.NewSlots(math.MaxInt, o.Directories),
		watch:       stall.NewWatch(o.StallAfter, math.MaxInt), // a Delivery has a bound of its own
		send: func(ctx context.Context, m *backup.SliceWalked) error {
			return flow.Publish(ctx, conn, flow.Slices, m)
		},
		budgets: budgets, scarceTime: scarceTime, spillEntries: spillEntries,
	}
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
	watchdog.Go(func() { s.watchFilers(working) })
	s.conn.ConsumeWalk(ctx, s.opts.Site, s.opts.Tasks, func(task *backup.WalkTask, d *flow.Delivery) {
		t := s.begin(task, d)
		tasks.Go(func() { s.handle(working, t) })
	})
	ended := make(chan struct{})
	go func() { tasks.Wait(); close(ended) }()
	grace := min(s.opts.StopTimeout/10, time.Second) // for work that ends when its context does
	if endsWithin(ended, s.opts.StopTimeout-grace) {
		return
	}
	abandon()
	ends := !errors.Is(context.Cause(ctx), flow.ErrDrained)
	s.watch.Each(func(o stall.Owner) { o.(*inFlight).handBack(ends) })
	if !endsWithin(ended, grace) {
		s.opts.Log.Warn("stopped, and left tasks that wait for their filers", "tasks", s.watch.InProgress())
	}
}

// watchFilers looks for stalled tasks until ctx is done.
func (s *Service) watchFilers(ctx context.Context) {
	beat := s.opts.Health.Loop("stalled tasks", s.watch.MaxInterval())
	defer beat.Done()
	s.watch.Run(ctx, func(inProgress, stalled int) {
		s.opts.Metrics.InHand(inProgress, stalled)
		beat.Moved()
	})
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
