package read

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// maxPackAge is how long a partly filled pack waits for more chunks while there are files to read;
// batches in it wait as long. It is longer in tests.
var maxPackAge = 10 * time.Second

const (
	// packBufferBytes hold a pack that has just become full, and its table.
	packBufferBytes = pack.TargetBytes + 3<<20
	// maxOpenBytes bounds the packs being filled, one per snapshot: beyond it the fullest is
	// uploaded as it is.
	maxOpenBytes = 4 * pack.TargetBytes
	// fullBuffers is how many open packs start with a buffer for a full pack. If there are more,
	// the others start with a small one.
	fullBuffers = 4
	// durableRefs is how many packs are remembered as durable.
	durableRefs = 4096
)

// A packRef is a pack that batches rely on. done is closed when the pack is durable and reported to
// the committer, or when that failed.
type packRef struct {
	id   backup.PackID
	done chan struct{}
	err  error // valid once done is closed
}

func (r *packRef) failed() bool {
	select {
	case <-r.done:
		return r.err != nil
	default:
		return false
	}
}

// An openPack is a pack being filled for one snapshot.
type openPack struct {
	ref      *packRef
	snapshot backup.SnapshotID
	trace    telemetry.Parent // the batch that began the pack
	writer   *pack.Writer
	places   []backup.ChunkPlace
	opened   time.Time
}

// A packer seals frames into packs, one at a time per snapshot, and uploads packs that are full or
// that get no more frames.
type packer struct {
	svc    *Service
	sealer *seal.Sealer

	mu   sync.Mutex
	open map[backup.SnapshotID]*openPack
	held int                        // bytes in open packs
	refs map[backup.PackID]*packRef // durable packs

	active  atomic.Int64 // batches that may still add
	hurried atomic.Bool  // packs are uploaded although more frames might come

	full  chan *openPack
	idle  chan struct{} // signaled when active becomes 0
	bufs  chan []byte   // of uploaded packs, for reuse
	owned sync.WaitGroup

	uploadNanos atomic.Int64 // spent, and not yet reported by a batch
}

func newPacker(svc *Service, sealer *seal.Sealer) *packer {
	return &packer{
		svc: svc, sealer: sealer,
		open: map[backup.SnapshotID]*openPack{}, refs: map[backup.PackID]*packRef{},
		full: make(chan *openPack), idle: make(chan struct{}, 1), bufs: make(chan []byte, svc.opts.Uploads+1),
	}
}

// run uploads until ctx is done. Packs that are not uploaded by then are lost, and so are the
// attempts that rely on them.
func (p *packer) run(ctx context.Context) {
	for range p.svc.opts.Uploads {
		p.owned.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case full := <-p.full:
					p.upload(ctx, full)
				}
			}
		})
	}
	p.flushLoop(ctx)
	p.owned.Wait()
}

// flushLoop uploads packs that are not full in time.
func (p *packer) flushLoop(ctx context.Context) {
	age := time.NewTicker(maxPackAge / 4)
	defer age.Stop()
	linger := time.NewTimer(0)
	linger.Stop()
	defer linger.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.idle:
			if p.hurried.Load() {
				p.flush(ctx, 0)
			} else {
				linger.Reset(p.svc.opts.Linger)
			}
		case <-linger.C:
			p.flush(ctx, 0)
		case <-age.C:
			p.flush(ctx, maxPackAge)
		}
	}
}

// flush uploads the open packs of at least this age; for age 0, only if no batch may add to them.
func (p *packer) flush(ctx context.Context, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if age == 0 && p.active.Load() > 0 && !p.hurried.Load() {
		return
	}
	for _, open := range p.open {
		if time.Since(open.opened) >= age {
			if p.close(ctx, open) != nil {
				return
			}
		}
	}
}

// begin and end enclose the time in which a batch may add to packs.
func (p *packer) begin() { p.active.Add(1) }

func (p *packer) end() {
	if p.active.Add(-1) == 0 || p.hurried.Load() {
		loop.Wake(p.idle)
	}
}

// hurry makes packs be uploaded as soon as a batch is read, because the reader stops.
func (p *packer) hurry() {
	p.hurried.Store(true)
	loop.Wake(p.idle)
}

// add seals a frame into the snapshot's open pack, and returns by how many bytes the pack grew. It
// blocks while the maximum number of packs is being uploaded.
func (p *packer) add(ctx context.Context, snapshot backup.SnapshotID, f pack.Frame) (ref *packRef, grewBytes int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := p.open[snapshot]
	if open != nil && !open.writer.Fits(f) {
		if err := p.close(ctx, open); err != nil {
			return nil, 0, err
		}
		open = nil
	}
	before := 0
	if open != nil {
		before = open.writer.Size()
	} else if open, err = p.newPack(ctx, snapshot); err != nil {
		return nil, 0, err
	}
	ref = open.ref
	n, err := open.writer.Add(f)
	if err != nil {
		return nil, 0, err
	}
	for _, c := range f.Chunks {
		open.places = append(open.places, backup.ChunkPlace{ID: c.Hash.ID(), Frame: n, Offset: c.Offset, Length: c.Length})
	}
	grewBytes = open.writer.Size() - before
	p.held += grewBytes
	switch {
	case open.writer.Size() >= pack.TargetBytes:
		err = p.close(ctx, open)
	case p.held > maxOpenBytes:
		err = p.close(ctx, p.fullest())
	}
	return ref, grewBytes, err
}

func (p *packer) newPack(ctx context.Context, snapshot backup.SnapshotID) (*openPack, error) {
	var buf []byte
	if len(p.open) < fullBuffers {
		select {
		case buf = <-p.bufs:
		default:
			buf = make([]byte, 0, packBufferBytes)
		}
	}
	ref := &packRef{id: backup.NewPackID(), done: make(chan struct{})}
	w, err := pack.NewWriter(pack.KindData, p.svc.Repository.ID, ref.id, p.sealer, buf)
	if err != nil {
		return nil, err
	}
	open := &openPack{ref: ref, snapshot: snapshot, trace: telemetry.ParentOf(ctx), writer: w, opened: time.Now()}
	p.open[snapshot] = open
	return open, nil
}

func (p *packer) fullest() (fullest *openPack) {
	for _, open := range p.open {
		if fullest == nil || open.writer.Size() > fullest.writer.Size() {
			fullest = open
		}
	}
	return fullest
}

// close passes an open pack to an upload. The caller holds mu.
func (p *packer) close(ctx context.Context, open *openPack) error {
	delete(p.open, open.snapshot)
	p.held -= open.writer.Size()
	select {
	case p.full <- open:
		return nil
	case <-ctx.Done():
		open.ref.err = ctx.Err()
		close(open.ref.done)
		return ctx.Err()
	}
}

func (p *packer) upload(ctx context.Context, open *openPack) {
	ctx, span := p.svc.opts.Trace.Start(open.trace.Below(ctx), "put pack", open.snapshot,
		slog.String("pack", open.ref.id.String()), slog.Int("bytes", open.writer.Size()))
	open.ref.err = p.put(ctx, open)
	span.End(open.ref.err)
	close(open.ref.done)
}

func (p *packer) put(ctx context.Context, open *openPack) error {
	data, err := open.writer.Finish()
	if err != nil {
		return err
	}
	if cap(data) >= packBufferBytes {
		defer func() {
			select {
			case p.bufs <- data[:0]:
			default:
			}
		}()
	}
	started := time.Now()
	// A failed Put may leave an orphan object: the pack's name is not used again.
	if err := p.svc.Store.Put(ctx, store.PackName(open.snapshot, open.ref.id), data); err != nil {
		return err
	}
	took := time.Since(started)
	p.uploadNanos.Add(int64(took))
	p.svc.opts.Metrics.Pack(len(data), took)
	m := &backup.PackStored{
		Snapshot: open.snapshot, Pack: open.ref.id, StoredBytes: int64(len(data)),
		FrameBytes: slices.Clone(open.writer.FrameBytes()), Chunks: open.places,
	}
	return p.svc.tell(ctx, "pack "+m.Pack.String(), func() error { return p.svc.sendPack(ctx, m) })
}

// tell calls send until the message is accepted, because later messages rely on it.
func (s *Service) tell(ctx context.Context, about string, send func() error) error {
	for {
		err := send()
		switch {
		case err == nil || !errors.Is(err, backup.ErrUnavailable):
			return err
		case ctx.Err() != nil: // the cause of the failure
			return ctx.Err()
		}
		s.opts.Log.Warn("the committer cannot be told yet", "about", about, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryDelay):
		}
	}
}

// durable returns the ref of a pack that the index has.
func (p *packer) durable(id backup.PackID) *packRef {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref := p.refs[id]; ref != nil {
		return ref
	}
	if len(p.refs) >= durableRefs {
		clear(p.refs)
	}
	ref := &packRef{id: id, done: make(chan struct{})}
	close(ref.done)
	p.refs[id] = ref
	return ref
}
