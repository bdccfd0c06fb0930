package read

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/stall"
	"github.com/bctl/bctl/internal/telemetry"
)

// A batch is one attempt at a read batch.
type batch struct {
	svc      *Service
	msg      *backup.ReadBatch
	delivery delivery
	looks    int // deliveries at this attempt, to any reader
	started  time.Time
	trace    telemetry.Parent
	work     *stall.Work
	counted  atomic.Bool            // it has a slot in svc.inHand
	done     atomic.Pointer[func()] // ends the reports
	pages    []page                 // while it is read
	complete []backup.PageVersion   // afterwards

	// Used by the reading goroutine:
	saidHidden bool // that the mount shows no extended attributes
	hash       *chunk.Hasher
	cutter     *chunk.Cutter
	class      backup.Class // of the file that was read last
	buffer     *chunkBuffer
	short      bool                // a read of this file returned less than its size
	links      map[link]linkedFile // files that have several names
	tree       source.Tree
	file       openFile
	pace       *pace
	at         advance

	counts       backup.Counts
	problems     []backup.Problem
	problemBytes int
	inlineBytes  int // of extended attributes in the listings
	racyFrom     backup.Time
	lists        []backup.ChunkList // not yet reported to the committer
	listBytes    int

	// Results of the store workers, guarded by mu:
	storing sync.WaitGroup // buffers that are not stored yet
	mu      sync.Mutex
	packs   map[*packRef]struct{} // that contain the content
	stage   backup.Counts         // of the stages after reading
	err     error
}

// begin registers a batch as in progress, until its end.
func (s *Service) begin(msg *backup.ReadBatch, d delivery) *batch {
	b := &batch{svc: s, msg: msg, delivery: d, started: time.Now(), packs: map[*packRef]struct{}{}, pace: newPace(msg.Job.ReadBytesPerSecond)}
	if d != nil { // nil in tests
		b.looks = d.Attempts()
	}
	b.work = s.watch.Begin(b.filer(), b)
	return b
}

func (b *batch) end() {
	b.giveSlot()
	b.work.End()
}

func (b *batch) filer() backup.FilerID { return b.msg.Job.Filer }

// handle makes an attempt at a batch and ends its delivery. When ctx is done it starts nothing new,
// and when work is done it ends what it started.
func (s *Service) handle(ctx, work context.Context, b *batch) {
	defer b.end()
	done := sync.OnceFunc(s.Report.Batch(&b.msg.Job, b.msg.ID)) // before all that waits: nobody looks for work that was not reported
	b.done.Store(&done)
	defer done()
	s.forgetReplaced(work)
	work, span := s.opts.Trace.Start(b.delivery.Trace(work), "read batch", b.msg.Job.Snapshot,
		slog.Int64("batch", int64(b.msg.ID)), slog.Int("attempt", int(b.msg.Attempt)))
	b.trace = telemetry.ParentOf(work)
	err := s.attempt(ctx, work, b)
	span.End(err)
	switch {
	case err == nil:
		b.delivery.Ack()
	case ctx.Err() != nil:
		b.delivery.Retry(0)
	case isRefused(err) || s.opts.Refused() != nil: // the reason was logged
		s.opts.Metrics.Retry(err)
		b.delivery.Retry(0) // to another reader: this one takes none
	default:
		s.retrying(b, err)
		if source.IsOtherTree(err) {
			b.delivery.Retry(blindDelay)
			return
		}
		b.delivery.RetryLater()
	}
}

func (s *Service) retrying(b *batch, err error) {
	s.Report.HandedBack(b.msg.Job.Snapshot, err, source.IsOtherTree(err))
	s.opts.Metrics.Retry(err)
	if s.opts.OnRetry != nil {
		s.opts.OnRetry(err)
		return
	}
	s.opts.Log.Warn("read batch will be tried again", "filer", b.msg.Job.FilerName, "shard", b.msg.Job.ShardName, "snapshot", b.msg.Job.Snapshot.Short(), "batch", b.msg.ID,
		"attempt", b.msg.Attempt, "error", err)
}

// attempt makes one attempt at a batch: it reads the files (batch.read), waits until the store
// workers have put the new chunks into packs, and answers (batch.answer).
func (s *Service) attempt(ctx, work context.Context, b *batch) error {
	if err := s.reading.Take(ctx, b.filer()); err != nil {
		return err
	}
	if err := s.refused(); err != nil {
		s.reading.Give(b.filer())
		return err
	}
	s.packer.join(b.msg.Job.Snapshot)
	err := b.read(work)
	s.reading.Give(b.filer())
	if stored := b.awaitStored(work); !errors.Is(err, stored) { // read may have returned it already
		err = errors.Join(err, stored)
	}
	s.packer.leave(b.msg.Job.Snapshot)
	switch {
	case errors.Is(err, source.ErrExpired), b.isBlind(err):
		return b.fail(work, err)
	case err != nil:
		return err
	}
	s.Report.Saw(b.msg.Job.Snapshot)
	return b.answer(work)
}

// awaitStored waits until all buffers of the batch are in packs.
func (b *batch) awaitStored(ctx context.Context) error {
	done := make(chan struct{})
	// Ends when the workers have finished the buffers, which they do also when ctx is done.
	go func() {
		b.storing.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return b.notStored()
}

// notStored returns why a buffer of the batch could not be stored.
func (b *batch) notStored() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// A reader that sees a different tree than the one that was walked hands the batch back after
// blindDelay, to any reader. If no reader that is ready sees it, the keeper fails the snapshot
// (flow.Unseen). After blindLooks deliveries in an attempt, and blindAttempts attempts, no reader
// is expected to see the right tree, although one may be too busy to look.
const (
	blindDelay    = time.Second
	blindLooks    = 10
	blindAttempts = 3
)

// isBlind reports whether err means that no reader is expected to see the tree of the batch.
func (b *batch) isBlind(err error) bool {
	return source.IsOtherTree(err) && (b.svc.opts.Alone || b.looks >= blindLooks && b.msg.Attempt >= blindAttempts)
}
