package commit

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// Index is what a committer does with the index.
type Index interface {
	index.Committing
	index.Catalog
	index.Leading
}

// Options tune a committer; docs/tuning.md says how.
type Options struct {
	// Snapshots are the only ones to work for; nil: all.
	Snapshots []backup.SnapshotID
	// Lease is after how long without a report work is handed out again that a
	// worker had in hand; QueueLease is that of work which no worker has reported on
	// yet. It is longer: a message that waits for its turn is not lost, and one that
	// was lost with its stream does not wait for it.
	Lease      time.Duration
	QueueLease time.Duration
	Poll       time.Duration // how often open work is looked for without being told of any
	Queued     int           // tasks, and batches, that may be handed out at a time
	Appliers   int           // transactions at a time
	// OnEnd, if not nil, is told when a snapshot was committed or failed.
	OnEnd func(backup.SnapshotID)
	// OnRetry, if not nil, is told why something has to be tried again.
	OnRetry func(error)
	Log     *slog.Logger
}

// Defaults of Options.
const (
	DefaultLease      = 60 * time.Second
	DefaultQueueLease = 10 * time.Minute
	DefaultPoll       = 250 * time.Millisecond
	DefaultQueued     = 512
	DefaultAppliers   = 2
)

// Parts are what a committer works with; they stay the caller's to close.
type Parts struct {
	Conn   *flow.Conn
	Index  Index
	Store  store.Store
	Sealer *seal.Sealer // of index segments
}

// A Service is one committer.
type Service struct {
	Parts
	opts    Options
	log     *slog.Logger
	results chan flow.Result
	wake    chan struct{} // there may be work to hand out
	settled chan struct{} // there may be a snapshot to commit

	commitNanos atomic.Int64 // spent in transactions, and not yet told by a result
}

// New returns a committer.
func New(p Parts, o Options) *Service {
	orDefault(&o.Lease, DefaultLease)
	orDefault(&o.QueueLease, DefaultQueueLease)
	orDefault(&o.Poll, DefaultPoll)
	orDefault(&o.Queued, DefaultQueued)
	orDefault(&o.Appliers, DefaultAppliers)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnEnd == nil {
		o.OnEnd = func(backup.SnapshotID) {}
	}
	if o.OnRetry == nil {
		o.OnRetry = func(error) {}
	}
	return &Service{
		Parts: p, opts: o, log: o.Log,
		results: make(chan flow.Result), wake: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
}

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Run works until ctx is done.
func (s *Service) Run(ctx context.Context) {
	var owned sync.WaitGroup
	owned.Go(func() { s.dispatchLoop(ctx) })
	owned.Go(func() { s.finishLoop(ctx) })
	owned.Go(func() { s.leaseLoop(ctx) })
	for range s.opts.Appliers {
		owned.Go(func() { s.applyLoop(ctx) })
	}
	s.Conn.ConsumeResults(ctx, 2*applyBatch, func(r flow.Result) {
		select {
		case s.results <- r:
		case <-ctx.Done():
			r.Delivery.Retry(0)
		}
	})
	owned.Wait()
}

// signal tells a loop, which may have been told already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
