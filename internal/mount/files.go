package mount

import (
	"context"
	"sync"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/hardlink"
)

const (
	// firstAhead and maxAhead are the bytes that are read ahead of a reader that reads in sequence:
	// more with each read, up to the maximum.
	firstAhead = 1 << 20
	maxAhead   = 4 << 20
	// keptBehind is how far behind the last read others may still arrive: the kernel sends several
	// at a time.
	keptBehind = 2 << 20
	// siblingBytes and siblingFiles bound the files that are read ahead after a small one.
	siblingBytes = 4 << 20
	siblingFiles = 256
)

// A file is one that is open.
type file struct {
	f *fileSystem
	n *node
	e *backup.Entry

	mu     sync.Mutex
	refs   fetch.Refs
	pieces []piece // planned, and not yet behind
	start  int64   // offset from which on the pieces are planned
	ended  bool    // all pieces are planned
	next   int64   // where the next read in sequence begins
	ahead  int64
}

// A piece is a chunk of a file, and its offset in the file.
type piece struct {
	ref    backup.Ref
	offset int64
}

func (p *piece) end() int64 { return p.offset + p.ref.Length }

func newFile(f *fileSystem, n *node) *file {
	return &file{f: f, n: n, e: n.entry, refs: refsOf(n.entry)}
}

// read fills dst from an offset, and returns how many bytes the file has there.
func (f *file) read(ctx context.Context, dst []byte, offset int64) (int, error) {
	if offset >= f.e.Size {
		return 0, nil
	}
	dst = dst[:min(int64(len(dst)), f.e.Size-offset)]
	end := offset + int64(len(dst))
	now, later, err := f.plan(ctx, offset, end)
	if err != nil {
		return 0, err
	}
	refs := make([]backup.Ref, 0, len(now)+len(later))
	for i := range now {
		refs = append(refs, now[i].ref)
	}
	needed := len(refs)
	if f.f.chunks.mayReadAhead() {
		refs = append(refs, f.siblings(refs)...)
		for i := range later {
			refs = append(refs, later[i].ref)
		}
	}
	found := f.f.chunks.get(refs)[:needed]
	clear(dst)
	for i, c := range found {
		data, err := c.wait(ctx)
		if err != nil {
			return 0, err
		}
		from, to := max(offset, now[i].offset), min(end, now[i].end())
		copy(dst[from-offset:to-offset], data[from-now[i].offset:])
	}
	return len(dst), nil
}

// plan returns the pieces of a range, and those to be read ahead.
func (f *file) plan(ctx context.Context, offset, end int64) (now, later []piece, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case offset == f.next && offset > 0:
		f.ahead = min(max(2*f.ahead, firstAhead), maxAhead)
	case offset < f.next-keptBehind || offset > f.next+keptBehind:
		f.ahead = 0
	}
	f.next = max(f.next, end)
	if offset > f.next || offset < f.next-keptBehind {
		f.next = end
	}
	if err := f.cover(ctx, offset, end+f.ahead); err != nil {
		return nil, nil, err
	}
	for i := range f.pieces {
		switch p := f.pieces[i]; {
		case p.end() <= offset:
		case p.offset < end:
			now = append(now, p)
		case p.offset < end+f.ahead:
			later = append(later, p)
		}
	}
	return now, later, nil
}

// cover plans the pieces from an offset to another. It reads the lists of chunks that it needs, and
// passes over others.
func (f *file) cover(ctx context.Context, offset, end int64) error {
	if offset < f.start {
		f.refs, f.pieces, f.ended, f.start = refsOf(f.e), nil, false, 0
	}
	behind := 0
	for behind < len(f.pieces) && f.pieces[behind].end() <= offset-keptBehind {
		behind++
	}
	if behind > 0 {
		f.start = f.pieces[behind-1].end()
		f.pieces = append([]piece(nil), f.pieces[behind:]...)
	}
	for !f.ended && (len(f.pieces) == 0 || f.pieces[len(f.pieces)-1].end() < end) {
		ref, at, list, ok, err := f.refs.Peek()
		switch {
		case err != nil:
			f.refs, f.pieces, f.start = refsOf(f.e), nil, 0 // the next read tries again
			return err
		case !ok:
			f.ended = true
			return nil
		}
		span := ref.Length
		if list {
			span = ref.Span
		}
		switch {
		case at+span <= offset-keptBehind && len(f.pieces) == 0:
			f.refs.Advance()
			f.start = at + span
		case at >= end:
			return nil
		case list:
			err := f.f.patiently(ctx, func(ctx context.Context) error { return f.f.chunks.fetch.Load(ctx, []*fetch.Refs{&f.refs}) })
			if err != nil {
				return err
			}
		default:
			f.pieces = append(f.pieces, piece{ref, at})
			f.refs.Advance()
		}
	}
	return nil
}

// siblings returns the chunks of the small files that follow in the directory, if this file is
// small, and if the file that was read before it is in the same directory.
func (f *file) siblings(refs []backup.Ref) (ahead []backup.Ref) {
	if f.e.Content.Depth > 0 || len(refs) == 0 || f.f.chunks.has(refs[0].Chunk) || !f.n.view.follows(f.n.parent) {
		return nil
	}
	d := f.f.directories.peek(f.n.view, f.n.parent.path())
	if d == nil {
		return nil
	}
	i, ok := d.byName[f.n.name]
	if !ok {
		return nil
	}
	bytes, files := int64(0), 0
	for i++; i < len(d.entries) && files < siblingFiles; i++ {
		e := &d.entries[i]
		if e.Kind != backup.File || e.Content.Depth > 0 || e.Flags&hardlink.Missing != 0 {
			continue
		}
		for _, ref := range e.Content.Refs {
			if bytes += ref.Length; bytes > siblingBytes {
				return ahead
			}
			ahead = append(ahead, ref)
		}
		files++
	}
	return ahead
}

// seek returns the next offset of data, or of a hole.
func (f *file) seek(ctx context.Context, offset int64, hole bool) (int64, error) {
	if offset < 0 || offset >= f.e.Size {
		return 0, syscall.ENXIO
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := offset; ; {
		if err := f.cover(ctx, at, at+1); err != nil {
			return 0, err
		}
		next := f.e.Size // where the next data begins
		covered := false
		for i := range f.pieces {
			p := &f.pieces[i]
			if p.end() <= at {
				continue
			}
			covered, next = p.offset <= at, p.offset
			if covered {
				next = p.end()
			}
			break
		}
		switch {
		case covered && !hole, !covered && hole:
			return at, nil
		case covered && next >= f.e.Size:
			return f.e.Size, nil // the end counts as a hole
		case covered:
			at = next
		default:
			if next == f.e.Size && !f.ended {
				if _, beyond, _, ok, err := f.refs.Peek(); err == nil && ok {
					at = beyond
					continue
				}
			}
			if next >= f.e.Size {
				return 0, syscall.ENXIO
			}
			return next, nil
		}
	}
}
