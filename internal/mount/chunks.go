package mount

import (
	"bytes"
	"container/list"
	"context"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
)

const (
	// maxChunkBytes bounds the content in memory that nobody waits for.
	maxChunkBytes = 16 << 20
	// maxAheadBytes bounds the content that is being fetched before anything is read ahead.
	maxAheadBytes = 8 << 20
)

// chunks fetches chunks once for all readers, and keeps the most recently used ones.
type chunks struct {
	fetch *fetch.Fetcher
	get1  func(ctx context.Context, wants []fetch.Want) error // fetch.Get, with patience
	ctx   context.Context                                     // of the mount

	mu      sync.Mutex
	known   map[backup.ChunkID]*list.Element // of *part
	recent  list.List                        // most recently used first
	bytes   int64                            // of the chunks that have arrived
	pending int64                            // of the chunks that are being fetched
}

// A part is a chunk that was asked for.
type part struct {
	id      backup.ChunkID
	length  int64
	done    chan struct{} // closed when data or err is set
	arrived bool
	data    []byte
	err     error
}

// wait returns the content, which must not be changed.
func (c *part) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-c.done:
		return c.data, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// get returns the chunks in order, and starts to fetch those that are not known.
func (cs *chunks) get(refs []backup.Ref) []*part {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	found := make([]*part, len(refs))
	var missing []*part
	for i := range refs {
		ref := &refs[i]
		if el := cs.known[ref.Chunk]; el != nil && el.Value.(*part).length == ref.Length {
			cs.recent.MoveToFront(el)
			found[i] = el.Value.(*part)
			continue
		}
		c := &part{id: ref.Chunk, length: ref.Length, done: make(chan struct{})}
		cs.known[ref.Chunk] = cs.recent.PushFront(c)
		cs.pending += ref.Length
		found[i] = c
		missing = append(missing, c)
	}
	if len(missing) > 0 {
		go cs.load(missing)
	}
	return found
}

// has reports whether a chunk is known.
func (cs *chunks) has(id backup.ChunkID) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.known[id] != nil
}

// mayReadAhead reports whether not too much is being fetched.
func (cs *chunks) mayReadAhead() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.pending < maxAheadBytes
}

// load fetches chunks. What cannot be fetched is asked for again by the next reader.
func (cs *chunks) load(missing []*part) {
	l := &loading{cs, missing}
	wants := make([]fetch.Want, len(missing))
	for i, c := range missing {
		wants[i] = fetch.Want{Chunk: c.id, Length: c.length, Tag: int64(i), Sink: l}
	}
	if err := cs.get1(cs.ctx, wants); err != nil {
		for i := range missing {
			l.arrive(int64(i), nil, err)
		}
	}
}

// loading receives chunks. It implements fetch.Sink.
type loading struct {
	cs     *chunks
	chunks []*part
}

// Chunk implements fetch.Sink.
func (l *loading) Chunk(tag int64, data []byte) { l.arrive(tag, bytes.Clone(data), nil) }

// Fail implements fetch.Sink.
func (l *loading) Fail(tag int64, err error) { l.arrive(tag, nil, err) }

func (l *loading) arrive(tag int64, data []byte, err error) {
	cs, c := l.cs, l.chunks[tag]
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.arrived {
		return
	}
	c.arrived, c.data, c.err = true, data, err
	cs.pending -= c.length
	close(c.done)
	el := cs.known[c.id]
	if el == nil || el.Value.(*part) != c { // another length was asked for
		return
	}
	if err != nil {
		cs.recent.Remove(el)
		delete(cs.known, c.id)
		return
	}
	cs.bytes += c.length
	cs.trim()
}

// trim drops the least recently used chunks that have arrived.
func (cs *chunks) trim() {
	for el := cs.recent.Back(); el != nil && cs.bytes > maxChunkBytes; {
		before := el.Prev()
		if c := el.Value.(*part); c.arrived {
			cs.recent.Remove(el)
			delete(cs.known, c.id)
			cs.bytes -= c.length
		}
		el = before
	}
}
