package read

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
)

// The sizes of windows. In a small one there is room for any file that is one
// chunk, and one question to the index serves some hundred files; there are as many as
// may be filled at a time. In a large one there is room for any chunk; there are fewer.
const (
	smallWindowBytes = chunk.WholeFileBytes
	largeWindowBytes = chunk.MaxBytes
)

// A window collects chunks of one batch, one after the other in one buffer,
// until it is full. Then the store workers take it.
type window struct {
	batch  *batch
	home   chan *window // where it is kept while it is free
	size   int
	buf    []byte // of size; made at its first use
	used   int
	chunks []windowChunk
}

// newWindows makes n windows that are free.
func newWindows(n, size int) chan *window {
	home := make(chan *window, n)
	for range n {
		home <- &window{home: home, size: size}
	}
	return home
}

type windowChunk struct {
	hash        backup.ChunkHash
	start, size int
	dense       bool // it would hardly compress
}

func (w *window) free() int { return w.size - w.used }

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
		select {
		case b.window = <-from:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if b.window.buf == nil {
			b.window.buf = make([]byte, b.window.size)
		}
		b.window.batch = b
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

// recycle makes a window free again.
func (w *window) recycle() {
	w.batch, w.used, w.chunks = nil, 0, w.chunks[:0]
	w.home <- w // never blocks: there are as many places as windows
}
