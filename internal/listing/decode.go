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
		zstd.WithDecoderMaxWindow(MaxBytes))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
}()

// Limits on the claims of a listing, checked before anything is allocated for it. Together with
// MaxBytes they bound the memory of a page.
const (
	maxRows    = 1 << 14 // of a page
	maxRefs    = 1 << 20 // of a list chunk
	maxTarget  = 1 << 16 // bytes
	maxXattrs  = 1 << 16 // of a page, or of an XattrChunk
	minRowSize = 5       // minimum of a row: two lengths, kind, flags, inode
	maxNsec    = 999_999_999

	// maxDepth is the maximum depth of list chunks. A list chunk holds tens of thousands of refs,
	// so three levels suffice for any file.
	maxDepth = 4
)

// DecodePage decodes a page as the index stores it. A page that does not match its digest is
// backup.ErrCorrupt: it differs from what was backed up.
func DecodePage(v backup.PageVersion) (backup.Page, error) {
	var d Decoder
	return d.DecodePage(v)
}

// Decode decodes a listing, which does not contain the Path and Key of the page. It accepts
// untrusted data: bytes that are not a listing are backup.ErrCorrupt.
func Decode(data []byte) (backup.Page, error) {
	var d Decoder
	return d.Decode(data)
}

// A Decoder decodes pages one after another in the same memory: a page, except for its strings, is
// valid until the next one. It must be used by one goroutine only.
type Decoder struct {
	columns, names []byte
	all            []backup.Entry
	rows           []*backup.Entry
	shared, own    []uint64
	refs           []backup.Ref
}

// DecodePage is DecodePage in the memory of the Decoder.
func (d *Decoder) DecodePage(v backup.PageVersion) (backup.Page, error) {
	if v.Digest != (backup.PageDigest{}) && Digest(&v) != v.Digest {
		return backup.Page{}, fmt.Errorf("page %d of directory %q: its row in the index is damaged: %w", v.Key, v.Path, backup.ErrCorrupt)
	}
	return d.DecodeProven(v)
}

// DecodeProven is DecodePage for a page whose digest the caller has compared.
func (d *Decoder) DecodeProven(v backup.PageVersion) (backup.Page, error) {
	p, err := d.Decode(v.Listing)
	if err != nil {
		return p, fmt.Errorf("page %d of directory %q: %w", v.Key, v.Path, err)
	}
	p.Path, p.Key = v.Path, v.Key
	return p, nil
}

// Decode is Decode in the memory of the Decoder.
func (d *Decoder) Decode(data []byte) (backup.Page, error) {
	r := reader{b: data, memory: d}
	v, compression := r.byte(), r.byte()
	if r.err == nil && v != version {
		r.fail("unknown version %d", v)
	}
	columns := r.bytes(r.uvarint())
	chunks := r.chunkIDs()
	if r.err != nil {
		return backup.Page{}, r.err
	}
	var err error
	if columns, err = unpack(d.columns[:0], compression, columns); err != nil {
		return backup.Page{}, err
	}
	if compression != columnsPlain {
		d.columns = columns
	}
	r.b = columns
	p := r.page(chunks)
	if r.err != nil {
		return backup.Page{}, r.err
	}
	return p, nil
}

// unpack decompresses the columns of a listing. It appends to dst if it decompresses anything.
func unpack(dst []byte, compression byte, columns []byte) ([]byte, error) {
	switch compression {
	case columnsPlain:
	case columnsZstd:
		var err error
		if columns, err = decoder.DecodeAll(columns, slices.Grow(dst, min(4*len(columns), MaxBytes))); err != nil {
			return nil, fmt.Errorf("listing: %w: %w", err, backup.ErrCorrupt)
		}
	default:
		return nil, fmt.Errorf("listing: unknown compression %d: %w", compression, backup.ErrCorrupt)
	}
	if len(columns) > MaxBytes {
		return nil, fmt.Errorf("listing: columns of %d bytes: %w", len(columns), backup.ErrCorrupt)
	}
	return columns, nil
}

// check returns an error unless Decode would accept the page.
func check(p *backup.Page) error {
	if len(p.Entries) >= maxRows || p.Next < 0 {
		return fmt.Errorf("%d entries, next page %d: %w", len(p.Entries), p.Next, backup.ErrInvalid)
	}
	xattrs := 0
	if p.Self != nil {
		if p.Self.Name != "" || p.Self.Kind != backup.Directory {
			return fmt.Errorf("%v %q for the directory itself: %w", p.Self.Kind, p.Self.Name, backup.ErrInvalid)
		}
		if err := checkEntry(p.Self); err != nil {
			return err
		}
		xattrs = len(p.Self.Xattrs)
	}
	before := ""
	for i := range p.Entries {
		e := &p.Entries[i]
		if err := backup.CheckName(e.Name); err != nil {
			return err
		}
		if e.Name <= before {
			return fmt.Errorf("name %q after %q: %w", e.Name, before, backup.ErrInvalid)
		}
		before = e.Name
		if err := checkEntry(e); err != nil {
			return err
		}
		xattrs += len(e.Xattrs)
	}
	if xattrs > maxXattrs {
		return fmt.Errorf("%d xattrs: %w", xattrs, backup.ErrInvalid)
	}
	return nil
}

func checkEntry(e *backup.Entry) error {
	bad := e.Kind < backup.File || e.Kind > backup.BlockDev || e.Size < 0 || len(e.Target) > maxTarget || e.XattrChunk.Length < 0 ||
		max(e.Mtime.Nsec, e.Ctime.Nsec, e.Btime.Nsec) > maxNsec || e.Content.Depth < 0 || e.Content.Depth > maxDepth ||
		e.Kind != backup.File && len(e.Content.Refs) > 0 || e.XattrChunk.Length > 0 && len(e.Xattrs) > 0
	for i := range e.Content.Refs {
		r := &e.Content.Refs[i]
		bad = bad || r.Hole < 0 || r.Length < 0 || r.Span < 0
	}
	if bad {
		return fmt.Errorf("%v %q has an attribute that is out of range: %w", e.Kind, e.Name, backup.ErrInvalid)
	}
	return nil
}

// reader reads values from b until the first error, and returns zeros after it.
type reader struct {
	b          []byte
	err        error
	xattrsRead int
	memory     *Decoder // of a page
}

// again returns n zero elements, in the memory of s if that is enough.
func again[T any](s []T, n int) []T {
	if s == nil || cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("listing: "+format+": %w", append(args, backup.ErrCorrupt)...)
		r.b = nil
	}
}

func (r *reader) uvarint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 { // as most are
		v := uint64(r.b[0])
		r.b = r.b[1:]
		return v
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("cut short")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v := r.uvarint()
	return int64(v>>1) ^ -int64(v&1) // zigzag
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

// bytes returns the next n bytes, which alias the listing.
func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail("cut short")
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n:]
	return s
}

// count reads a number of elements, each of which takes at least size bytes.
func (r *reader) count(limit, size int) int {
	n := r.uvarint()
	if n > uint64(limit) || n*uint64(size) > uint64(len(r.b)) {
		r.fail("count of %d", n)
		return 0
	}
	return int(n)
}

// nonNegative reads a number that must fit into an int64.
func (r *reader) nonNegative() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail("number %d", v)
		return 0
	}
	return int64(v)
}

// end fails if any bytes are left.
func (r *reader) end() {
	if len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
}

func (r *reader) page(chunks chunkIDs) (p backup.Page) {
	hasSelf := r.byte()
	p.Next = backup.PageKey(r.nonNegative())
	n := r.count(maxRows, minRowSize)
	if hasSelf > 1 || int(hasSelf) > n {
		r.fail("self flag %d", hasSelf)
	}
	if r.err != nil {
		return p
	}
	m := r.memory
	m.all, m.rows = again(m.all, n), again(m.rows, n)
	all, rows := m.all, m.rows
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
		flags := r.uvarint()
		if flags > math.MaxUint16 {
			r.fail("flags %#x", flags)
		}
		e.Flags = backup.Flags(flags)
	}
	r.deltas(rows, inodeColumn)
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
	r.contents(rows, chunks)
	r.takeChunks(rows, chunks)
	if hasSelf == 1 {
		p.Self, all = &all[0], all[1:]
	}
	p.Entries = all
	return p
}

// names checks that all names are valid and in ascending order.
func (r *reader) names(rows []*backup.Entry, hasSelf bool) {
	m := r.memory
	m.shared, m.own = again(m.shared, len(rows)), again(m.own, len(rows))
	shared, own, total := m.shared, m.own, uint64(0)
	for i := range rows {
		shared[i] = r.uvarint()
	}
	before := uint64(0)
	for i := range rows {
		own[i] = r.uvarint()
		if shared[i] > before || own[i] > uint64(len(r.b)) {
			r.fail("name of %d+%d bytes after one of %d", shared[i], own[i], before)
			return
		}
		before = shared[i] + own[i]
		total += before
	}
	if total > MaxBytes {
		r.fail("%d bytes of names", total)
		return
	}
	m.names = slices.Grow(m.names[:0], int(total))
	arena, at := m.names, uint64(0)
	for i := range rows {
		last := arena[at:]
		at = uint64(len(arena))
		arena = append(append(arena, last[:shared[i]]...), r.bytes(own[i])...)
		if r.err != nil {
			return
		}
	}
	text, last := string(arena), ""
	for i, e := range rows {
		n := shared[i] + own[i]
		e.Name, text = text[:n], text[n:]
		if i == 0 && hasSelf {
			if e.Name != "" {
				r.fail("self has the name %q", e.Name)
			}
			continue
		}
		if err := backup.CheckName(e.Name); err != nil || e.Name <= last {
			r.fail("name %q after %q", e.Name, last)
			return
		}
		last = e.Name
	}
}

func (r *reader) deltas(rows []*backup.Entry, c column) {
	v := int64(0)
	for _, e := range rows {
		v += r.varint()
		if c.max != 0 && uint64(v) > c.max {
			r.fail("number %d, at most %d", v, c.max)
		}
		c.set(e, v)
	}
}

func (r *reader) attributes(rows []*backup.Entry) {
	for _, column := range idColumns {
		r.deltas(rows, column)
	}
	for _, e := range rows {
		e.Size = r.nonNegative()
	}
	for _, at := range timeColumns {
		r.deltas(rows, column{set: func(e *backup.Entry, v int64) { at(e).Sec = v }})
	}
	planes := r.bytes(uint64(len(timeColumns) * 4 * len(rows)))
	if r.err != nil {
		return
	}
	for _, at := range timeColumns {
		for i, e := range rows {
			n := len(rows)
			nsec := uint32(planes[i]) | uint32(planes[n+i])<<8 | uint32(planes[2*n+i])<<16 | uint32(planes[3*n+i])<<24
			if nsec > maxNsec {
				r.fail("%d nanoseconds", nsec)
			}
			at(e).Nsec = nsec
		}
		planes = planes[4*len(rows):]
	}
}

func (r *reader) special(e *backup.Entry) {
	switch e.Kind {
	case backup.Symlink:
		e.Target = string(r.bytes(uint64(r.count(maxTarget, 1))))
	case backup.CharDev, backup.BlockDev:
		e.Rdev = r.uvarint()
	case backup.File, backup.Directory, backup.FIFO, backup.Socket:
	}
}

func (r *reader) xattrs(e *backup.Entry) {
	n := r.uvarint()
	if n%2 == 0 {
		e.Xattrs = r.xattrList(n / 2)
		return
	}
	c := &e.XattrChunk
	if c.Length = r.nonNegative(); n != xattrsInChunk || c.Length == 0 {
		r.fail("xattrs: %d, in a chunk of %d bytes", n, c.Length)
	}
	c.Span = c.Length
}

// contents reads the last column: the refs of files, without their chunk ids. There are at most as
// many refs as ids.
func (r *reader) contents(rows []*backup.Entry, ids chunkIDs) {
	if r.err != nil {
		return
	}
	r.memory.refs = again(r.memory.refs, int(ids.count()))
	refs := r.memory.refs
	for _, e := range rows {
		if e.Kind != backup.File {
			continue
		}
		n := r.uvarint()
		whole := n == wholeFile
		if n > wholeFile {
			n--
		}
		if n > uint64(len(refs)) {
			r.fail("%d refs more than chunk ids", n-uint64(len(refs)))
		}
		if n == 0 || r.err != nil {
			continue
		}
		e.Content.Refs, refs = refs[:n:n], refs[n:]
		if whole {
			e.Content.Refs[0] = backup.Ref{Length: e.Size, Span: e.Size}
			continue
		}
		e.Content.Depth = int(r.byte())
		r.refNumbers(&e.Content)
	}
	r.end()
}
