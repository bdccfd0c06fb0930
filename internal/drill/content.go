package drill

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/listing"
)

// A content compares files with the chunks of their listings. It belongs to one goroutine.
type content struct {
	fetch  *fetch.Fetcher
	hasher *chunk.Hasher
	buf    []byte
}

// errDiffers reports that a file has other content than its listing.
var errDiffers = errors.New("the content differs")

// compare fails unless in has the content of e, whose size it has: with errDiffers, with an error
// of reading, or with one of the lists of chunks (backup.ErrCorrupt). An error that ends the drill
// is fatal. hole, if not nil, is called with each range that the snapshot has as a hole, before the
// range is read.
func (c *content) compare(ctx context.Context, in io.ReaderAt, e *backup.Entry, hole func(from, to int64)) (failed, fatal error) {
	refs := fetch.NewRefs(e.Size, e.Content)
	end := int64(0)
	for {
		ref, offset, list, ok, err := refs.Peek()
		switch {
		case err != nil:
			return err, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !ok:
			return c.zeros(ctx, in, end, e.Size, hole)
		case list:
			if err := c.fetch.Load(ctx, []*fetch.Refs{&refs}); err != nil {
				return nil, err
			}
			continue
		}
		if failed, fatal := c.zeros(ctx, in, end, offset, hole); failed != nil || fatal != nil {
			return failed, fatal
		}
		part, err := c.read(in, offset, ref.Length)
		if err != nil {
			return err, nil
		}
		if hash := c.hasher.Sum(part); hash.ID() != ref.Chunk {
			return fmt.Errorf("%w in the %d bytes from %d", errDiffers, ref.Length, offset), nil
		}
		end = offset + ref.Length
		refs.Advance()
	}
}

// read returns length bytes, at most chunk.MaxBytes, which are valid until the next call.
func (c *content) read(in io.ReaderAt, offset, length int64) ([]byte, error) {
	if int64(cap(c.buf)) < length {
		c.buf = make([]byte, length)
	}
	n, err := in.ReadAt(c.buf[:length], offset)
	if int64(n) < length {
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: it ends at %d", errDiffers, offset+int64(n))
		}
		return nil, err
	}
	return c.buf[:length], nil
}

// zeros fails unless the file has only zeros between two offsets: the snapshot has a hole there.
func (c *content) zeros(ctx context.Context, in io.ReaderAt, from, to int64, hole func(from, to int64)) (failed, fatal error) {
	if from < to && hole != nil {
		hole(from, to)
	}
	for from < to {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		part, err := c.read(in, from, min(to-from, chunk.MaxBytes))
		if err != nil {
			return err, nil
		}
		for i, b := range part {
			if b != 0 {
				return fmt.Errorf("%w at %d, where the snapshot has a hole", errDiffers, from+int64(i)), nil
			}
		}
		from += int64(len(part))
	}
	return nil, nil
}

// xattrs returns the extended attributes of an entry.
func (c *content) xattrs(ctx context.Context, e *backup.Entry) (xattrs []backup.Xattr, failed, fatal error) {
	if e.XattrChunk.Length == 0 {
		return e.Xattrs, nil, nil
	}
	var sink xattrSink
	fatal = c.fetch.Get(ctx, []fetch.Want{{Chunk: e.XattrChunk.Chunk, Length: e.XattrChunk.Length, Sink: &sink}})
	return sink.xattrs, sink.err, fatal
}

// An xattrSink decodes one chunk of extended attributes.
type xattrSink struct {
	xattrs []backup.Xattr
	err    error
}

// Chunk implements fetch.Sink.
func (s *xattrSink) Chunk(_ int64, data []byte) { s.xattrs, s.err = listing.DecodeXattrs(data) }

// Fail implements fetch.Sink.
func (s *xattrSink) Fail(_ int64, err error) { s.err = err }
