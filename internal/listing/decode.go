package listing

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

var decoder = func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxBytes),
		zstd.WithDecodeAllCapLimit(false))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
}()

// Limits on what a listing may claim, checked before anything is allocated.
const (
	maxRows    = 1 << 16
	maxRefs    = 1 << 20
	maxTarget  = 1 << 16
	maxXattr   = 1 << 20
	minRowSize = 5 // bytes that any row takes: two lengths, kind, flags, inode
)

// DecodePage decodes a page as the index stores it.
func DecodePage(v backup.PageVersion) (backup.Page, error) {
	p, err := Decode(v.Listing)
	if err != nil {
		return p, fmt.Errorf("page %d of directory %q: %w", v.Key, v.Path, err)
	}
	p.Path, p.Key = v.Path, v.Key
	return p, nil
}

// Decode decodes a listing; Path and Key of the page are not part of it. Any
// bytes are safe: what is not a listing is backup.ErrCorrupt.
func Decode(data []byte) (backup.Page, error) {
	if len(data) < 2 || data[0] != version {
		return backup.Page{}, fmt.Errorf("listing: unknown version: %w", backup.ErrCorrupt)
	}
	body := data[2:]
	switch data[1] {
	case bodyPlain:
	case bodyZstd:
		var err error
		if body, err = decoder.DecodeAll(body, make([]byte, 0, min(4*len(body), MaxBytes))); err != nil {
			return backup.Page{}, fmt.Errorf("listing: %w: %w", err, backup.ErrCorrupt)
		}
	default:
		return backup.Page{}, fmt.Errorf("listing: unknown compression %d: %w", data[1], backup.ErrCorrupt)
	}
	r := reader{b: body}
	p := r.page()
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	if r.err != nil {
		return backup.Page{}, r.err
	}
	return p, nil
}

// DecodeRefs decodes a list chunk.
func DecodeRefs(data []byte) (backup.Content, error) {
	r := reader{b: data}
	if r.byte() != version {
		r.fail("list chunk: unknown version")
	}
	c := backup.Content{Depth: int(r.byte())}
	n := r.count(maxRefs, len(backup.ChunkID{})+2)
	if r.err == nil {
		c.Refs = make([]backup.Ref, n)
		r.refNumbers(&c)
		r.refChunks(&c)
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return c, r.err
}

// reader takes values from b until the first error, and zeros from then on.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("listing: "+format+": %w", append(args, backup.ErrCorrupt)...)
		r.b = nil
	}
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("cut short")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("cut short")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("cut short")
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

// bytes returns the next n bytes, which stay the listing's.
func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail("cut short")
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

// count returns a number of things that take at least size bytes each.
func (r *reader) count(limit, size int) int {
	n := r.uvarint()
	if n > uint64(limit) || n*uint64(size) > uint64(len(r.b)) {
		r.fail("count of %d", n)
		return 0
	}
	return int(n)
}

// nonNegative returns a number that must fit an int64.
func (r *reader) nonNegative() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail("number %d", v)
		return 0
	}
	return int64(v)
}

func (r *reader) page() (p backup.Page) {
	hasSelf := r.byte()
	n := r.count(maxRows, minRowSize)
	if hasSelf > 1 || int(hasSelf) > n {
		r.fail("self flag %d", hasSelf)
	}
	if r.err != nil {
		return p
	}
	all := make([]backup.Entry, n)
	rows := make([]*backup.Entry, n)
	for i := range all {
		rows[i] = &all[i]
	}
	r.names(rows, hasSelf == 1)
	for _, e := range rows {
		if e.Kind = backup.Kind(r.byte()); e.Kind < backup.File || e.Kind > backup.BlockDev {
			r.fail("kind %d", e.Kind)
		}
	}
	for _, e := range rows {
		e.Flags = backup.Flags(r.byte())
	}
	r.deltas(rows, func(e *backup.Entry, v int64) { e.Inode = uint64(v) })
	if r.err == nil && hasSelf == 1 && all[0].Kind != backup.Directory {
		r.fail("self is a %v", all[0].Kind)
	}
	rows = fullRows(rows)
	r.attributes(rows)
	for _, e := range rows {
		r.special(e)
	}
	for _, e := range rows {
		r.xattrs(e)
	}
	r.contents(rows)
	if hasSelf == 1 {
		p.Self, all = &all[0], all[1:]
	}
	p.Entries = all
	return p
}

// names checks that every name can be one, and that they ascend.
func (r *reader) names(rows []*backup.Entry, hasSelf bool) {
	shared := make([]int, len(rows))
	ends := make([]int, len(rows))
	for i := range rows {
		shared[i] = int(min(r.uvarint(), math.MaxInt32))
	}
	total, prev := 0, 0
	for i := range rows {
		own := int(min(r.uvarint(), math.MaxInt32))
		if shared[i] > prev || own > len(r.b) {
			r.fail("name of length %d+%d", shared[i], own)
			return
		}
		prev = shared[i] + own
		total += prev
		ends[i] = own
	}
	if total > MaxBytes {
		r.fail("%d bytes of names", total)
		return
	}
	arena := make([]byte, 0, total)
	last := []byte(nil)
	for i := range rows {
		from := len(arena)
		arena = append(arena, last[:min(shared[i], len(last))]...)
		arena = append(arena, r.bytes(ends[i])...)
		last = arena[from:]
	}
	if r.err != nil {
		return
	}
	text := string(arena)
	at, before := 0, ""
	for i, e := range rows {
		n := shared[i] + ends[i]
		e.Name = text[at : at+n]
		at += n
		if i == 0 && hasSelf {
			if e.Name != "" {
				r.fail("self has the name %q", e.Name)
			}
			continue
		}
		if err := backup.CheckName(e.Name); err != nil || e.Name <= before {
			r.fail("name %q after %q", e.Name, before)
			return
		}
		before = e.Name
	}
}

func (r *reader) deltas(rows []*backup.Entry, set func(*backup.Entry, int64)) {
	v := int64(0)
	for _, e := range rows {
		v += r.varint()
		set(e, v)
	}
}

func (r *reader) attributes(rows []*backup.Entry) {
	for _, set := range [...]func(*backup.Entry, int64){
		func(e *backup.Entry, v int64) { e.Mode = uint32(v) & 0o7777 },
		func(e *backup.Entry, v int64) { e.UID = uint32(v) },
		func(e *backup.Entry, v int64) { e.GID = uint32(v) },
		func(e *backup.Entry, v int64) { e.Nlink = uint32(v) },
		func(e *backup.Entry, v int64) { e.Device = uint64(v) },
		func(e *backup.Entry, v int64) { e.Size = v },
		func(e *backup.Entry, v int64) { e.Mtime.Sec = v },
		func(e *backup.Entry, v int64) { e.Ctime.Sec = v },
		func(e *backup.Entry, v int64) { e.Btime.Sec = v },
	} {
		r.deltas(rows, set)
	}
	for _, at := range [...]func(*backup.Entry) *uint32{
		func(e *backup.Entry) *uint32 { return &e.Mtime.Nsec },
		func(e *backup.Entry) *uint32 { return &e.Ctime.Nsec },
		func(e *backup.Entry) *uint32 { return &e.Btime.Nsec },
	} {
		for _, e := range rows {
			v := r.uvarint()
			if v > 999_999_999 {
				r.fail("%d nanoseconds", v)
			}
			*at(e) = uint32(v)
		}
	}
	for _, e := range rows {
		if e.Size < 0 {
			r.fail("size %d", e.Size)
		}
	}
}

func (r *reader) special(e *backup.Entry) {
	switch e.Kind {
	case backup.Symlink:
		e.Target = string(r.bytes(r.count(maxTarget, 1)))
	case backup.CharDev, backup.BlockDev:
		e.Rdev = r.uvarint()
	case backup.File, backup.Directory, backup.FIFO, backup.Socket:
	}
}

func (r *reader) xattrs(e *backup.Entry) {
	n := r.uvarint()
	if n == xattrsInChunk {
		e.XattrChunk.Length = int64(r.count(maxXattr, 0))
		e.XattrChunk.Span = e.XattrChunk.Length
		copy(e.XattrChunk.Chunk[:], r.bytes(len(backup.ChunkID{})))
		return
	}
	if n%2 != 0 || n/2 > uint64(len(r.b)) {
		r.fail("%d xattrs", n)
		return
	}
	e.Xattrs = r.xattrList(int(n / 2))
}

// xattrList reads n attributes; each takes two bytes at least.
func (r *reader) xattrList(n int) []backup.Xattr {
	if n == 0 || r.err != nil {
		return nil
	}
	if n > len(r.b)/2 {
		r.fail("%d xattrs", n)
		return nil
	}
	xattrs := make([]backup.Xattr, n)
	for i := range xattrs {
		xattrs[i].Name = string(r.bytes(r.count(maxXattr, 1)))
		xattrs[i].Value = append([]byte(nil), r.bytes(r.count(maxXattr, 1))...)
	}
	return xattrs
}

// DecodeXattrs decodes the content of an XattrChunk.
func DecodeXattrs(data []byte) ([]backup.Xattr, error) {
	r := reader{b: data}
	if r.byte() != version {
		r.fail("xattrs: unknown version")
	}
	xattrs := r.xattrList(r.count(maxXattr, 2))
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return xattrs, r.err
}

func (r *reader) contents(rows []*backup.Entry) {
	// All refs of the page share one slice; the chunk ids that must still
	// follow bound it.
	var refs []backup.Ref
	for _, e := range rows {
		if e.Kind != backup.File || r.err != nil {
			continue
		}
		n := r.count(maxRefs, 2)
		if n == 0 {
			continue
		}
		if (len(refs)+n)*len(backup.ChunkID{}) > len(r.b) {
			r.fail("count of %d refs", len(refs)+n)
			return
		}
		e.Content.Depth = int(r.byte())
		from := len(refs)
		refs = slices.Grow(refs, n)[:from+n]
		e.Content.Refs = refs[from : from+n : from+n]
		r.refNumbers(&e.Content)
	}
	at := 0
	for _, e := range rows {
		if n := len(e.Content.Refs); n > 0 {
			e.Content.Refs = refs[at : at+n : at+n] // of the slice as it ended up
			at += n
			r.refChunks(&e.Content)
		}
	}
}

// maxDepth of list chunks: a list chunk holds tens of thousands of refs, so
// that three levels hold any file.
const maxDepth = 4

func (r *reader) refNumbers(c *backup.Content) {
	if c.Depth > maxDepth {
		r.fail("depth %d", c.Depth)
		return
	}
	for i := range c.Refs {
		ref := &c.Refs[i]
		ref.Hole, ref.Length = r.nonNegative(), r.nonNegative()
		ref.Span = ref.Length
		if c.Depth > 0 {
			ref.Span = r.nonNegative()
		}
	}
}

func (r *reader) refChunks(c *backup.Content) {
	for i := range c.Refs {
		copy(c.Refs[i].Chunk[:], r.bytes(len(backup.ChunkID{})))
	}
}
