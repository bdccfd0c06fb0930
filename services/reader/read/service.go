package read

import (
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
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/store"
)

// Index is what a reader asks: where chunks are, and, for a file that cannot
// be read, what the last snapshot has of it.
type Index interface {
	index.Dedup
	index.Walking
}

// Options tune a reader; docs/tuning.md says how.
type Options struct {
	Worker  string // name of this process, for people
	Site    string // whose filers it can reach; "": backup.DefaultSite
	Batches int    // batches being read at a time
	InHand  int    // batches being read or waiting for their packs
	Workers int    // that compress and seal
	Uploads int    // packs on their way to the store at a time
	// Linger is how long a pack that is not full waits for more, when there
	// is nothing left to read.
	Linger time.Duration
	// OnRetry, if not nil, is told why a batch is handed back.
	OnRetry func(error)
	Log     *slog.Logger
}

// Defaults of Options.
const (
	DefaultBatches = 8
	DefaultInHand  = 64
	DefaultUploads = 2
	DefaultLinger  = 100 * time.Millisecond

	retryDelay = 2 * time.Second

	// largeWindows are filled at a time, over all batches.
	largeWindows = 4
)

// Parts are what a reader works with; they stay the caller's to close.
type Parts struct {
	Conn       *flow.Conn
	Index      Index
	Source     source.Source
	Store      store.Store
	Repository backup.Repository
	Key        seal.WorkerKey
	Report     *flow.Reporter
}

// A Service reads the batches that it is sent.
type Service struct {
	Parts
	opts     Options
	compress *pack.Compressor
	known    *known
	packer   *packer
	small    chan *window  // windows that are free
	large    chan *window  // windows that are free
	toStore  chan *window  // those that are full
	reading  chan struct{} // a token for each batch being read

	// To the committer; not through NATS in tests.
	sendPack  func(context.Context, *backup.PackStored) error
	sendBatch func(context.Context, *backup.BatchStored) error
}

// New returns a reader. It fails with backup.ErrInvalid where the repository
// asks for algorithms that this binary does not have.
func New(p Parts, o Options) (*Service, error) {
	orDefault(&o.Batches, DefaultBatches)
	orDefault(&o.InHand, DefaultInHand)
	orDefault(&o.Workers, runtime.GOMAXPROCS(0))
	orDefault(&o.Uploads, DefaultUploads)
	orDefault(&o.Linger, DefaultLinger)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
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
		small:   newWindows(o.Batches+o.Workers, smallWindowBytes),
		large:   newWindows(largeWindows+o.Workers, largeWindowBytes),
		toStore: make(chan *window),
		reading: make(chan struct{}, o.Batches),
	}
	s.packer = newPacker(s, sealer)
	s.sendPack = func(ctx context.Context, m *backup.PackStored) error { return flow.Publish(ctx, p.Conn, flow.Packs, m) }
	s.sendBatch = func(ctx context.Context, m *backup.BatchStored) error {
		return flow.Publish(ctx, p.Conn, flow.Batches, m)
	}
	return s, nil
}

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Run takes batches until ctx is done; those in hand are handed back then.
func (s *Service) Run(ctx context.Context) {
	var owned sync.WaitGroup
	s.start(ctx, &owned)
	var batches sync.WaitGroup
	s.Conn.ConsumeRead(ctx, s.opts.Site, s.opts.InHand, func(msg *backup.ReadBatch, d *flow.Delivery) {
		batches.Go(func() { s.handle(ctx, msg, d) })
	})
	batches.Wait()
	owned.Wait()
}

// start starts what batches give their windows to.
func (s *Service) start(ctx context.Context, owned *sync.WaitGroup) {
	for range s.opts.Workers {
		owned.Go(func() { s.storeWindows(ctx) })
	}
	owned.Go(func() { s.packer.run(ctx) })
}

func (s *Service) handle(ctx context.Context, msg *backup.ReadBatch, d *flow.Delivery) {
	done := s.Report.Batch(msg.Job.Snapshot, msg.ID)
	defer done()
	err := s.batch(ctx, msg)
	switch {
	case err == nil:
		d.Ack()
	case ctx.Err() != nil:
		d.Retry(0)
	default:
		s.opts.Log.Warn("read batch will be tried again", "snapshot", msg.Job.Snapshot.Short(), "batch", msg.ID, "attempt", msg.Attempt, "error", err)
		if s.opts.OnRetry != nil {
			s.opts.OnRetry(err)
		}
		d.Retry(retryDelay)
	}
}

// batch makes one attempt at a batch.
func (s *Service) batch(ctx context.Context, msg *backup.ReadBatch) error {
	b := &batch{svc: s, msg: msg, packs: map[*packRef]struct{}{}}
	select {
	case s.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.packer.begin()
	err := b.read(ctx)
	<-s.reading
	err = errors.Join(err, b.stored(ctx))
	s.packer.end()
	if err != nil {
		return err
	}
	return b.answer(ctx)
}
