package fetch

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// maxReaders bounds the chunk tables that are cached: at most 16,384 chunks each.
const maxReaders = 24

// A reader is a pack whose table has been read.
type reader struct {
	pack   *pack.Reader
	place  pack.Place
	chunks []pack.ChunkInfo // by frame and offset
}

// hash returns the hash that the pack's table has for the chunk at this location.
func (r *reader) hash(frame, offset, length uint32) (backup.ChunkHash, bool) {
	i, ok := slices.BinarySearchFunc(r.chunks, pack.ChunkInfo{Frame: frame, Offset: offset}, comparePlaces)
	if !ok || r.chunks[i].Length != length {
		return backup.ChunkHash{}, false
	}
	return r.chunks[i].Hash, true
}

// frame returns a decoded frame with its chunks.
func (r *reader) frame(n uint32, plain []byte) Frame {
	infos := r.pack.Frames()
	f := Frame{Plain: plain, Chunks: infos[n].Chunks}
	if next := int(n) + 1; next < len(infos) && !infos[next].Removed && len(infos[next].Chunks) > 0 {
		first := &infos[next].Chunks[0]
		f.Next = backup.Ref{Chunk: first.Hash.ID(), Length: int64(first.Length)}
	}
	return f
}

func comparePlaces(a, b pack.ChunkInfo) int {
	return cmp.Or(cmp.Compare(a.Frame, b.Frame), cmp.Compare(a.Offset, b.Offset))
}

// openPack opens a pack for readerCache.get.
func (f *Fetcher) openPack(ctx context.Context, at index.PackPlace) (*reader, error) {
	place := pack.Place{Object: store.PackName(at.Snapshot, at.Object), Offset: at.Offset, Bytes: at.Bytes}
	p, err := pack.Open(ctx, f.o.Store, place, f.o.Repository, cmp.Or(at.Sealed, at.Pack), f.o.Opener)
	if err != nil {
		return nil, err
	}
	chunks := p.Chunks()
	// Writers add them in order, but the format does not require it.
	if !slices.IsSortedFunc(chunks, comparePlaces) {
		chunks = slices.Clone(chunks)
		slices.SortFunc(chunks, comparePlaces)
	}
	return &reader{pack: p, place: place, chunks: chunks}, nil
}

// readerCache keeps the most recently used packs, and opens each once even for concurrent requests.
type readerCache struct {
	open func(ctx context.Context, key index.PackPlace) (*reader, error)

	mu      sync.Mutex
	entries map[index.PackPlace]*list.Element // of *cached
	recent  list.List                         // most recently used first
}

type cached struct {
	key  index.PackPlace
	done chan struct{} // closed when r and err are set
	r    *reader
	err  error
}

func (c *readerCache) get(ctx context.Context, key index.PackPlace) (*reader, error) {
	c.mu.Lock()
	if c.entries == nil {
		c.entries = make(map[index.PackPlace]*list.Element)
	}
	if el, ok := c.entries[key]; ok {
		c.recent.MoveToFront(el)
		c.mu.Unlock()
		e := el.Value.(*cached)
		select {
		case <-e.done:
			return e.r, e.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	e := &cached{key: key, done: make(chan struct{})}
	el := c.recent.PushFront(e)
	c.entries[key] = el
	for c.recent.Len() > maxReaders {
		oldest := c.recent.Remove(c.recent.Back()).(*cached)
		delete(c.entries, oldest.key)
	}
	c.mu.Unlock()

	e.r, e.err = c.open(ctx, key)
	if e.err != nil {
		c.forget(key, el)
	}
	close(e.done)
	return e.r, e.err
}

// forget lets the next request try again.
func (c *readerCache) forget(key index.PackPlace, el *list.Element) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] == el {
		c.recent.Remove(el)
		delete(c.entries, key)
	}
}
