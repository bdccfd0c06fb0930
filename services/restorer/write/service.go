package write

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// DefaultTasks is the number of tasks that a restorer has at a time.
const DefaultTasks = 2 // so that one is written while the other waits for its keys

const (
	defaultLease = 15 * time.Second
	defaultPoll  = 500 * time.Millisecond
	// renewals is how often a lease is renewed before it would end.
	renewals = 5
	// keysPoll is the interval between searches for the keys of a task.
	keysPoll = 100 * time.Millisecond
	// refusedFor is how long no task is taken of a restore whose target is not the right one.
	refusedFor = 15 * time.Second
	// failedFor is how long a task waits after an attempt has failed.
	failedFor = 5 * time.Second
	// claimWithin is how long the loop of a slot may make no progress.
	claimWithin = 5 * time.Minute
)

// An Index is the part of the index that a restorer uses.
type Index interface {
	index.Restoring
	restore.Catalog
}

// Options are the settings of a Restorer.
type Options struct {
	Worker      string // name of this process that no other has
	Site        string
	Targets     Targets
	Repository  backup.RepositoryID
	Tasks       int           // at a time; 0: 2
	Concurrency int           // per task, as restore.Options.Concurrency
	Lease       time.Duration // 0: 15 s
	Poll        time.Duration // 0: 500 ms
	Log         *slog.Logger

	Metrics *telemetry.Restorer // nil: nothing is measured
	Health  *health.Process     // nil: health is not reported
}

// A Restorer restores parts.
type Restorer struct {
	idx     Index
	store   store.Store
	o       Options
	session *seal.Session
}

// New returns a Restorer with a session of its own. It only reads from the store.
func New(idx Index, s store.Store, o Options) (*Restorer, error) {
	if o.Tasks <= 0 {
		o.Tasks = DefaultTasks
	}
	if o.Lease <= 0 {
		o.Lease = defaultLease
	}
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	session, err := seal.NewSession()
	return &Restorer{idx: idx, store: s, o: o, session: session}, err
}

// Run restores until ctx is done. It then gives its tasks back.
func (r *Restorer) Run(ctx context.Context) {
	var slots sync.WaitGroup
	for range r.o.Tasks {
		slots.Go(func() { r.claimAndWork(ctx) })
	}
	slots.Wait()
}

func (r *Restorer) claimAndWork(ctx context.Context) {
	beat := r.o.Health.Loop("restore", claimWithin)
	defer beat.Done()
	for ctx.Err() == nil {
		beat.Moved()
		of, task, ok, err := r.idx.ClaimRestoreTask(ctx, r.o.Site, r.o.Worker, r.session.Recipient(), r.o.Lease)
		if err != nil && ctx.Err() == nil {
			r.o.Log.Warn("no task of a restore can be claimed, will retry", "error", err)
			r.o.Metrics.Retry(err)
		}
		if !ok {
			loop.Pause(ctx, r.o.Poll)
			continue
		}
		a := &attempt{r: r, of: of, task: task, beat: beat}
		a.settle(ctx, a.run(ctx))
	}
}

// settle stores the outcome of an attempt. err is nil, or why it failed.
func (a *attempt) settle(ctx context.Context, err error) {
	r, t := a.r, &a.task
	log := r.o.Log.With("restore", t.Restore.String(), "task", t.Row, "attempt", t.Attempt)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Lease)
	defer cancel()
	var stored error
	switch {
	case err == nil:
		var data []byte
		if data, stored = a.result.Encode(); stored == nil {
			stored = r.idx.SettleRestoreTask(ending, t, data)
		}
		r.o.Metrics.Settled()
	case errors.Is(err, index.ErrTakenOver) || errors.Is(err, errLeaseEnds):
		log.Warn("a task was taken over, or its restore has ended", "error", err)
		return
	case ctx.Err() != nil: // this process stops
		stored = r.idx.FailRestoreTask(ending, t, 0, false, "")
	case isRefusal(err):
		log.Warn("a restore is refused", "target", a.of.Target, "error", err)
		stored = r.idx.RefuseRestore(ending, t, refusedFor, err.Error())
	default:
		log.Warn("a task has failed", "error", err)
		r.o.Metrics.Retry(err)
		stored = r.idx.FailRestoreTask(ending, t, failedFor, !errors.Is(err, backup.ErrUnavailable), err.Error())
	}
	if stored != nil {
		log.Warn("the outcome of a task was not stored: its lease ends, and it is done again", "error", stored)
	}
}
