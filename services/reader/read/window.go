package read

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
)

// The sizes of windows. In a small one there is room for any file that is one
// chunk, and one question to the index serves some hundred files; there are as many as
// may be filled and stored at a time. In a large one there is room for any chunk; there are fewer.
const (
	smallWindowBytes = chunk.WholeFileBytes
	largeWindowBytes = chunk.MaxBytes
)

// A window collects chunks of one batch, one after the other in one buffer,
// until it is full. Then the store workers take it.
type window struct {
	batch  *batch
	home   *windows
	filer  backup.FilerID // whose share it is
	stuck  bool           // it has been replaced; under the home's mu
	buf    []byte
	used   int
	chunks []windowChunk
}

// windows are all windows of one size. Each has a buffer that is made when it
// is first needed, and kept.
type windows struct {
	size   int
	shares *shares

	mu    sync.Mutex
	free  []*window
	spare int // windows that may be made for those that are stuck
}

// newWindows returns windows of which one filer may have limit at a time, all
// filers together twice as many, and spare more while as many are stuck.
func newWindows(limit, spare, size int) *windows {
	return &windows{size: size, shares: newShares(2*limit, limit), spare: spare}
}

// take waits for a window.
func (p *windows) take(ctx context.Context, filer backup.FilerID) (*window, error) {
	if err := p.shares.take(ctx, filer); err != nil {
		return nil, err
	}
	p.mu.Lock()
	var w *window
	if n := len(p.free); n > 0 {
		w, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if w == nil {
		w = &window{home: p, buf: make([]byte, p.size)}
	}
	w.filer = filer
	return w, nil
}

// replace lets another window be made in the place of one that is stuck: a
// read that hangs may still write to it. It does nothing where too many are stuck already.
func (p *windows) replace(w *window) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.stuck || p.spare == 0 {
		return
	}
	w.stuck = true
	p.spare--
	p.shares.give(w.filer)
}

// recycle makes a window free again; one that was replaced ends.
func (w *window) recycle() {
	p := w.home
	w.batch, w.used, w.chunks = nil, 0, w.chunks[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.stuck {
		p.spare++
		return
	}
	p.free = append(p.free, w)
	p.shares.give(w.filer)
}

type windowChunk struct {
	hash        backup.ChunkHash
	start, size int
	dense       bool // it would hardly compress
}

func (w *window) free() int { return len(w.buf) - w.used }

// next returns the next n bytes of the buffer, which may hold anything.
func (w *window) next(n int) []byte { return w.buf[w.used : w.used+n : w.used+n] }

// space returns room for n bytes of the next chunk; addChunk takes what was
// used of it. A window that has not so much left is sent to be stored.
func (b *batch) space(ctx context.Context, n int) ([]byte, error) {
	if b.window != nil && b.window.free() < n {
		if err := b.flush(ctx); err != nil {
			return nil, err
		}
	}
	if b.window == nil {
		from := b.svc.small
		if n > smallWindowBytes {
			from = b.svc.large
		}
		w, err := from.take(ctx, b.filer())
		if err != nil {
			return nil, err
		}
		w.batch, b.window = b, w
	}
	return b.window.next(n), nil
}

// addChunk makes the data, which is the start of the space given last, a chunk.
func (b *batch) addChunk(data []byte) backup.Ref {
	started := time.Now()
	hash := b.hash.Sum(data)
	b.counts.HashSeconds += time.Since(started).Seconds()
	w := b.window
	w.chunks = append(w.chunks, windowChunk{hash: hash, start: w.used, size: len(data)})
	w.used += len(data)
	return backup.Ref{Chunk: hash.ID(), Length: int64(len(data)), Span: int64(len(data))}
}

// storeChunk stores data that is not from a file's content.
func (b *batch) storeChunk(ctx context.Context, data []byte) (backup.Ref, error) {
	space, err := b.space(ctx, len(data))
	if err != nil {
		return backup.Ref{}, err
	}
	copy(space, data)
	return b.addChunk(space), nil
}

// flush gives the window to the store workers, if there is anything in it.
func (b *batch) flush(ctx context.Context) error {
	w := b.window
	b.window = nil
	if w == nil {
		return nil
	}
	if len(w.chunks) == 0 {
		w.recycle()
		return nil
	}
	b.storing.Add(1)
	select {
	case b.svc.toStore <- w:
		return nil
	case <-ctx.Done():
		b.storing.Done()
		w.recycle()
		return ctx.Err()
	}
}

// giveBack returns a window that reading ended with.
func (b *batch) giveBack() {
	if b.window != nil {
		b.window.recycle()
		b.window = nil
	}
}
