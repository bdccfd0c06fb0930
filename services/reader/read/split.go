package read

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/filetype"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// A splitter cuts the extents of one large or sparse file into chunks.
type splitter struct {
	batch *batch
	file  source.File
	refs  refTree
	rest  []byte // bytes carried from one buffer to the next
}

// extent reads length bytes of data at start, which follow a hole of hole bytes, into buffers, and
// cuts them there. Each round fills a space of the length of the longest chunk, and makes chunks of
// it. The bytes after the last cut are the start of the next round's space.
func (s *splitter) extent(ctx context.Context, hole, start, length int64) error {
	b := s.batch
	if err := b.needCutter(); err != nil {
		return err
	}
	have := 0 // bytes that were read and not cut yet, at the start of the space
	for offset, end := start, start+length; offset < end || have > 0; {
		want := int(min(int64(chunk.MaxBytes), end-offset+int64(have)))
		space, err := s.extendSpace(ctx, want, have)
		if err != nil {
			return err
		}
		n, err := b.readFull(ctx, s.file, space[have:want], offset)
		if err != nil {
			return err
		}
		b.counts.ReadBytes += int64(n)
		if offset == 0 {
			b.class = filetype.Classify(space[:n])
		}
		offset += int64(n)
		have += n
		if have < want {
			end = offset // the file was truncated meanwhile
			b.short = true
		}
		for have > 0 {
			n := b.cutter.Cut(space[:have], offset >= end)
			if n == 0 {
				break
			}
			ref := b.addChunk(space[:n])
			ref.Hole, hole = hole, 0
			space, have = space[n:], have-n
			s.refs.add(ref)
			if s.refs.full() {
				if space, err = s.collapseRefs(ctx, space[:have]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// needCutter makes the batch's cutter before its first large or sparse file.
func (b *batch) needCutter() (err error) {
	if b.cutter == nil {
		b.cutter, err = chunk.NewCutter(b.svc.Repository.Chunker, b.svc.Key.Dedup)
	}
	return err
}

// collapseRefs makes a list chunk of the full list of refs. Data that is not cut yet lies where
// that chunk goes, and is moved behind it.
func (s *splitter) collapseRefs(ctx context.Context, uncut []byte) (moved []byte, err error) {
	s.rest = append(s.rest[:0], uncut...)
	if err := s.refs.collapse(ctx, s.batch, 0); err != nil || len(s.rest) == 0 {
		return nil, err
	}
	moved, err = s.batch.space(ctx, len(s.rest))
	copy(moved, s.rest)
	return moved, err
}

// extendSpace returns room for want bytes in the buffer. The first have of them are the bytes that
// were read and not cut yet.
func (s *splitter) extendSpace(ctx context.Context, want, have int) ([]byte, error) {
	b := s.batch
	if have == 0 {
		return b.space(ctx, want)
	}
	if b.buffer.free() >= want {
		return b.buffer.next(want), nil // they are there already
	}
	// The buffer is sent before another is taken: a goroutine that waits for one holds none.
	s.rest = append(s.rest[:0], b.buffer.next(have)...)
	if err := b.flush(ctx); err != nil {
		return nil, err
	}
	space, err := b.space(ctx, want)
	copy(space, s.rest)
	return space, err
}

// A refTree collects the refs of one file. A level that becomes too long goes into a list chunk,
// and becomes one ref of the level above.
type refTree struct{ levels [][]backup.Ref }

// listRefs is how many refs a list chunk has; fewer in tests.
var listRefs = listing.ListRefs

// add adds a ref of the data. If the tree is full afterwards, its refs must be collapsed.
func (t *refTree) add(ref backup.Ref) {
	if len(t.levels) == 0 {
		t.levels = append(t.levels, nil)
	}
	t.levels[0] = append(t.levels[0], ref)
}

func (t *refTree) full() bool { return len(t.levels[0]) >= listRefs }

func (t *refTree) addAt(ctx context.Context, b *batch, level int, ref backup.Ref) error {
	if level == len(t.levels) {
		t.levels = append(t.levels, nil)
	}
	t.levels[level] = append(t.levels[level], ref)
	if len(t.levels[level]) < listRefs {
		return nil
	}
	return t.collapse(ctx, b, level)
}

// collapse makes a list chunk of a level, and adds one ref of it to the level above.
func (t *refTree) collapse(ctx context.Context, b *batch, level int) error {
	refs := t.levels[level]
	ref, err := b.bufferChunk(ctx, listing.EncodeRefs(nil, backup.Content{Depth: level, Refs: refs}))
	if err != nil {
		return err
	}
	ref.Span = contentSize(backup.Content{Refs: refs})
	if err := b.noteList(ctx, ref.Chunk, level > 0, refs); err != nil {
		return err
	}
	t.levels[level] = refs[:0]
	return t.addAt(ctx, b, level+1, ref)
}

// finish collapses levels until the last one has at most listing.InlineRefs refs, and returns that
// level.
func (t *refTree) finish(ctx context.Context, b *batch) (backup.Content, error) {
	for level := 0; level < len(t.levels); level++ { //nolint:intrange // collapsing a level adds to the next, which may be new
		refs := t.levels[level]
		top := level == len(t.levels)-1
		if top && len(refs) <= listing.InlineRefs {
			return backup.Content{Depth: level, Refs: refs}, nil
		}
		if len(refs) == 0 {
			continue
		}
		if err := t.collapse(ctx, b, level); err != nil {
			return backup.Content{}, err
		}
	}
	return backup.Content{}, nil
}
