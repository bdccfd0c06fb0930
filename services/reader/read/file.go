package read

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// readTries is how often a file that changes under the reader is read.
const readTries = 3

// readFile reads one file and gives e its content, its xattrs, and its
// attributes as they were when the reading began.
func (b *batch) readFile(ctx context.Context, dir source.Directory, p *page, e *backup.Entry) error {
	started, hashed := time.Now(), b.counts.HashSeconds
	seen := linkOf(e)
	f, err := dir.OpenFile(ctx, e.Name)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close() // it was only read
		b.counts.ReadSeconds += time.Since(started).Seconds() - (b.counts.HashSeconds - hashed)
	}()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	var content backup.Content
	var changed bool
	for try := 1; ; try++ {
		if content, err = b.content(ctx, f, &before); err != nil {
			return err
		}
		after, err := f.Stat()
		if err != nil {
			return err
		}
		if changed = !sameState(&before, &after); !changed || try == readTries {
			break
		}
		before = after
	}
	if err := b.readXattrs(ctx, f, p, e); err != nil {
		return err
	}
	b.describe(p, e, &before)
	e.Content = content
	if changed {
		e.Flags |= backup.ChangedWhileRead
		e.Size = contentSize(content)
		b.problem(p, e.Name, "read", errChanged)
	}
	b.noteLink(seen, e)
	return nil
}

var errChanged = errors.New("the file changed each time it was read; what is stored may mix its states")

func sameState(a, b *backup.Entry) bool {
	return a.Size == b.Size && a.Mtime == b.Mtime && a.Ctime == b.Ctime
}

// describe gives e the attributes of the file that was read, which may not be
// those that the walker saw.
func (b *batch) describe(p *page, e, now *backup.Entry) {
	if e.Ctime != now.Ctime || e.Size != now.Size || e.Inode != now.Inode {
		p.again = true // the page's fingerprint is of what the walker saw
	}
	flags := e.Flags
	if now.Ctime.Compare(b.msg.Job.Started) >= 0 {
		flags |= backup.Racy
	}
	name, xattrs, ref := e.Name, e.Xattrs, e.XattrChunk
	*e = *now
	e.Name, e.Flags, e.Xattrs, e.XattrChunk = name, flags, xattrs, ref
}

// contentSize is where the last data of a file of unsteady size ends.
func contentSize(c backup.Content) (n int64) {
	for i := range c.Refs {
		n += c.Refs[i].Hole + c.Refs[i].Span
	}
	return n
}

// readXattrs reads the file's xattrs.
func (b *batch) readXattrs(ctx context.Context, f source.File, p *page, e *backup.Entry) error {
	xattrs, err := f.Xattrs()
	if err != nil {
		b.problem(p, e.Name, "xattr", err)
		p.again = true
		return nil
	}
	return b.placeXattrs(ctx, e, xattrs)
}

// placeXattrs puts xattrs into the entry or, where there is no room, a chunk.
func (b *batch) placeXattrs(ctx context.Context, e *backup.Entry, xattrs []backup.Xattr) (err error) {
	e.Xattrs = nil
	if len(xattrs) == 0 {
		return nil
	}
	size := 0
	for i := range xattrs {
		size += len(xattrs[i].Name) + len(xattrs[i].Value) + 4
	}
	if b.inlineBytes+size <= inlineXattrBytes {
		b.inlineBytes += size
		e.Xattrs = xattrs
		return nil
	}
	e.XattrChunk, err = b.storeChunk(ctx, listing.EncodeXattrs(nil, xattrs))
	return err
}

// content reads the file's data.
func (b *batch) content(ctx context.Context, f source.File, e *backup.Entry) (backup.Content, error) {
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

// wholeFile reads a small file, without holes, as one chunk, straight into the window.
func (b *batch) wholeFile(ctx context.Context, f source.File, size int64) (backup.Content, error) {
	space, err := b.space(ctx, int(size))
	if err != nil {
		return backup.Content{}, err
	}
	n, err := b.readFull(ctx, f, space, 0)
	if err != nil || n == 0 {
		return backup.Content{}, err
	}
	b.counts.ReadBytes += int64(n)
	ref := b.addChunk(space[:n])
	return backup.Content{Refs: []backup.Ref{ref}}, nil
}
