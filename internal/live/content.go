package live

import (
	"context"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// A Hasher names the content of files as a reader does, and stores nothing.
type Hasher struct {
	hash   *chunk.Hasher
	cutter *chunk.Cutter
	space  []byte
	levels [][]backup.Ref // of one file: its chunks, then lists of them, and so on
	list   []byte
}

// NewHasher returns a Hasher for a repository and its dedup key.
func NewHasher(r *backup.Repository, key [32]byte) (*Hasher, error) {
	cutter, err := chunk.NewCutter(r.Chunker, key)
	return &Hasher{hash: chunk.NewHasher(key), cutter: cutter}, err
}

// content returns the content of a file of a size. It is not complete if the file is shorter.
func (h *Hasher) content(ctx context.Context, f source.File, size int64) (backup.Content, error) {
	if h.space == nil {
		h.space = make([]byte, chunk.MaxBytes)
	}
	h.levels = h.levels[:0]
	start, length, err := f.NextExtent(0, size)
	if err == nil && start == 0 && length >= size && size <= chunk.WholeFileBytes {
		n, err := readFull(f, h.space[:size], 0)
		if n == 0 {
			return backup.Content{}, err
		}
		return backup.Content{Refs: []backup.Ref{h.ref(h.space[:n])}}, err
	}
	for offset := int64(0); err == nil && length > 0; {
		if err = h.extent(ctx, f, start-offset, start, length); err != nil {
			break
		}
		offset = start + length
		start, length, err = f.NextExtent(offset, size)
	}
	if err != nil {
		return backup.Content{}, err
	}
	return h.finish(), nil
}

// extent cuts length bytes at start, which follow a hole, into chunks.
func (h *Hasher) extent(ctx context.Context, f source.File, hole, start, length int64) error {
	have := 0 // bytes that are not cut yet, at the beginning of the space
	for offset, end := start, start+length; offset < end || have > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		want := int(min(int64(len(h.space)), end-offset+int64(have)))
		n, err := readFull(f, h.space[have:want], offset)
		if err != nil {
			return err
		}
		offset += int64(n)
		have += n
		if have < want {
			end = offset // the file was truncated meanwhile
		}
		cut := 0
		for cut < have {
			n := h.cutter.Cut(h.space[cut:have], offset >= end)
			if n == 0 {
				break
			}
			ref := h.ref(h.space[cut : cut+n])
			ref.Hole, hole = hole, 0
			h.add(0, ref)
			cut += n
		}
		have = copy(h.space, h.space[cut:have])
	}
	return nil
}

func (h *Hasher) ref(data []byte) backup.Ref {
	return backup.Ref{Chunk: h.hash.Sum(data).ID(), Length: int64(len(data)), Span: int64(len(data))}
}

// add adds a ref to a level, which becomes a list when it is full.
func (h *Hasher) add(level int, ref backup.Ref) {
	if level == len(h.levels) {
		h.levels = append(h.levels, nil)
	}
	h.levels[level] = append(h.levels[level], ref)
	if len(h.levels[level]) == listing.ListRefs {
		h.collapse(level)
	}
}

// collapse makes a list of a level, and adds it to the level above.
func (h *Hasher) collapse(level int) {
	refs := h.levels[level]
	h.list = listing.EncodeRefs(h.list[:0], backup.Content{Depth: level, Refs: refs})
	ref := h.ref(h.list)
	ref.Span = 0
	for i := range refs {
		ref.Span += refs[i].Hole + refs[i].Span
	}
	h.levels[level] = refs[:0]
	h.add(level+1, ref)
}

// finish makes lists until the last level is short, and returns that.
func (h *Hasher) finish() backup.Content {
	for level := 0; level < len(h.levels); level++ { //nolint:intrange // collapsing a level adds to the next, which may be new
		refs := h.levels[level]
		if level == len(h.levels)-1 && len(refs) <= listing.InlineRefs {
			return backup.Content{Depth: level, Refs: refs}
		}
		if len(refs) > 0 {
			h.collapse(level)
		}
	}
	return backup.Content{}
}

// readFull reads until p is full or the file ends.
func readFull(f io.ReaderAt, p []byte, offset int64) (n int, err error) {
	n, err = f.ReadAt(p, offset)
	if err == io.EOF {
		err = nil
	}
	return n, err
}
