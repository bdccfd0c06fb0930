package read

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/stall"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// Index is what a reader queries: the location of chunks and, for a file that cannot be read, the
// last snapshot's version.
type Index interface {
	index.Dedup
	// Incarnation is as in index.Comparing.
	Incarnation(ctx context.Context) (string, error)
	// The pages of the last snapshot, as in index.Walking.
	Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error)
	DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (path string, ok bool, err error)
	PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error)
}

// Options tune a reader; see docs/tuning.md.
type Options struct {
	Worker  string // name of this process, for display
	Site    string // whose filers it can reach; "": backup.DefaultSite
	Batches int    // batches of one filer being read at a time; four times as many of all
	// Batches of one filer being read or waiting for their packs; twice as many of all.
	InHand  int
	Workers int // that compress and seal
	Uploads int // packs being uploaded at a time
	// Linger is how long a partly filled pack waits for more chunks when there is nothing left to
	// read.
	Linger time.Duration
	// StallAfter is how long a filer may take to answer one call. After that the batch is stalled:
	// it keeps waiting, and blocks no other.
	StallAfter time.Duration
	// StopTimeout is the maximum time that Run takes once its ctx is done: it finishes its work in
	// progress, and hands back what it cannot finish. Below 0: it hands back everything at once.
	StopTimeout time.Duration
	// Alone means that no other reader exists that might see a tree that this one does not.
	Alone bool
	// Refused, if not nil, returns why the store refuses writes at present: then all work in
	// progress is handed back, and requests to the store end. It returns nil if the store accepts
	// writes. It is called often.
	Refused func() error
	// OnRetry, if not nil, receives the reason why a batch is handed back, instead of the log.
	OnRetry func(error)
	Log     *slog.Logger
	Metrics *telemetry.Reader // nil: nothing is measured
	Trace   *telemetry.Tracer // nil: nothing is traced
	Health  *health.Process   // nil: health is not reported
}

// Defaults of Options.
const (
	DefaultBatches     = 8
	DefaultInHand      = 64
	DefaultUploads     = 2
	DefaultLinger      = 100 * time.Millisecond
	DefaultStallAfter  = 10 * time.Second
	DefaultStopTimeout = 10 * time.Second

	retryDelay = 2 * time.Second
	// crowdedDelay is the delay before a batch is delivered again, to any reader, if its filer has
	// too many in progress here.
	crowdedDelay = 500 * time.Millisecond
	// leavingTime is the part of StopTimeout reserved for cancelled work to end.
	leavingTime = time.Second

	// largeBuffers is how many large buffers are filled at a time for one filer.
	largeBuffers = 4
	// allFilers is the number of batches being read at a time, as a multiple of one filer's.
	allFilers = 4
)

// A delivery is a batch as it came from the queue: a flow.Delivery.
type delivery interface {
	Ack()
	Retry(delay time.Duration)
	RetryLater()
	Stalled()
	Attempts() int
	Trace(ctx context.Context) context.Context
}

// Parts are the dependencies of a reader; the caller closes them.
type Parts struct {
	Conn       *flow.Conn
	Index      Index
	Source     source.Source
	Store      store.Store
	Repository backup.Repository
	Key        seal.WorkerKey
	Report     *flow.Reporter
}

// A Service reads the batches that it receives.
type Service struct {
	Parts
	opts     Options
	compress *pack.Compressor
	known    *known
	packer   *packer
	watch    *stall.Watch // of the batches in progress
	inHand   *stall.Slots // for batches in progress that are not stalled
	reading  *stall.Slots // for batches that are being read
	small    *bufferPool
	large    *bufferPool
	toStore  chan *chunkBuffer // full ones

	packChecks  packChecks
	incarnation incarnation

	warnUnseen sync.Once // packs cannot be seen
	warnLimits sync.Once // nor can limits

	// Publish to flow.Packs, flow.Lists and flow.Batches; in tests, not through NATS.
	sendPack  func(context.Context, *backup.PackStored) error
	sendLists func(context.Context, *backup.ListsStored) error
	sendBatch func(context.Context, *backup.BatchStored) error
}

// New returns a reader. It fails with backup.ErrInvalid if the repository requires algorithms that
// this binary does not have.
func New(p Parts, o Options) (*Service, error) {
	o.Batches = cmp.Or(max(o.Batches, 0), DefaultBatches)
	o.InHand = cmp.Or(max(o.InHand, 0), DefaultInHand)
	o.Workers = cmp.Or(max(o.Workers, 0), runtime.GOMAXPROCS(0))
	o.Uploads = cmp.Or(max(o.Uploads, 0), DefaultUploads)
	o.Linger = cmp.Or(max(o.Linger, 0), DefaultLinger)
	o.StallAfter = cmp.Or(max(o.StallAfter, 0), DefaultStallAfter)
	if o.StopTimeout == 0 {
		o.StopTimeout = DefaultStopTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Refused == nil {
		o.Refused = func() error { return nil }
	}
	compress, err := pack.NewCompressor(p.Repository.Codec)
	if err != nil {
		return nil, err
	}
	if _, err := chunk.NewCutter(p.Repository.Chunker, p.Key.Dedup); err != nil {
		return nil, err
	}
	sealer, err := seal.NewSealer(p.Key.Recipients)
	if err != nil {
		return nil, err
	}
	s := &Service{
		Parts: p, opts: o, compress: compress,
		known:   newKnown(),
		watch:   stall.NewWatch(o.StallAfter, maxStalled),
		inHand:  stall.NewSlots(2*o.InHand, o.InHand),
		reading: stall.NewSlots(allFilers*o.Batches, o.Batches),
		small:   newBufferPool(allFilers*o.Batches/2+o.Workers, 2*o.Batches, smallBufferBytes),
		large:   newBufferPool(largeBuffers+o.Workers, 2*largeBuffers, largeBufferBytes),
		toStore: make(chan *chunkBuffer),
	}
	s.Index = patient{p.Index, s}
	s.packer = newPacker(s, sealer)
	s.sendPack = func(ctx context.Context, m *backup.PackStored) error { return flow.Publish(ctx, p.Conn, flow.Packs, m) }
	s.sendLists = func(ctx context.Context, m *backup.ListsStored) error {
		return flow.Publish(ctx, p.Conn, flow.Lists, m)
	}
	s.sendBatch = func(ctx context.Context, m *backup.BatchStored) error {
		return flow.Publish(ctx, p.Conn, flow.Batches, m)
	}
	return s, nil
}

// Run takes batches until ctx is done, and then finishes its work in progress; what it cannot
// finish within StopTimeout it hands back. It returns within that time even if a filer never
// answers: a goroutine that waits for one is left behind, and ends with its call.
func (s *Service) Run(ctx context.Context) {
	s.run(ctx, func(handle func(*backup.ReadBatch, delivery)) {
		s.Conn.ConsumeRead(ctx, s.opts.Site, 2*s.opts.InHand, func(msg *backup.ReadBatch, d *flow.Delivery) { handle(msg, d) })
	})
}

// run is Run with batches from consume, which returns when ctx is done.
func (s *Service) run(ctx context.Context, consume func(handle func(*backup.ReadBatch, delivery))) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer s.opts.Metrics.InHand(0, 0) // the process may keep running, drained
	defer end()
	var owned sync.WaitGroup
	s.start(work, &owned)
	var batches sync.WaitGroup
	consume(func(msg *backup.ReadBatch, d delivery) {
		if !s.inHand.TryTake(msg.Job.Filer) {
			d.Retry(crowdedDelay)
			return
		}
		b := s.begin(msg, d)
		b.counted.Store(true)
		batches.Go(func() { s.handle(ctx, work, b) })
	})
	s.packer.hurry()
	leaving := s.finish()
	end()
	drained := errors.Is(context.Cause(ctx), flow.ErrDrained)
	s.eachBatch(func(b *batch) { // without waiting for its goroutine
		if done := b.done.Load(); done != nil && drained {
			(*done)() // the process goes on, and would renew the lease
		}
		b.delivery.Retry(0)
	})
	left := make(chan struct{})
	go func() { // ends with the last call that hangs
		batches.Wait()
		owned.Wait()
		close(left)
	}()
	select {
	case <-left:
	case <-time.After(leaving):
		s.opts.Log.Warn("reader stops while calls of a filer or of the store still hang")
	}
}

// finish waits for the batches in progress that do not wait for their filer, and returns how long
// the others may take to end.
func (s *Service) finish() (leaving time.Duration) {
	if s.opts.StopTimeout < 0 {
		return DefaultStopTimeout
	}
	leaving = min(leavingTime, s.opts.StopTimeout/4)
	s.watch.AwaitIdle(s.opts.StopTimeout - leaving)
	return leaving
}

// start starts the goroutines that take the batches' buffers, and the watch.
func (s *Service) start(ctx context.Context, owned *sync.WaitGroup) {
	for range s.opts.Workers {
		owned.Go(func() { s.storeBuffers(ctx) })
	}
	owned.Go(func() { s.packer.run(ctx) })
	owned.Go(func() { s.watchFilers(ctx) })
	owned.Go(func() { s.followLimits(ctx) })
}
