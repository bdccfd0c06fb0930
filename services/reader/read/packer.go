package read

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// maxPackAge is how long a partly filled pack waits for more chunks while batches of its snapshot
// are being read; the batches that rely on it wait as long. Batches of other snapshots wait for a
// tenth of that. It is longer in tests.
var maxPackAge = 10 * time.Second

const (
	// packBufferBytes hold a pack that has just become full, and its table.
	packBufferBytes = pack.TargetBytes + 3<<20
	// maxOpenBytes bounds the packs being filled, one per snapshot: beyond it the fullest is
	// uploaded as it is.
	maxOpenBytes = 4 * pack.TargetBytes
	// maxSummed is up to how many frames a pack has checksums: more would not fit into a message.
	maxSummed = 8192
	// fullBuffers is how many open packs start with a buffer for a full pack. If there are more,
	// the others start with a small one.
	fullBuffers = 4
	// durableRefs is how many packs are remembered as durable.
	durableRefs = 4096
	// registeredWithin is how long the committer may take to register a pack that was reported.
	registeredWithin = 5 * time.Second
)

// A packRef is a pack that batches rely on. done is closed when the pack is durable and reported to
// the committer, or when that failed.
type packRef struct {
	id       backup.PackID
	snapshot backup.SnapshotID // zero if the pack was durable before
	done     chan struct{}
	err      error     // valid once done is closed
	reported time.Time // valid once done is closed

	awaited atomic.Bool // by a batch of another snapshot
}

// mayRely reports whether a batch of the snapshot may rely on the pack without a look into the
// index. The committer drops the report of a pack that comes after the end of the pack's snapshot:
// whether it did only the index knows.
func (r *packRef) mayRely(snapshot backup.SnapshotID, now time.Time) bool {
	select {
	case <-r.done:
		return r.err == nil && (r.snapshot == snapshot || now.Sub(r.reported) < registeredWithin)
	default:
		return true
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

	// mu guards open and held. It is held while a full pack waits for an upload, so that all
	// batches that add frames wait too. Everything else has a lock of its own, which is never held
	// for long.
	mu   sync.Mutex
	open map[backup.SnapshotID]*openPack
	held int // bytes in open packs

	using sync.Mutex // guards uses
	uses  map[backup.SnapshotID]use

	referring sync.Mutex                 // guards refs
	refs      map[backup.PackID]*packRef // durable packs

	hurried atomic.Bool // packs are uploaded although more frames might come

	full    chan *openPack
	changed chan struct{} // signaled when an open pack may have become due
	bufs    chan []byte   // of uploaded packs, for reuse
	owned   sync.WaitGroup

	uploadNanos atomic.Int64 // spent, and not yet reported by a batch
}

// A use describes the batches that may add to the pack of their snapshot.
type use struct {
	batches int       // that may still add
	ended   time.Time // when the last of them ended; valid if batches is 0
}

func newPacker(svc *Service, sealer *seal.Sealer) *packer {
	return &packer{
		svc: svc, sealer: sealer,
		open: map[backup.SnapshotID]*openPack{}, refs: map[backup.PackID]*packRef{}, uses: map[backup.SnapshotID]use{},
		full: make(chan *openPack), changed: make(chan struct{}, 1), bufs: make(chan []byte, svc.opts.Uploads+1),
	}
}

// add seals a frame into the snapshot's open pack, and returns by how many bytes the pack grew. A
// pack that is full is passed on to be uploaded (enqueue, upload, put); flushLoop does that for one
// that gets no more. add blocks while the maximum number of packs is being uploaded.
func (p *packer) add(ctx context.Context, snapshot backup.SnapshotID, f pack.Frame) (ref *packRef, grewBytes int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open, before, err := p.packFor(ctx, snapshot, f)
	if err != nil {
		return nil, 0, err
	}
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
		err = p.enqueue(ctx, open)
	case p.held > maxOpenBytes:
		err = p.enqueue(ctx, p.fullest())
	}
	return open.ref, grewBytes, err
}

// packFor returns the open pack of the snapshot and its size or, if there is none that f fits into,
// a new one and zero.
func (p *packer) packFor(ctx context.Context, snapshot backup.SnapshotID, f pack.Frame) (open *openPack, sizeBytes int, err error) {
	if open = p.open[snapshot]; open != nil {
		if open.writer.Fits(f) {
			return open, open.writer.Size(), nil
		}
		if err := p.enqueue(ctx, open); err != nil {
			return nil, 0, err
		}
	}
	open, err = p.newPack(ctx, snapshot)
	return open, 0, err
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
	ref := &packRef{id: backup.NewPackID(), snapshot: snapshot, done: make(chan struct{})}
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

// enqueue passes an open pack, which gets no more frames, to an upload. The caller holds mu.
func (p *packer) enqueue(ctx context.Context, open *openPack) error {
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

func (p *packer) upload(ctx context.Context, open *openPack) {
	ctx, span := p.svc.opts.Trace.Start(open.trace.Below(ctx), "put pack", open.snapshot,
		slog.String("pack", open.ref.id.String()), slog.Int("bytes", open.writer.Size()))
	open.ref.err = p.put(ctx, open)
	open.ref.reported = time.Now()
	span.End(open.ref.err)
	close(open.ref.done)
}

func (p *packer) put(ctx context.Context, open *openPack) error {
	data, err := open.writer.Finish()
	if err != nil {
		return err
	}
	defer p.reuse(data)
	var sums pack.Sums
	if frames := open.writer.FrameBytes(); len(frames) <= maxSummed {
		if sums, err = pack.SumsOf(data, frames); err != nil {
			return err
		}
	}
	started := time.Now()
	// A failed Put may leave an orphan object: the pack's name is not used again.
	if err := p.svc.whileAccepted(ctx, func(ctx context.Context) error {
		return p.svc.Store.Put(ctx, store.PackName(open.snapshot, open.ref.id), data)
	}); err != nil {
		return err
	}
	took := time.Since(started)
	p.uploadNanos.Add(int64(took))
	p.svc.opts.Metrics.Pack(len(data), took)
	m := &backup.PackStored{
		Snapshot: open.snapshot, Pack: open.ref.id, StoredBytes: int64(len(data)),
		FrameBytes: slices.Clone(open.writer.FrameBytes()), Sums: sums, Chunks: open.places,
	}
	return p.svc.untilSent(ctx, "pack "+m.Pack.String(), func() error { return p.svc.sendPack(ctx, m) })
}

// reuse keeps the buffer of a pack for another full pack.
func (p *packer) reuse(buf []byte) {
	if cap(buf) < packBufferBytes {
		return
	}
	select {
	case p.bufs <- buf[:0]:
	default:
	}
}

// untilSent calls send until the message is accepted, because later messages rely on it.
func (s *Service) untilSent(ctx context.Context, about string, send func() error) error {
	for {
		err := send()
		switch {
		case err == nil || !errors.Is(err, backup.ErrUnavailable):
			return err
		case ctx.Err() != nil: // the cause of the failure
			return ctx.Err()
		}
		s.opts.Log.Warn("sending a result to the committers failed; trying again", "result", about, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryDelay):
		}
	}
}

// flushLoop uploads packs that are not full in time.
func (p *packer) flushLoop(ctx context.Context) {
	due := time.NewTimer(maxPackAge)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		case <-due.C:
		}
		due.Reset(p.flush(ctx, time.Now()))
	}
}

// flush uploads the open packs that are due, and returns when it is to be called again, from now.
func (p *packer) flush(ctx context.Context, now time.Time) (next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = maxPackAge
	for _, open := range p.open {
		left := p.due(open).Sub(now)
		if left > 0 {
			next = min(next, left)
		} else if p.enqueue(ctx, open) != nil {
			return next
		}
	}
	p.using.Lock()
	defer p.using.Unlock()
	for snapshot, u := range p.uses {
		if u.batches == 0 && p.open[snapshot] == nil {
			delete(p.uses, snapshot)
		}
	}
	return next
}

// due returns when an open pack waits for no more chunks. The pack of a snapshot does not wait for
// batches of other snapshots: those may take hours, because of a limit or of a slow filer.
func (p *packer) due(open *openPack) time.Time {
	p.using.Lock()
	u := p.uses[open.snapshot]
	p.using.Unlock()
	due := open.opened.Add(maxPackAge)
	if open.ref.awaited.Load() {
		due = open.opened.Add(maxPackAge / 10)
	}
	switch quiet := u.ended.Add(p.svc.opts.Linger); {
	case p.hurried.Load():
		return time.Time{}
	case u.batches == 0 && quiet.Before(due):
		return quiet
	}
	return due
}

// join notes that a batch of the snapshot may add frames, until it calls leave.
func (p *packer) join(snapshot backup.SnapshotID) {
	p.using.Lock()
	defer p.using.Unlock()
	p.uses[snapshot] = use{batches: p.uses[snapshot].batches + 1}
}

func (p *packer) leave(snapshot backup.SnapshotID) {
	p.using.Lock()
	defer p.using.Unlock()
	left := p.uses[snapshot].batches - 1
	p.uses[snapshot] = use{batches: left, ended: time.Now()}
	if left == 0 || p.hurried.Load() {
		loop.Wake(p.changed)
	}
}

// hurry makes packs be uploaded as soon as a batch is read, because the reader stops.
func (p *packer) hurry() {
	p.hurried.Store(true)
	loop.Wake(p.changed)
}

// await returns when a pack that a batch of the snapshot relies on is durable, and reported to the
// committer.
func (p *packer) await(ctx context.Context, snapshot backup.SnapshotID, ref *packRef) error {
	if ref.snapshot != snapshot && !ref.awaited.Swap(true) {
		loop.Wake(p.changed)
	}
	select {
	case <-ref.done:
		return ref.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// durable returns the ref of a pack that the index has.
func (p *packer) durable(id backup.PackID) *packRef {
	p.referring.Lock()
	defer p.referring.Unlock()
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
