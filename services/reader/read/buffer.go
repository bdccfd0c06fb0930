package read

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/source/stall"
)

// The sizes of windows. A small one has room for any file that is one chunk, and one index query
// serves some hundred files; there are as many as may be filled and stored at a time. A large one
// has room for any chunk; there are fewer.
const (
	smallWindowBytes = chunk.WholeFileBytes
	largeWindowBytes = chunk.MaxBytes
)

// A window collects chunks of one batch, one after the other in one buffer, until it is full. Then
// the store workers take it.
type window struct {
	batch  *batch
	home   *windows
	filer  backup.FilerID // whose place it has
	stuck  bool           // it has been replaced; guarded by the home's mu
	buf    []byte
	used   int
	chunks []windowChunk
}

type windowChunk struct {
	hash        backup.ChunkHash
	start, size int
	dense       bool // it would hardly compress
}

func (w *window) free() int { return len(w.buf) - w.used }

// next returns the next n bytes of the buffer, with arbitrary content.
func (w *window) next(n int) []byte { return w.buf[w.used : w.used+n : w.used+n] }

// space returns room for n bytes of the next chunk; addChunk takes the part that was used. A window
// that has less room left is sent to be stored.
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

// addChunk makes a chunk of the data, which is the start of the last space.
func (b *batch) addChunk(data []byte) backup.Ref {
	started := time.Now()
	hash := b.hash.Sum(data)
	b.counts.HashSeconds += time.Since(started).Seconds()
	w := b.window
	w.chunks = append(w.chunks, windowChunk{hash: hash, start: w.used, size: len(data)})
	w.used += len(data)
	return backup.Ref{Chunk: hash.ID(), Length: int64(len(data)), Span: int64(len(data))}
}

// storeChunk stores data that is not a file's content.
func (b *batch) storeChunk(ctx context.Context, data []byte) (backup.Ref, error) {
	space, err := b.space(ctx, len(data))
	if err != nil {
		return backup.Ref{}, err
	}
	copy(space, data)
	return b.addChunk(space), nil
}

// flush passes the window to the store workers, if it contains anything. It fails if a window of
// the batch could not be stored: to read on would be in vain.
func (b *batch) flush(ctx context.Context) error {
	if err := b.notStored(); err != nil {
		return err
	}
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

// giveBack recycles a window that is left when reading ends.
func (b *batch) giveBack() {
	if b.window != nil {
		b.window.recycle()
		b.window = nil
	}
}

// windows are all windows of one size. Each buffer is allocated when it is first needed, and kept.
type windows struct {
	size   int
	places *stall.Places

	mu    sync.Mutex
	free  []*window
	spare int // windows that may be made to replace stuck ones
}

// newWindows returns windows, at most limit at a time for one filer and twice as many for all
// filers, and up to spare more to replace stuck ones.
func newWindows(limit, spare, size int) *windows {
	return &windows{size: size, places: stall.NewPlaces(2*limit, limit), spare: spare}
}

// take waits for a window.
func (p *windows) take(ctx context.Context, filer backup.FilerID) (*window, error) {
	if err := p.places.Take(ctx, filer); err != nil {
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

// replace allows another window to be made instead of a stuck one, because a read that hangs may
// still write to it. It does nothing if too many are stuck already.
func (p *windows) replace(w *window) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.stuck || p.spare == 0 {
		return
	}
	w.stuck = true
	p.spare--
	p.places.Give(w.filer)
}

// recycle makes a window free again; a replaced one is discarded.
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
	p.places.Give(w.filer)
}
