package listing

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

// The first byte of the encoding is its version, and the second is the compression of the columns.
// The chunk ids come last and uncompressed: compression would not shorten them, and ReadChunks can
// read them without the columns.
const (
	version = 1

	columnsPlain = 0
	columnsZstd  = 1
)

// MaxBytes is the maximum length of a listing's columns before compression.
const MaxBytes = 4 << 20

// plainBelow is the length below which columns are not compressed.
const plainBelow = 64

var encoder = func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(1<<20), zstd.WithEncoderConcurrency(4))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
}()

// An Encoder turns pages into listings. It reuses its buffers, and must be used by one goroutine
// only.
type Encoder struct {
	columns, packed []byte
	rows            []*backup.Entry
}

// Encode appends the listing of a page to dst. It fails with backup.ErrInvalid for a page that
// Decode would not accept, such as one with unsorted entries or an invalid name.
func (c *Encoder) Encode(dst []byte, p *backup.Page) ([]byte, error) {
	if err := check(p); err != nil {
		return dst, fmt.Errorf("listing of %q: %w", p.Path, err)
	}
	c.appendColumns(p)
	if len(c.columns) > MaxBytes {
		return dst, fmt.Errorf("listing of %q: %d bytes, more than %d: %w", p.Path, len(c.columns), MaxBytes, backup.ErrInvalid)
	}
	columns := c.columns
	if len(columns) < plainBelow {
		dst = append(dst, version, columnsPlain)
	} else {
		c.packed = encoder.EncodeAll(columns, c.packed[:0])
		columns = c.packed
		dst = append(dst, version, columnsZstd)
	}
	dst = binary.AppendUvarint(dst, uint64(len(columns)))
	dst = append(dst, columns...)
	return appendPageChunks(dst, p), nil
}

// appendPageChunks appends the ids of all chunks to which the page refers, those of list chunks
// first.
func appendPageChunks(dst []byte, p *backup.Page) []byte {
	lists := 0
	for i := range p.Entries {
		if c := &p.Entries[i].Content; c.Depth > 0 {
			lists += len(c.Refs)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(lists))
	for i := range p.Entries {
		if c := &p.Entries[i].Content; c.Depth > 0 {
			dst = appendChunks(dst, c.Refs)
		}
	}
	for i := range p.Entries {
		if c := &p.Entries[i].Content; c.Depth == 0 {
			dst = appendChunks(dst, c.Refs)
		}
	}
	if p.Self != nil && p.Self.XattrChunk.Length > 0 {
		dst = append(dst, p.Self.XattrChunk.Chunk[:]...)
	}
	for i := range p.Entries {
		if e := &p.Entries[i]; isFull(e) && e.XattrChunk.Length > 0 {
			dst = append(dst, e.XattrChunk.Chunk[:]...)
		}
	}
	return dst
}

// Encode appends the listing of a page to dst.
func Encode(dst []byte, p *backup.Page) ([]byte, error) {
	var c Encoder
	return c.Encode(dst, p)
}

// appendColumns encodes the page's columns. Values of the same type are adjacent, and most are
// stored as the difference to the previous value, so that they compress well.
func (c *Encoder) appendColumns(p *backup.Page) {
	c.rows = c.rows[:0]
	hasSelf := byte(0)
	if p.Self != nil {
		hasSelf = 1
		c.rows = append(c.rows, p.Self)
	}
	for i := range p.Entries {
		c.rows = append(c.rows, &p.Entries[i])
	}
	b := c.columns[:0]
	b = append(b, hasSelf)
	b = binary.AppendUvarint(b, uint64(p.Next))
	b = binary.AppendUvarint(b, uint64(len(c.rows)))
	b = appendNames(b, c.rows)
	for _, e := range c.rows {
		b = append(b, byte(e.Kind))
	}
	for _, e := range c.rows {
		b = binary.AppendUvarint(b, uint64(e.Flags))
	}
	b = appendDeltas(b, c.rows, inodeColumn.get)
	full := fullRows(c.rows)
	b = appendAttributes(b, full)
	for _, e := range full {
		b = appendSpecial(b, e)
	}
	for _, e := range full {
		b = appendXattrs(b, e)
	}
	c.columns = appendContents(b, full)
	clear(c.rows[:cap(c.rows)]) // otherwise they would keep the entries alive
}

// isFull reports whether an entry has more than name, kind, flags and inode. A subdirectory does
// not: its attributes are in its own first page.
func isFull(e *backup.Entry) bool { return e.Kind != backup.Directory || e.Name == "" }

// fullRows removes, in place, the rows that are not full.
func fullRows(rows []*backup.Entry) []*backup.Entry {
	full := rows[:0]
	for _, e := range rows {
		if isFull(e) {
			full = append(full, e)
		}
	}
	return full
}

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

// A column is a number that every row has, or every row with attributes. It ranges from 0 to max,
// or over all 64-bit values if max is 0.
type column struct {
	max uint64
	get func(*backup.Entry) int64
	set func(*backup.Entry, int64)
}

var inodeColumn = column{
	0,
	func(e *backup.Entry) int64 { return int64(e.Inode) },
	func(e *backup.Entry, v int64) { e.Inode = uint64(v) },
}

const modeBits = 0o7777

// The columns that are stored as differences, in order, before the sizes …
var idColumns = [...]column{
	{modeBits, func(e *backup.Entry) int64 { return int64(e.Mode & modeBits) }, func(e *backup.Entry, v int64) { e.Mode = uint32(v) }},
	{math.MaxUint32, func(e *backup.Entry) int64 { return int64(e.UID) }, func(e *backup.Entry, v int64) { e.UID = uint32(v) }},
	{math.MaxUint32, func(e *backup.Entry) int64 { return int64(e.GID) }, func(e *backup.Entry, v int64) { e.GID = uint32(v) }},
	{math.MaxUint32, func(e *backup.Entry) int64 { return int64(e.Nlink) }, func(e *backup.Entry, v int64) { e.Nlink = uint32(v) }},
}

// … and after them: the times, followed by their nanoseconds.
var timeColumns = [...]func(*backup.Entry) *backup.Time{
	func(e *backup.Entry) *backup.Time { return &e.Mtime },
	func(e *backup.Entry) *backup.Time { return &e.Ctime },
	func(e *backup.Entry) *backup.Time { return &e.Btime },
}

func appendDeltas(b []byte, rows []*backup.Entry, get func(*backup.Entry) int64) []byte {
	prev := int64(0)
	for _, e := range rows {
		v := get(e)
		b = binary.AppendVarint(b, v-prev)
		prev = v
	}
	return b
}

func appendAttributes(b []byte, rows []*backup.Entry) []byte {
	for _, column := range idColumns {
		b = appendDeltas(b, rows, column.get)
	}
	for _, e := range rows {
		b = binary.AppendUvarint(b, uint64(e.Size))
	}
	for _, at := range timeColumns {
		b = appendDeltas(b, rows, func(e *backup.Entry) int64 { return at(e).Sec })
	}
	// Nanoseconds are noise or multiples of some unit. They are stored byte by byte, so that noise
	// is kept apart from bytes that compress.
	for _, at := range timeColumns {
		for shift := 0; shift < 32; shift += 8 {
			for _, e := range rows {
				b = append(b, byte(at(e).Nsec>>shift))
			}
		}
	}
	return b
}

// appendSpecial appends the attributes that only some kinds have.
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

// The location of an entry's xattrs: the first number of its row in their column is twice their
// count, or xattrsInChunk.
const xattrsInChunk = 1

func appendXattrs(b []byte, e *backup.Entry) []byte {
	if e.XattrChunk.Length > 0 {
		b = binary.AppendUvarint(b, xattrsInChunk)
		return binary.AppendUvarint(b, uint64(e.XattrChunk.Length))
	}
	b = binary.AppendUvarint(b, 2*uint64(len(e.Xattrs)))
	return appendXattrList(b, e.Xattrs)
}

// wholeFile is the first number of a file's row in the column of contents if the file has a single
// ref that covers all of it. Otherwise the number is 0 for no refs, or one more than the number of
// refs.
const wholeFile = 1

func isWhole(e *backup.Entry) bool {
	c := &e.Content
	return len(c.Refs) == 1 && c.Depth == 0 && c.Refs[0].Hole == 0 && c.Refs[0].Length == e.Size
}

func appendContents(b []byte, rows []*backup.Entry) []byte {
	for _, e := range rows {
		switch {
		case e.Kind != backup.File:
		case len(e.Content.Refs) == 0:
			b = append(b, 0)
		case isWhole(e):
			b = append(b, wholeFile)
		default:
			b = binary.AppendUvarint(b, uint64(len(e.Content.Refs))+1)
			b = append(b, byte(e.Content.Depth))
			b = appendRefNumbers(b, e.Content)
		}
	}
	return b
}
