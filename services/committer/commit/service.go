package commit

import (
	"cmp"
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
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// Index is the part of the index that a committer uses. Its database role may not do anything else
// (migrations.Privileges).
type Index interface {
	index.Committing
	index.Leading
	index.Governing
	index.Succeeding

	Clock(ctx context.Context) (time.Time, error)
	AnnouncedDeletion(ctx context.Context) (int64, error)
	Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error)
	Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error)
	Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error]
	ExpireLeases(ctx context.Context, id backup.SnapshotID) error
	InHand(ctx context.Context, now time.Time, limit int) ([]index.Work, error)
	ListFilers(ctx context.Context, f index.FilerFilter) ([]index.FilerStatus, error)
	ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error)
	ListPolicies(ctx context.Context) ([]backup.Policy, error)
	Stops(ctx context.Context) ([]index.Stop, error)
	Holds(ctx context.Context) ([]index.Hold, error)
	Brake(ctx context.Context) (index.Brake, error)
	ScrubSettings(ctx context.Context) (index.ScrubSettings, error)
}

// Options tune a committer; see docs/tuning.md.
type Options struct {
	Worker string // name of this process, for display
	// Holder is the name by which the index knows this process where it assigns something to one
	// committer, and which no other process has; "": one made of Worker.
	Holder string
	// Snapshots are the only ones to work for; nil: all.
	Snapshots []backup.SnapshotID
	// Alone means that no other process exists: the streams are made already, and there is no other
	// committer to lead, no observer of work in progress, and no other load on a filer. It saves
	// the keeper.
	Alone bool
	// Lease is the time without a report after which a worker's work in progress is assigned again.
	// QueueLease is the same for work that no worker has reported on yet. It is longer: a message
	// that waits for its turn is not lost, and one that was lost with its stream does not wait for
	// its lease.
	Lease      time.Duration
	QueueLease time.Duration
	Poll       time.Duration // how often open work is looked for without a signal
	Queued     int           // maximum tasks, and maximum batches, that are assigned at a time
	Appliers   int           // transactions at a time
	// StopTimeout is the maximum time to finish the work in progress when stopped.
	StopTimeout time.Duration
	// OnEnd, if not nil, is called when a snapshot was committed or failed.
	OnEnd func(backup.SnapshotID)
	// OnSnapshot, if not nil, is called when the index has announced that any process began or
	// ended a snapshot, and when announcements may have been missed.
	OnSnapshot func()
	// OnVacant, if not nil, is called when this committer has ended the term of a dead leader.
	OnVacant func()
	// MayApply and MayCommit, if not nil, return why this committer cannot apply results, which
	// needs the index, or commit snapshots, which also needs the store. Then it leaves them to
	// others.
	MayApply  func() error
	MayCommit func(context.Context) error
	// Unseen, if not nil, has the snapshots that this committer fails while it is the keeper,
	// because no worker sees their trees.
	Unseen <-chan []flow.Unseen
	// OnRetry, if not nil, receives the reason for a retry, instead of the log.
	OnRetry func(error)
	Log     *slog.Logger
	Metrics *telemetry.Committer // nil: nothing is measured
	Trace   *telemetry.Tracer    // nil: nothing is traced
	Health  *health.Process      // nil: health is not reported
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

// Parts are the dependencies of a committer; the caller closes them.
type Parts struct {
	Conn  *flow.Conn
	Index Index
	Store store.Store
	Keys  journal.Keys // for the objects that describe the index in the store
}

// A Service is one committer.
type Service struct {
	Parts
	opts        Options
	holder      string // identifies this process where the index assigns something to one committer
	log         *slog.Logger
	results     chan flow.Received
	wake        chan struct{} // there may be new work to assign
	freed       chan struct{} // work was settled: there may be room for more
	settled     chan struct{} // there may be a snapshot to commit
	vacant      chan struct{} // there may be no keeper
	unpublished chan struct{} // a message could not be published: the streams may be gone

	// handing is held from a claim of work until its messages are sent: a look for strays does not
	// list work that this process is sending.
	handing sync.Mutex

	mu       sync.Mutex
	leads    bool // it is the keeper
	governor *governor
	held     map[backup.FilerID]telemetry.Held // as workers last reported

	times   times
	workers workers // that have described themselves while this committer led

	packChecks sync.WaitGroup // of requests to the store for packs

	commitNanos atomic.Int64 // spent in transactions, and not yet added to a result
}

// New returns a committer.
func New(p Parts, o Options) *Service {
	o.Lease = cmp.Or(max(o.Lease, 0), DefaultLease)
	o.QueueLease = cmp.Or(max(o.QueueLease, 0), DefaultQueueLease)
	o.Poll = cmp.Or(max(o.Poll, 0), DefaultPoll)
	o.Queued = cmp.Or(max(o.Queued, 0), DefaultQueued)
	o.Appliers = cmp.Or(max(o.Appliers, 0), DefaultAppliers)
	o.StopTimeout = cmp.Or(max(o.StopTimeout, 0), DefaultStopTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnEnd == nil {
		o.OnEnd = func(backup.SnapshotID) {}
	}
	if o.OnSnapshot == nil {
		o.OnSnapshot = func() {}
	}
	if o.Holder == "" {
		o.Holder = o.Worker + "-" + rand.Text()[:8]
	}
	if o.MayApply == nil {
		o.MayApply = func() error { return nil }
	}
	if o.MayCommit == nil {
		o.MayCommit = func(context.Context) error { return nil }
	}
	if o.OnVacant == nil {
		o.OnVacant = func() {}
	}
	return &Service{
		Parts: p, opts: o, holder: o.Holder, log: o.Log,
		results: make(chan flow.Received), wake: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		settled: make(chan struct{}, 1), vacant: make(chan struct{}, 1), unpublished: make(chan struct{}, 1),
		leads: o.Alone, governor: newGovernor(), times: keeperTimes,
	}
}

// Run works until ctx is done. Then it takes nothing new, finishes the transactions and segments in
// progress, and abandons what is not done within StopTimeout. Run returns even if a goroutine still
// hangs.
func (s *Service) Run(ctx context.Context) {
	work, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	done := make(chan struct{})
	go func() { // ends with the goroutines that it runs; Run waits for it within StopTimeout
		defer close(done)
		s.run(ctx, work)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	// The last tenth is for work that ends because its context is cancelled.
	grace := time.AfterFunc(s.opts.StopTimeout*9/10, giveUp)
	defer grace.Stop()
	late := time.NewTimer(s.opts.StopTimeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		s.log.Warn("stopped with unfinished work, which another committer will do", "seconds", s.opts.StopTimeout.Seconds())
	}
}

// run takes work until ctx is done. work is the context of the work in progress.
func (s *Service) run(ctx, work context.Context) {
	var owned sync.WaitGroup
	owned.Go(func() { s.dispatchLoop(ctx) })
	owned.Go(func() { s.finishLoop(ctx, work) })
	owned.Go(func() { s.reportLoop(ctx) })
	if !s.opts.Alone {
		owned.Go(func() { s.keeperLoop(ctx) })
		owned.Go(func() { s.successionLoop(ctx) })
		owned.Go(func() { s.listenLoop(ctx) })
	}
	for range s.opts.Appliers {
		owned.Go(func() { s.applyLoop(ctx, work) })
	}
	s.Conn.ConsumeResults(ctx, work, 2*applyBatch, func(r flow.Received) { s.receive(ctx, work, r) })
	s.packChecks.Wait()
	owned.Wait()
}
