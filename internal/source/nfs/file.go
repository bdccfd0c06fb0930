//go:build linux

package nfs

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/source"
)

const (
	// reading bounds the READs in flight of one ReadAt, and leastRead is the size from which on a
	// range is split for that.
	reading   = 8
	leastRead = 512 << 10
)

type file struct {
	ctx    context.Context // of OpenFile: reading a file is part of it
	tree   *tree
	handle nfs3.Handle

	attr  nfs3.Attr // the latest
	fresh bool      // attr is current: the next Stat returns it
}

// Stat implements source.File. The server returns attributes with each READ, after it has read. If
// all READs since the last Stat agree, they are the attributes that the file had throughout.
func (f *file) Stat() (backup.Entry, error) {
	if !f.fresh {
		a, err := f.tree.server.nfs.GetAttr(f.ctx, f.handle)
		if err != nil {
			return backup.Entry{}, asError(err)
		}
		f.attr = a
	}
	f.fresh = false
	return entryOf(&f.attr)
}

// NextExtent implements source.File: the protocol shows no holes.
func (f *file) NextExtent(offset, size int64) (start, length int64, err error) {
	return offset, max(size-offset, 0), nil
}

// ReadAt implements io.ReaderAt, with several READs in flight.
func (f *file) ReadAt(p []byte, offset int64) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	part := min(max(len(p)/reading, leastRead), f.tree.readBytes)
	parts := (len(p) + part - 1) / part
	if parts == 1 {
		r := f.read(f.ctx, p, offset)
		f.note(&r.seen)
		return r.n, r.err
	}
	results := make([]result, parts)
	calls, ctx := errgroup.WithContext(f.ctx)
	calls.SetLimit(reading)
	for i := range parts {
		calls.Go(func() error {
			from := i * part
			results[i] = f.read(ctx, p[from:min(from+part, len(p))], offset+int64(from))
			if err := results[i].err; err != nil && err != io.EOF { //nolint:errorlint // read returns it as it is
				return err
			}
			return nil
		})
	}
	failure := calls.Wait()
	seen := results[0].seen
	for i := range results {
		seen.add(&results[i].seen)
	}
	f.note(&seen)
	for i := range results {
		if n += results[i].n; results[i].err != nil {
			if results[i].err != io.EOF && failure != nil { //nolint:errorlint // as above
				return n, failure
			}
			return n, results[i].err
		}
	}
	return n, nil
}

// A result is what READs of one range have returned.
type result struct {
	n    int
	err  error
	seen seen
}

// seen are the attributes that READs have returned.
type seen struct {
	attr  nfs3.Attr
	known bool // all have returned the same
}

func (s *seen) add(other *seen) {
	s.known = s.known && other.known && sameState(&s.attr, &other.attr)
}

func sameState(a, b *nfs3.Attr) bool {
	return a.Size == b.Size && a.Mtime == b.Mtime && a.Ctime == b.Ctime
}

// note remembers the attributes for Stat. Each change moves the ctime, so those of a READ that came
// later show a change that an earlier READ showed.
func (f *file) note(s *seen) {
	if f.fresh = s.known; s.known {
		f.attr = s.attr
	}
}

// read fills p, unless the file ends before that.
func (f *file) read(ctx context.Context, p []byte, offset int64) (r result) {
	for first := true; r.n < len(p); first = false {
		piece := p[r.n:]
		n, eof, a, err := f.tree.server.nfs.Read(ctx, f.handle, uint64(offset)+uint64(r.n), piece[:min(len(piece), f.tree.readBytes)])
		if err != nil {
			r.err = asError(err)
			return r
		}
		r.n += n
		s := seen{a.Attr, a.Known}
		if first {
			r.seen = s
		} else {
			r.seen.add(&s)
		}
		switch {
		case eof && r.n < len(p):
			r.err = io.EOF
			return r
		case n == 0 && !eof:
			r.err = fmt.Errorf("the server returns no data, and no end of the file: %w", syscall.EIO)
			return r
		}
	}
	return r
}

// Xattrs implements source.File: the protocol has no extended attributes.
func (f *file) Xattrs() ([]backup.Xattr, error) { return nil, source.ErrNoXattrs }

// Close implements source.File. A server without state has nothing to close.
func (f *file) Close() error { return nil }
