package read

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
)

// storeBuffers takes buffers and stores their new chunks, until ctx is done.
func (s *Service) storeBuffers(ctx context.Context) {
	var f framer
	for {
		select {
		case <-ctx.Done():
			return
		case buf := <-s.toStore:
			b := buf.batch
			err := s.storeBuffer(ctx, buf, &f)
			buf.recycle()
			b.bufferStored(err)
		}
	}
}

// A framer has the buffers of one store worker.
type framer struct {
	raw        []byte
	compressed []byte
	chunks     []pack.Chunk
	ids        []backup.ChunkID
}

func (s *Service) storeBuffer(ctx context.Context, buf *chunkBuffer, f *framer) error {
	fresh, err := s.dedup(ctx, buf)
	if err != nil {
		return err
	}
	// Dense chunks (media, archives) and others do not share frames: dense ones are stored
	// uncompressed, and the others compress better alone.
	for i := range fresh {
		c := &fresh[i]
		c.dense = pack.Dense(buf.data[c.start : c.start+c.size])
	}
	slices.SortStableFunc(fresh, func(a, b bufferedChunk) int { return cmp.Compare(order(a.dense), order(b.dense)) })
	for len(fresh) > 0 {
		n, size := 1, fresh[0].size
		for n < len(fresh) && n < maxFrameChunks && size+fresh[n].size <= pack.FrameTargetBytes && fresh[n].dense == fresh[0].dense {
			size += fresh[n].size
			n++
		}
		if err := s.storeFrame(ctx, buf, f, fresh[:n], size); err != nil {
			return err
		}
		fresh = fresh[n:]
	}
	return nil
}

// dedup finds out which chunks of the buffer are stored already, makes the batch rely on their
// packs, and returns the other chunks.
func (s *Service) dedup(ctx context.Context, buf *chunkBuffer) (fresh []bufferedChunk, err error) {
	b := buf.batch
	refs := make([]*packRef, len(buf.chunks))
	if b.msg.Attempt <= 1 {
		// A later attempt may exist because a pack was condemned, which only the index knows.
		refs = s.known.find(buf.chunks, b.msg.Job.Snapshot)
	}
	var ask []backup.ChunkID
	for i := range buf.chunks {
		if refs[i] == nil {
			ask = append(ask, buf.chunks[i].hash.ID())
		}
	}
	var found []index.Location
	if len(ask) > 0 {
		if found, err = s.Index.Locate(ctx, ask); err != nil {
			return nil, err
		}
		if err := s.replaceLost(ctx, ask, found); err != nil {
			return nil, err
		}
	}
	next := 0
	seen := make(map[backup.ChunkID]struct{}, len(ask))
	for i := range buf.chunks {
		if refs[i] != nil {
			b.relyOn(refs[i])
			continue
		}
		at := found[next]
		next++
		if at.Pack != (backup.PackID{}) {
			b.relyOn(s.packer.durable(at.Pack))
			continue
		}
		id := buf.chunks[i].hash.ID()
		if _, twice := seen[id]; twice {
			continue
		}
		seen[id] = struct{}{}
		fresh = append(fresh, buf.chunks[i])
	}
	return fresh, nil
}

func (b *batch) relyOn(ref *packRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.packs[ref] = struct{}{}
}

// maxFrameChunks bounds a frame of tiny files, so that several fit into a pack.
const maxFrameChunks = pack.MaxChunks / 4

func order(dense bool) int {
	if dense {
		return 1
	}
	return 0
}

// storeFrame compresses some chunks together and adds them to a pack.
func (s *Service) storeFrame(ctx context.Context, buf *chunkBuffer, f *framer, chunks []bufferedChunk, size int) error {
	b := buf.batch
	raw := f.gather(buf, chunks, size)
	started := time.Now()
	if cap(f.compressed) < size {
		f.compressed = make([]byte, 0, size+size/8+1024)
	}
	body, codec := s.compress.Compress(f.compressed[:0], raw)
	stage := backup.Counts{NewBytes: int64(size), CompressSeconds: time.Since(started).Seconds()}
	started = time.Now()
	ref, grewBytes, err := s.packer.add(b.trace.Below(ctx), b.msg.Job.Snapshot, pack.Frame{Codec: codec, RawLength: size, Body: body, Chunks: f.chunks})
	if err != nil {
		return err
	}
	stage.SealSeconds = time.Since(started).Seconds()
	stage.StoredBytes = int64(grewBytes)
	s.known.add(f.ids, ref)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.packs[ref] = struct{}{}
	b.stage.Add(stage)
	return nil
}

// gather returns the chunks' bytes as one slice: without copying, if they are contiguous in the
// buffer.
func (f *framer) gather(buf *chunkBuffer, chunks []bufferedChunk, size int) []byte {
	f.chunks, f.ids = f.chunks[:0], f.ids[:0]
	offset := 0
	for i := range chunks {
		f.chunks = append(f.chunks, pack.Chunk{Hash: chunks[i].hash, Offset: uint32(offset), Length: uint32(chunks[i].size)})
		f.ids = append(f.ids, chunks[i].hash.ID())
		offset += chunks[i].size
	}
	first, last := chunks[0], chunks[len(chunks)-1]
	if last.start+last.size-first.start == size {
		return buf.data[first.start : first.start+size]
	}
	f.raw = f.raw[:0]
	for i := range chunks {
		f.raw = append(f.raw, buf.data[chunks[i].start:chunks[i].start+chunks[i].size]...)
	}
	return f.raw
}

func (b *batch) bufferStored(err error) {
	b.mu.Lock()
	if b.err == nil {
		b.err = err
	}
	b.mu.Unlock()
	b.storing.Done()
}
