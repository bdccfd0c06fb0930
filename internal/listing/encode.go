package listing

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

// The encoding's version is its first byte; the second says how the columns
// that follow are compressed.
const (
	version = 1

	bodyPlain = 0
	bodyZstd  = 1
)

// MaxBytes is the most that a listing's columns may take, before compression.
const MaxBytes = 4 << 20

// plainBelow is the size under which compressing the columns is not tried.
const plainBelow = 64

var encoder = func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(1<<20), zstd.WithEncoderConcurrency(4))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
}()

// An Encoder turns pages into listings; it reuses its buffers and belongs to
// one goroutine.
type Encoder struct{ body []byte }

// Encode appends the listing of a page to dst. Entries must be sorted.
func (c *Encoder) Encode(dst []byte, p *backup.Page) ([]byte, error) {
	c.body = appendColumns(c.body[:0], p)
	if len(c.body) > MaxBytes {
		return dst, fmt.Errorf("listing of %q: %d bytes, more than %d: %w", p.Path, len(c.body), MaxBytes, backup.ErrInvalid)
	}
	if len(c.body) < plainBelow {
		dst = append(dst, version, bodyPlain)
		return append(dst, c.body...), nil
	}
	dst = append(dst, version, bodyZstd)
	return encoder.EncodeAll(c.body, dst), nil
}

// Encode appends the listing of a page to dst.
func Encode(dst []byte, p *backup.Page) ([]byte, error) {
	var c Encoder
	return c.Encode(dst, p)
}

// appendColumns appends the page column by column: like values stand together,
// as differences to the value above, which is what makes them compress.
func appendColumns(b []byte, p *backup.Page) []byte {
	rows := make([]*backup.Entry, 0, len(p.Entries)+1)
	hasSelf := byte(0)
	if p.Self != nil {
		hasSelf = 1
		rows = append(rows, p.Self)
	}
	for i := range p.Entries {
		rows = append(rows, &p.Entries[i])
	}
	b = append(b, hasSelf)
	b = binary.AppendUvarint(b, uint64(len(rows)))
	b = appendNames(b, rows)
	for _, e := range rows {
		b = append(b, byte(e.Kind))
	}
	for _, e := range rows {
		b = append(b, byte(e.Flags))
	}
	b = appendDeltas(b, rows, func(e *backup.Entry) int64 { return int64(e.Inode) })
	rows = fullRows(rows)
	b = appendAttributes(b, rows)
	for _, e := range rows {
		b = appendSpecial(b, e)
	}
	for _, e := range rows {
		b = appendXattrs(b, e)
	}
	return appendContents(b, rows)
}

// fullRows drops, in place, the rows that have a name, kind and inode only.
func fullRows(rows []*backup.Entry) []*backup.Entry {
	full := rows[:0]
	for _, e := range rows {
		if isFull(e.Kind, e.Name) {
			full = append(full, e)
		}
	}
	return full
}

// isFull reports whether the entry has all attributes: a subdirectory has its
// own in its own first page.
func isFull(kind backup.Kind, name string) bool { return kind != backup.Directory || name == "" }

func appendNames(b []byte, rows []*backup.Entry) []byte {
	prev := ""
	for _, e := range rows {
		b = binary.AppendUvarint(b, uint64(sharedPrefix(prev, e.Name)))
		prev = e.Name
	}
	prev = ""
	for _, e := range rows {
		b = binary.AppendUvarint(b, uint64(len(e.Name)-sharedPrefix(prev, e.Name)))
		prev = e.Name
	}
	prev = ""
	for _, e := range rows {
		b = append(b, e.Name[sharedPrefix(prev, e.Name):]...)
		prev = e.Name
	}
	return b
}

func sharedPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func appendDeltas(b []byte, rows []*backup.Entry, value func(*backup.Entry) int64) []byte {
	prev := int64(0)
	for _, e := range rows {
		v := value(e)
		b = binary.AppendVarint(b, v-prev)
		prev = v
	}
	return b
}

func appendAttributes(b []byte, rows []*backup.Entry) []byte {
	for _, value := range [...]func(*backup.Entry) int64{
		func(e *backup.Entry) int64 { return int64(e.Mode) },
		func(e *backup.Entry) int64 { return int64(e.UID) },
		func(e *backup.Entry) int64 { return int64(e.GID) },
		func(e *backup.Entry) int64 { return int64(e.Nlink) },
		func(e *backup.Entry) int64 { return int64(e.Device) },
		func(e *backup.Entry) int64 { return e.Size },
		func(e *backup.Entry) int64 { return e.Mtime.Sec },
		func(e *backup.Entry) int64 { return e.Ctime.Sec },
		func(e *backup.Entry) int64 { return e.Btime.Sec },
	} {
		b = appendDeltas(b, rows, value)
	}
	for _, nsec := range [...]func(*backup.Entry) uint32{
		func(e *backup.Entry) uint32 { return e.Mtime.Nsec },
		func(e *backup.Entry) uint32 { return e.Ctime.Nsec },
		func(e *backup.Entry) uint32 { return e.Btime.Nsec },
	} {
		for _, e := range rows {
			b = binary.AppendUvarint(b, uint64(nsec(e)))
		}
	}
	return b
}

// appendSpecial appends what only some kinds have.
func appendSpecial(b []byte, e *backup.Entry) []byte {
	switch e.Kind {
	case backup.Symlink:
		b = binary.AppendUvarint(b, uint64(len(e.Target)))
		b = append(b, e.Target...)
	case backup.CharDev, backup.BlockDev:
		b = binary.AppendUvarint(b, e.Rdev)
	case backup.File, backup.Directory, backup.FIFO, backup.Socket:
	}
	return b
}

// Where an entry's xattrs are: the first number of its row in their column is
// twice their count, or xattrsInChunk.
const xattrsInChunk = 1

func appendXattrs(b []byte, e *backup.Entry) []byte {
	if e.XattrChunk.Length > 0 {
		b = binary.AppendUvarint(b, xattrsInChunk)
		b = binary.AppendUvarint(b, uint64(e.XattrChunk.Length))
		return append(b, e.XattrChunk.Chunk[:]...)
	}
	b = binary.AppendUvarint(b, 2*uint64(len(e.Xattrs)))
	return appendXattrList(b, e.Xattrs)
}

func appendXattrList(b []byte, xattrs []backup.Xattr) []byte {
	for i := range xattrs {
		x := &xattrs[i]
		b = binary.AppendUvarint(b, uint64(len(x.Name)))
		b = append(b, x.Name...)
		b = binary.AppendUvarint(b, uint64(len(x.Value)))
		b = append(b, x.Value...)
	}
	return b
}

// EncodeXattrs appends the content of an XattrChunk.
func EncodeXattrs(dst []byte, xattrs []backup.Xattr) []byte {
	dst = append(dst, version)
	dst = binary.AppendUvarint(dst, uint64(len(xattrs)))
	return appendXattrList(dst, xattrs)
}

// appendContents puts the numbers first and the chunk ids, which do not
// compress, last.
func appendContents(b []byte, rows []*backup.Entry) []byte {
	for _, e := range rows {
		if e.Kind != backup.File {
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(e.Content.Refs)))
		if len(e.Content.Refs) == 0 {
			continue
		}
		b = append(b, byte(e.Content.Depth))
		b = appendRefNumbers(b, e.Content)
	}
	for _, e := range rows {
		if e.Kind != backup.File {
			continue
		}
		for i := range e.Content.Refs {
			b = append(b, e.Content.Refs[i].Chunk[:]...)
		}
	}
	return b
}

func appendRefNumbers(b []byte, c backup.Content) []byte {
	for i := range c.Refs {
		r := &c.Refs[i]
		b = binary.AppendUvarint(b, uint64(r.Hole))
		b = binary.AppendUvarint(b, uint64(r.Length))
		if c.Depth > 0 {
			b = binary.AppendUvarint(b, uint64(r.Span))
		}
	}
	return b
}

// EncodeRefs appends a list chunk: the refs of one level of a large file.
func EncodeRefs(dst []byte, c backup.Content) []byte {
	dst = append(dst, version, byte(c.Depth))
	dst = binary.AppendUvarint(dst, uint64(len(c.Refs)))
	dst = appendRefNumbers(dst, c)
	for i := range c.Refs {
		dst = append(dst, c.Refs[i].Chunk[:]...)
	}
	return dst
}
