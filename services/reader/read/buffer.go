package read

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/stall"
)

// The sizes of buffers. A small one has room for any file that is one chunk, and one index query
// serves some hundred files; there are as many as may be filled and stored at a time. A large one
// has room for any chunk; there are fewer.
const (
	smallBufferBytes = chunk.WholeFileBytes
	largeBufferBytes = chunk.MaxBytes
)

// A chunkBuffer collects chunks of one batch, one after the other, until it is full. Then the store
// workers take it.
type chunkBuffer struct {
	batch  *batch
	home   *chunkBuffers
	filer  backup.FilerID // whose place it has
	stuck  bool           // it has been replaced; guarded by the home's mu
	buf    []byte
	used   int
	chunks []bufferedChunk
}

type bufferedChunk struct {
	hash        backup.ChunkHash
	start, size int
	dense       bool // it would hardly compress
}

func (w *chunkBuffer) free() int { return len(w.buf) - w.used }

// next returns the next n bytes of the buffer, with arbitrary content.
func (w *chunkBuffer) next(n int) []byte { return w.buf[w.used : w.used+n : w.used+n] }

// space returns room for n bytes of the next chunk; addChunk takes the part that was used. A buffer
// that has less room left is sent to be stored.
func (b *batch) space(ctx context.Context, n int) ([]byte, error) {
	if b.buffer != nil && b.buffer.free() < n {
		if err := b.flush(ctx); err != nil {
			return nil, err
		}
	}
	if b.buffer == nil {
		from := b.svc.small
		if n > smallBufferBytes {
			from = b.svc.large
		}
		w, err := from.take(ctx, b.filer())
		if err != nil {
			return nil, err
		}
		w.batch, b.buffer = b, w
	}
	return b.buffer.next(n), nil
}

// addChunk makes a chunk of the data, which is the start of the last space.
func (b *batch) addChunk(data []byte) backup.Ref {
	started := time.Now()
	hash := b.hash.Sum(data)
	b.counts.HashSeconds += time.Since(started).Seconds()
	w := b.buffer
	w.chunks = append(w.chunks, bufferedChunk{hash: hash, start: w.used, size: len(data)})
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

// flush passes the buffer to the store workers (storeBuffers), if it contains anything. It fails if
// a buffer of the batch could not be stored: to read on would be in vain.
func (b *batch) flush(ctx context.Context) error {
	if err := b.notStored(); err != nil {
		return err
	}
	w := b.buffer
	b.buffer = nil
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

// giveBack recycles a buffer that is left when reading ends.
func (b *batch) giveBack() {
	if b.buffer != nil {
		b.buffer.recycle()
		b.buffer = nil
	}
}

// chunkBuffers are all buffers of one size. Each is allocated when it is first needed, and kept.
type chunkBuffers struct {
	size   int
	places *stall.Places

	mu    sync.Mutex
	free  []*chunkBuffer
	spare int // buffers that may be made to replace stuck ones
}

// newChunkBuffers returns buffers, at most limit at a time for one filer and twice as many for all
// filers, and up to spare more to replace stuck ones.
func newChunkBuffers(limit, spare, size int) *chunkBuffers {
	return &chunkBuffers{size: size, places: stall.NewPlaces(2*limit, limit), spare: spare}
}

// take waits for a buffer.
func (p *chunkBuffers) take(ctx context.Context, filer backup.FilerID) (*chunkBuffer, error) {
	if err := p.places.Take(ctx, filer); err != nil {
		return nil, err
	}
	p.mu.Lock()
	var w *chunkBuffer
	if n := len(p.free); n > 0 {
		w, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if w == nil {
		w = &chunkBuffer{home: p, buf: make([]byte, p.size)}
	}
	w.filer = filer
	return w, nil
}

// replace allows another buffer to be made instead of a stuck one, because a read that hangs may
// still write to it. It does nothing if too many are stuck already.
func (p *chunkBuffers) replace(w *chunkBuffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.stuck || p.spare == 0 {
		return
	}
	w.stuck = true
	p.spare--
	p.places.Give(w.filer)
}

// recycle makes a buffer free again; a replaced one is discarded.
func (w *chunkBuffer) recycle() {
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
