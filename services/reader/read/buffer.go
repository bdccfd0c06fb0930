package read

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/stall"
)

// The sizes of buffers. A small buffer has room for any file that is one chunk. The index query for
// its chunks then serves some hundred files. There are as many small buffers as may be filled and
// stored at a time. A large buffer has room for any chunk; there are fewer.
const (
	smallBufferBytes = chunk.WholeFileBytes
	largeBufferBytes = chunk.MaxBytes
)

// A chunkBuffer collects chunks of one batch, one after the other, until it is full. Then the store
// workers take it.
type chunkBuffer struct {
	batch  *batch
	home   *bufferPool
	filer  backup.FilerID // whose slot it has
	stuck  bool           // it has been replaced; guarded by the home's mu
	data   []byte
	used   int
	chunks []bufferedChunk
}

type bufferedChunk struct {
	hash        backup.ChunkHash
	start, size int
	dense       bool // it would hardly compress
}

func (buf *chunkBuffer) free() int { return len(buf.data) - buf.used }

// next returns the next n bytes of the buffer, with arbitrary content.
func (buf *chunkBuffer) next(n int) []byte { return buf.data[buf.used : buf.used+n : buf.used+n] }

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
		buf, err := from.take(ctx, b.filer())
		if err != nil {
			return nil, err
		}
		buf.batch, b.buffer = b, buf
	}
	return b.buffer.next(n), nil
}

// addChunk makes a chunk of the data, which is the start of the last space. The chunk stays in the
// buffer until flush is called: by space or extendSpace if the buffer has too little room, and by
// read at the end.
func (b *batch) addChunk(data []byte) backup.Ref {
	started := time.Now()
	hash := b.hash.Sum(data)
	b.counts.HashSeconds += time.Since(started).Seconds()
	buf := b.buffer
	buf.chunks = append(buf.chunks, bufferedChunk{hash: hash, start: buf.used, size: len(data)})
	buf.used += len(data)
	return backup.Ref{Chunk: hash.ID(), Length: int64(len(data)), Span: int64(len(data))}
}

// bufferChunk makes a chunk of data that is not a file's content, in the buffer.
func (b *batch) bufferChunk(ctx context.Context, data []byte) (backup.Ref, error) {
	space, err := b.space(ctx, len(data))
	if err != nil {
		return backup.Ref{}, err
	}
	copy(space, data)
	return b.addChunk(space), nil
}

// flush passes the buffer to the store workers (storeBuffers), if it contains anything. It fails if
// a buffer of the batch could not be stored, or cannot be: to read on would be in vain.
func (b *batch) flush(ctx context.Context) error {
	if err := b.notStored(); err != nil {
		return err
	}
	buf := b.buffer
	b.buffer = nil
	if buf == nil {
		return nil
	}
	if len(buf.chunks) == 0 {
		buf.recycle()
		return nil
	}
	b.storing.Add(1)
	if err := b.svc.refused(); err != nil {
		buf.recycle()
		b.bufferStored(err)
		return err
	}
	select {
	case b.svc.toStore <- buf:
		return nil
	case <-ctx.Done():
		b.storing.Done()
		buf.recycle()
		return ctx.Err()
	}
}

// recycleBuffer recycles the buffer that is left when reading ends.
func (b *batch) recycleBuffer() {
	if b.buffer != nil {
		b.buffer.recycle()
		b.buffer = nil
	}
}

// A bufferPool has all buffers of one size. It allocates each when it is first needed, and keeps
// it.
type bufferPool struct {
	size  int
	slots *stall.Slots

	mu    sync.Mutex
	free  []*chunkBuffer
	spare int // buffers that may be made to replace stuck ones
}

// newBufferPool returns a pool of buffers, at most limit at a time for one filer and twice as many
// for all filers, and up to spare more to replace stuck ones.
func newBufferPool(limit, spare, size int) *bufferPool {
	return &bufferPool{size: size, slots: stall.NewSlots(2*limit, limit), spare: spare}
}

// take waits for a buffer.
func (p *bufferPool) take(ctx context.Context, filer backup.FilerID) (*chunkBuffer, error) {
	if err := p.slots.Take(ctx, filer); err != nil {
		return nil, err
	}
	p.mu.Lock()
	var buf *chunkBuffer
	if n := len(p.free); n > 0 {
		buf, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if buf == nil {
		buf = &chunkBuffer{home: p, data: make([]byte, p.size)}
	}
	buf.filer = filer
	return buf, nil
}

// replace allows another buffer to be made instead of a stuck one, because a read that hangs may
// still write to it. It does nothing if too many are stuck already.
func (p *bufferPool) replace(buf *chunkBuffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if buf.stuck || p.spare == 0 {
		return
	}
	buf.stuck = true
	p.spare--
	p.slots.Give(buf.filer)
}

// recycle makes a buffer free again; a replaced one is discarded.
func (buf *chunkBuffer) recycle() {
	p := buf.home
	buf.batch, buf.used, buf.chunks = nil, 0, buf.chunks[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if buf.stuck {
		p.spare++
		return
	}
	p.free = append(p.free, buf)
	p.slots.Give(buf.filer)
}
