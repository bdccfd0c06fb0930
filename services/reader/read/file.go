package read

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/filetype"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// readTries is how often a file that changes while it is read is read.
const readTries = 3

// readFile reads one file. It sets the content, the extended attributes and the other attributes of
// e, as they were when reading began. If it fails, e is unchanged. last means that readFile is not
// called again after a stale handle.
func (b *batch) readFile(ctx context.Context, at *pageDir, p *page, e *backup.Entry, last bool) (err error) {
	started, hashed, walked := time.Now(), b.counts.HashSeconds, *e
	f, err := b.open(ctx, at, e.Name)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close() // it was only read
		b.counts.ReadSeconds += time.Since(started).Seconds() - (b.counts.HashSeconds - hashed)
		if err != nil {
			*e = walked
		}
	}()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	if linked, err := b.takeLinked(ctx, at, p, e, &before, f, last); linked || err != nil {
		return err
	}
	content, changed, err := b.steadyContent(ctx, f, &before)
	if err != nil {
		return err
	}
	b.describe(p, e, &before)
	e.Content, e.Flags = content, e.Flags.WithClass(b.class)
	if err := b.readFileXattrs(ctx, at, p, e, f, last); err != nil {
		return err
	}
	if changed {
		e.Flags |= backup.ChangedWhileRead
		e.Size = contentSize(content)
		b.counts.Torn++
		b.problem(p, e.Name, "read", errChanged)
	}
	b.noteLink(e)
	return nil
}

// open opens the batch's one file: a batch reads files one after the other.
func (b *batch) open(ctx context.Context, at *pageDir, name string) (source.File, error) {
	f, err := at.dir.OpenFile(ctx, name)
	if err != nil {
		return nil, err
	}
	b.file = openFile{f}
	return &b.file, nil
}

// steadyContent reads the file's data until all of it was read without a change, at most readTries
// times, and sets before to the file's state when the last reading began. changed reports that it
// changed each time.
func (b *batch) steadyContent(ctx context.Context, f source.File, before *backup.Entry) (c backup.Content, changed bool, err error) {
	for try := 1; ; try++ {
		b.short = false
		if c, err = b.content(ctx, f, before); err != nil {
			return c, false, err
		}
		after, err := f.Stat()
		if err != nil {
			return c, false, err
		}
		steady := sameState(before, &after)
		switch {
		case steady && !b.short:
			return c, false, nil
		case try < readTries:
		case steady:
			return c, false, errShort
		default:
			return c, true, nil
		}
		*before = after
	}
}

// content reads the file's data: a small file as one chunk, and a large or sparse one with a
// splitter.
func (b *batch) content(ctx context.Context, f source.File, e *backup.Entry) (backup.Content, error) {
	b.class = backup.Plain // empty, or a hole first
	if e.Size == 0 {
		return backup.Content{}, nil
	}
	start, length, err := f.NextExtent(0, e.Size)
	if err != nil {
		return backup.Content{}, err
	}
	if start == 0 && length >= e.Size && e.Size <= chunk.WholeFileBytes {
		return b.wholeFile(ctx, f, e.Size)
	}
	s := splitter{batch: b, file: f}
	for offset := int64(0); length > 0; {
		if err := s.extent(ctx, start-offset, start, length); err != nil {
			return backup.Content{}, err
		}
		offset = start + length
		if start, length, err = f.NextExtent(offset, e.Size); err != nil {
			return backup.Content{}, err
		}
	}
	return s.refs.finish(ctx, b)
}

// wholeFile reads a small file without holes as one chunk, directly into the buffer.
func (b *batch) wholeFile(ctx context.Context, f source.File, size int64) (backup.Content, error) {
	space, err := b.space(ctx, int(size))
	if err != nil {
		return backup.Content{}, err
	}
	n, err := b.readFull(ctx, f, space, 0)
	b.short = int64(n) < size
	if err != nil || n == 0 {
		return backup.Content{}, err
	}
	b.counts.ReadBytes += int64(n)
	b.class = filetype.Classify(space[:n])
	ref := b.addChunk(space[:n])
	return backup.Content{Refs: []backup.Ref{ref}}, nil
}

// readFull reads until p is full or the file ends, within the batch's limit.
func (b *batch) readFull(ctx context.Context, f io.ReaderAt, p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		piece := p[n:]
		if b.pace.limited() {
			piece = piece[:min(len(piece), paceBytes)]
			asked := time.Now()
			err := b.pace.wait(ctx, len(piece))
			b.at.held += time.Since(asked)
			if err != nil {
				return n, err
			}
		}
		m, err := f.ReadAt(piece, offset+int64(n))
		n += m
		b.hasRead(m)
		if err == io.EOF || err == nil && m == 0 {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

var (
	errChanged = errors.New("the file changed each time it was read; what is stored may mix its states")
	errShort   = errors.New("the file ended before its size, and did not change")
)

func sameState(a, b *backup.Entry) bool {
	return a.Size == b.Size && a.Mtime == b.Mtime && a.Ctime == b.Ctime
}

// sameFile reports whether two entries agree in all attributes that a fingerprint covers.
func sameFile(a, b *backup.Entry) bool {
	return sameState(a, b) && a.Inode == b.Inode && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Nlink == b.Nlink
}

// describe gives e the attributes of the file that was read, which may differ from those that the
// walker saw.
func (b *batch) describe(p *page, e, now *backup.Entry) {
	if !sameFile(e, now) {
		p.revisit = true // the page's fingerprint is of the walker's view
	}
	flags := e.Flags &^ backup.Racy
	if listing.IsRacy(b.msg.Job.Compare, now, b.racyFrom) {
		flags |= backup.Racy
	}
	name, xattrs, ref := e.Name, e.Xattrs, e.XattrChunk
	*e = *now
	e.Name, e.Flags, e.Xattrs, e.XattrChunk = name, flags, xattrs, ref
}

// contentSize returns the offset at which the last data of a file of unsteady size ends.
func contentSize(c backup.Content) (n int64) {
	for i := range c.Refs {
		n += c.Refs[i].Hole + c.Refs[i].Span
	}
	return n
}

// An openFile is a file whose errors concern only this descriptor, even if they report the file as
// gone. Such an error becomes source.ErrStale, so that the file is opened again by its name, which
// shows whether the name is gone.
type openFile struct{ source.File }

func (f *openFile) Stat() (backup.Entry, error) {
	e, err := f.File.Stat()
	return e, staleIfGone(err)
}

func (f *openFile) NextExtent(offset, size int64) (start, length int64, err error) {
	start, length, err = f.File.NextExtent(offset, size)
	return start, length, staleIfGone(err)
}

func (f *openFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.File.ReadAt(p, offset)
	return n, staleIfGone(err)
}

func (f *openFile) Xattrs() ([]backup.Xattr, error) {
	xattrs, err := f.File.Xattrs()
	return xattrs, staleIfGone(err)
}

func staleIfGone(err error) error {
	if source.IsGone(err) {
		return fmt.Errorf("%w: %v", source.ErrStale, err) //nolint:errorlint // it must not count as gone
	}
	return err
}
