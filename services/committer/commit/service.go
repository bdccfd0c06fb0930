package commit

import (
	"context"
	"crypto/rand"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/run/health"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// Index is what a committer does with the index. What is not here, its role in
// the database may not do (migrations.Privileges).
type Index interface {
	index.Committing
	index.Leading

	Clock(ctx context.Context) (time.Time, error)
	Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error)
	Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error)
	Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error]
	ExpireLeases(ctx context.Context, id backup.SnapshotID) error
	ListFilers(ctx context.Context, f index.FilerFilter) ([]index.FilerStatus, error)
	ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error)
	ListPolicies(ctx context.Context) ([]backup.Policy, error)
}

// Options tune a committer; docs/tuning.md says how.
type Options struct {
	Worker string // name of this process, for people
	// Snapshots are the only ones to work for; nil: all.
	Snapshots []backup.SnapshotID
	// Alone says that this process is all there is: its streams are made already, and nobody else would
	// lead, look at who has what in hand, or make a filer slow. It saves the keeper.
	Alone bool
	// Lease is after how long without a report work is handed out again that a
	// worker had in hand; QueueLease is that of work which no worker has reported on
	// yet. It is longer: a message that waits for its turn is not lost, and one that
	// was lost with its stream does not wait for it.
	Lease      time.Duration
	QueueLease time.Duration
	Poll       time.Duration // how often open work is looked for without being told of any
	Queued     int           // tasks, and batches, that may be handed out at a time
	Appliers   int           // transactions at a time
	// StopTimeout is how long, told to stop, it takes at most to finish what it has in hand.
	StopTimeout time.Duration
	// OnEnd, if not nil, is told when a snapshot was committed or failed.
	OnEnd func(backup.SnapshotID)
	// OnRetry, if not nil, is told why something has to be tried again, in place of the log.
	OnRetry func(error)
	Log     *slog.Logger
	Metrics *telemetry.Committer // nil: nothing is measured
	Trace   *telemetry.Tracer    // nil: nothing is traced
	Health  *health.Process      // nil: nobody asks
}

// Defaults of Options.
const (
	DefaultLease       = 60 * time.Second
	DefaultQueueLease  = 10 * time.Minute
	DefaultPoll        = 250 * time.Millisecond
	DefaultQueued      = 512
	DefaultAppliers    = 2
	DefaultStopTimeout = 10 * time.Second
)

// Parts are what a committer works with; they stay the caller's to close.
type Parts struct {
	Conn  *flow.Conn
	Index Index
	Store store.Store
	Keys  journal.Keys // of what the store gets to know of the index
}

// A Service is one committer.
type Service struct {
	Parts
	opts        Options
	holder      string // this process, where the index gives something to one committer
	log         *slog.Logger
	results     chan flow.Result
	wake        chan struct{} // there may be new work to hand out
	freed       chan struct{} // work was settled: there may be room for more
	settled     chan struct{} // there may be a snapshot to commit
	unpublished chan struct{} // something could not be published: the streams may be gone

	mu       sync.Mutex
	leads    bool // it is the keeper
	governor *governor
	held     map[backup.FilerID]telemetry.Held // as workers last reported

	times times

	stats sync.WaitGroup // packs that the store is asked for

	commitNanos atomic.Int64 // spent in transactions, and not yet told by a result
}

// New returns a committer.
func New(p Parts, o Options) *Service {
	orDefault(&o.Lease, DefaultLease)
	orDefault(&o.QueueLease, DefaultQueueLease)
	orDefault(&o.Poll, DefaultPoll)
	orDefault(&o.Queued, DefaultQueued)
	orDefault(&o.Appliers, DefaultAppliers)
	orDefault(&o.StopTimeout, DefaultStopTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnEnd == nil {
		o.OnEnd = func(backup.SnapshotID) {}
	}
	return &Service{
		Parts: p, opts: o, holder: o.Worker + "-" + rand.Text()[:8], log: o.Log,
		results: make(chan flow.Result), wake: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		settled: make(chan struct{}, 1), unpublished: make(chan struct{}, 1),
		leads: o.Alone, governor: newGovernor(), times: keeperTimes,
	}
}

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Run works until ctx is done. Then it takes nothing new, finishes the transactions and
// segments that it has in hand, and gives up what is not done in StopTimeout. What
// hangs beyond that is left to hang: Run returns.
func (s *Service) Run(ctx context.Context) {
	hand, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	done := make(chan struct{})
	go func() { // ends with what it runs; Run waits for it as long as it may
		defer close(done)
		s.run(ctx, hand)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	// The last tenth is for what hears that it is given up.
	grace := time.AfterFunc(s.opts.StopTimeout*9/10, giveUp)
	defer grace.Stop()
	late := time.NewTimer(s.opts.StopTimeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		s.log.Warn("stopped with work in hand that does not end; it comes again elsewhere", "seconds", s.opts.StopTimeout.Seconds())
	}
}

// run works until ctx is done, with hand as the context of what it has in hand.
func (s *Service) run(ctx, hand context.Context) {
	var owned sync.WaitGroup
	owned.Go(func() { s.dispatchLoop(ctx) })
	owned.Go(func() { s.finishLoop(ctx, hand) })
	owned.Go(func() { s.reportLoop(ctx) })
	if !s.opts.Alone {
		owned.Go(func() { s.keeperLoop(ctx) })
		owned.Go(func() { s.listenLoop(ctx) })
	}
	for range s.opts.Appliers {
		owned.Go(func() { s.applyLoop(ctx, hand) })
	}
	s.Conn.ConsumeResults(ctx, 2*applyBatch, func(r flow.Result) { s.receive(ctx, hand, r) })
	s.stats.Wait()
	owned.Wait()
}

// signal tells a loop, which may have been told already.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
