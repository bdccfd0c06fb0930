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

// chunks fetches chunks once for all readers. Of the frames that were opened for them, it keeps the
// most recently used ones whole: who reads small files one after another needs the other chunks,
// too.
type chunks struct {
	fetch *fetch.Fetcher
	get1  func(ctx context.Context, wants []fetch.Want) error // fetch.Get, with patience
	ctx   context.Context                                     // of the mount

	mu      sync.Mutex
	known   map[backup.ChunkID]*part
	recent  list.List      // of *block, most recently used first
	bytes   int64          // of the blocks
	pending int64          // of the chunks that are being fetched
	loads   sync.WaitGroup // of what is being fetched
	ended   bool           // nothing more is fetched
}

// A block is the content of one frame.
type block struct {
	parts []*part
	bytes int64
	used  *part      // that was asked for first; nil: none was
	next  backup.Ref // in the frame after it; zero: there is none, or it was asked for
}

// A part is a chunk that was asked for, or came with one.
type part struct {
	id      backup.ChunkID
	length  int64
	done    chan struct{} // closed when data or err is set
	arrived bool
	data    []byte
	err     error
	block   *list.Element // in chunks.recent, if it has arrived with its frame
}

// wait returns the content, which must not be changed.
func (c *part) wait(ctx context.Context) ([]byte, error) {
	select {
	case <-c.done: // ctx.Done has a price
		return c.data, c.err
	default:
	}
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
		if c := cs.known[ref.Chunk]; c != nil && c.length == ref.Length {
			found[i] = c
			if next := cs.use(c); next != nil {
				missing = append(missing, cs.want(next))
			}
			continue
		}
		found[i] = cs.want(ref)
		missing = append(missing, found[i])
	}
	switch {
	case len(missing) == 0:
	case cs.ended:
		for _, c := range missing {
			cs.fail(c, context.Canceled)
		}
	default:
		cs.loads.Go(func() { cs.load(missing) })
	}
	return found
}

// want returns a chunk that is going to be fetched.
func (cs *chunks) want(ref *backup.Ref) *part {
	c := &part{id: ref.Chunk, length: ref.Length, done: make(chan struct{})}
	cs.known[ref.Chunk] = c
	cs.pending += ref.Length
	return c
}

// use notes that a chunk is used. With the second one of a frame, it returns a chunk of the next
// frame, which is read ahead.
func (cs *chunks) use(c *part) (ahead *backup.Ref) {
	if c.block == nil {
		return nil
	}
	cs.recent.MoveToFront(c.block)
	b := c.block.Value.(*block)
	if b.used == nil {
		b.used = c
	}
	if b.used == c || b.next.Length == 0 || cs.pending >= maxAheadBytes {
		return nil
	}
	next := b.next
	b.next = backup.Ref{}
	if cs.known[next.Chunk] != nil {
		return nil
	}
	return &next
}

// end waits until nothing is being fetched. Afterwards nothing is. The context of the mount has
// ended.
func (cs *chunks) end() {
	cs.mu.Lock()
	cs.ended = true
	cs.mu.Unlock()
	cs.loads.Wait()
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
			l.Fail(int64(i), err)
		}
	}
}

// loading receives chunks. It implements fetch.Sink.
type loading struct {
	cs     *chunks
	chunks []*part
}

// Chunk implements fetch.Sink. The chunk has arrived with its frame, unless another length was
// asked for meanwhile.
func (l *loading) Chunk(tag int64, data []byte) {
	l.cs.mu.Lock()
	defer l.cs.mu.Unlock()
	if c := l.chunks[tag]; !c.arrived {
		l.cs.arrive(c, bytes.Clone(data), nil)
		l.cs.drop(c)
	}
}

// Fail implements fetch.Sink.
func (l *loading) Fail(tag int64, err error) {
	l.cs.mu.Lock()
	defer l.cs.mu.Unlock()
	if c := l.chunks[tag]; !c.arrived {
		l.cs.fail(c, err)
	}
}

func (cs *chunks) arrive(c *part, data []byte, err error) {
	c.arrived, c.data, c.err = true, data, err
	cs.pending -= c.length
	close(c.done)
}

// fail ends a chunk that cannot be fetched.
func (cs *chunks) fail(c *part, err error) {
	cs.arrive(c, nil, err)
	cs.drop(c)
}

func (cs *chunks) drop(c *part) {
	if cs.known[c.id] == c {
		delete(cs.known, c.id)
	}
}

// closed is closed, for chunks that nobody has waited for.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// frame keeps all chunks of a frame that was opened.
func (cs *chunks) frame(f fetch.Frame) {
	plain := bytes.Clone(f.Plain)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	b := &block{bytes: int64(len(plain)), next: f.Next}
	el := cs.recent.PushFront(b)
	for i := range f.Chunks {
		info := &f.Chunks[i]
		id, from, to := info.Hash.ID(), int(info.Offset), int(info.Offset)+int(info.Length)
		c := cs.known[id]
		switch {
		case c == nil:
			c = &part{id: id, length: int64(info.Length), done: closed, arrived: true, data: plain[from:to:to]}
			cs.known[id] = c
		case c.arrived || c.length != int64(info.Length):
			continue
		default:
			cs.arrive(c, plain[from:to:to], nil)
			if b.used == nil {
				b.used = c
			}
		}
		c.block = el
		b.parts = append(b.parts, c)
	}
	if len(b.parts) == 0 { // another request has opened the frame meanwhile
		cs.recent.Remove(el)
		return
	}
	cs.bytes += b.bytes
	cs.trim()
}

// trim drops the least recently used frames.
func (cs *chunks) trim() {
	for cs.bytes > maxChunkBytes {
		b := cs.recent.Remove(cs.recent.Back()).(*block)
		cs.bytes -= b.bytes
		for _, c := range b.parts {
			cs.drop(c)
		}
	}
}
