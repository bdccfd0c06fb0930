package fetch

import (
	"context"
	"fmt"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// maxDepth bounds lists of lists. Each level multiplies the size by thousands.
	maxDepth = 8
	// maxListBytes bounds the list chunks that are fetched at once.
	maxListBytes = 4 << 20
)

// Refs yields the data chunks of one file in order. Its list chunks are loaded when it reaches them
// (Fetcher.Load). It holds one per level, so a file of any size takes little memory.
type Refs struct {
	size   int64
	levels []level
	failed error
}

// A level is the rest of one Content.
type level struct {
	depth int
	refs  []backup.Ref
	at    int64 // offset in the file at which the next ref's hole begins
	end   int64 // offset beyond which the level must not reach
}

// NewRefs returns the Refs of a file with the given size in bytes.
func NewRefs(size int64, c backup.Content) Refs {
	return Refs{size: size, levels: []level{{c.Depth, c.Refs, 0, size}}}
}

// Peek returns the next ref and its offset in the file. list means that the ref is that of a list
// chunk, which Load replaces by its content. ok is false at the end; err is then set if the content
// is invalid.
func (s *Refs) Peek() (ref backup.Ref, offset int64, list, ok bool, err error) {
	for s.failed == nil && len(s.levels) > 0 {
		l := &s.levels[len(s.levels)-1]
		if len(l.refs) == 0 {
			s.levels = s.levels[:len(s.levels)-1]
			continue
		}
		ref = l.refs[0]
		span := ref.Span
		if l.depth == 0 {
			span = ref.Length
		}
		room := l.end - l.at
		if ref.Hole < 0 || span < 0 || ref.Length <= 0 || ref.Hole > room || span > room-ref.Hole || ref.Length > chunk.MaxBytes ||
			l.depth < 0 || l.depth > maxDepth {
			s.failed = fmt.Errorf("content reaches beyond its file: %w", backup.ErrCorrupt)
			break
		}
		return ref, l.at + ref.Hole, l.depth > 0, true, nil
	}
	return ref, 0, false, false, s.failed
}

// Advance skips the ref that Peek returned.
func (s *Refs) Advance() {
	l := &s.levels[len(s.levels)-1]
	ref := l.refs[0]
	l.refs = l.refs[1:]
	l.at += ref.Hole + ref.Length
	if l.depth > 0 {
		l.at += ref.Span - ref.Length
	}
}

// push skips the list chunk that Peek returned, and continues with its content.
func (s *Refs) push(c backup.Content) {
	l := &s.levels[len(s.levels)-1]
	ref, depth, at := l.refs[0], l.depth, l.at+l.refs[0].Hole
	s.Advance()
	if c.Depth != depth-1 {
		s.failed = fmt.Errorf("a list of depth %d is in one of depth %d: %w", c.Depth, depth, backup.ErrCorrupt)
		return
	}
	s.levels = append(s.levels, level{c.Depth, c.Refs, at, at + ref.Span})
}

// A listSink decodes list chunks. The tag of a want is the number of the stream.
type listSink struct {
	mu      sync.Mutex
	streams []*Refs
}

func (l *listSink) Chunk(n int64, data []byte) {
	c, err := listing.DecodeRefs(data)
	if err != nil {
		l.Fail(n, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[n].push(c)
}

func (l *listSink) Fail(n int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[n].failed = err
}

// Load loads the next list of the first stream, and of as many of the following streams as are at a
// list and fit into maxListBytes. A list that is not available ends its stream with an error.
func (f *Fetcher) Load(ctx context.Context, streams []*Refs) error {
	sink := &listSink{}
	var wants []Want
	var bytes int64
	for _, s := range streams {
		ref, _, list, ok, _ := s.Peek()
		if !ok || !list {
			continue
		}
		if bytes += ref.Length; bytes > maxListBytes && len(wants) > 0 {
			break
		}
		wants = append(wants, Want{Chunk: ref.Chunk, Length: ref.Length, Tag: int64(len(sink.streams)), Sink: sink})
		sink.streams = append(sink.streams, s)
	}
	return f.Get(ctx, wants)
}
