package listing

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// Data that is too large for a page is in separate chunks: the refs of large files (list chunks),
// and large xattrs.

// InlineRefs is how many refs of a file a page holds; more go into list chunks of ListRefs refs, so
// that the ids of a list chunk fit into a message.
const (
	InlineRefs = 4
	ListRefs   = 1 << 14
)

// EncodeRefs appends a list chunk, which holds the refs of one level of a large file.
func EncodeRefs(dst []byte, c backup.Content) []byte {
	dst = append(dst, version, byte(c.Depth))
	dst = binary.AppendUvarint(dst, uint64(len(c.Refs)))
	dst = appendRefNumbers(dst, c)
	return appendChunks(dst, c.Refs)
}

// DecodeRefs decodes a list chunk. It accepts untrusted data: bytes that are not a list chunk are
// backup.ErrCorrupt.
func DecodeRefs(data []byte) (backup.Content, error) {
	r := reader{b: data}
	if r.byte() != version {
		r.fail("list chunk: unknown version")
	}
	c := backup.Content{Depth: int(r.byte())}
	// A ref takes at least two numbers and an id.
	if n := r.count(maxRefs, 2+len(backup.ChunkID{})); n > 0 {
		c.Refs = make([]backup.Ref, n)
	}
	r.refNumbers(&c)
	r.refChunks(c.Refs)
	r.end()
	if r.err != nil {
		return backup.Content{}, r.err
	}
	return c, nil
}

// EncodeXattrs appends the content of an XattrChunk.
func EncodeXattrs(dst []byte, xattrs []backup.Xattr) []byte {
	dst = append(dst, version)
	dst = binary.AppendUvarint(dst, uint64(len(xattrs)))
	return appendXattrList(dst, xattrs)
}

// DecodeXattrs decodes the content of an XattrChunk. It accepts untrusted data: bytes that are not
// such a chunk are backup.ErrCorrupt.
func DecodeXattrs(data []byte) ([]backup.Xattr, error) {
	r := reader{b: data}
	if r.byte() != version {
		r.fail("xattrs: unknown version")
	}
	xattrs := r.xattrList(r.uvarint())
	r.end()
	if r.err != nil {
		return nil, r.err
	}
	return xattrs, nil
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

func appendChunks(b []byte, refs []backup.Ref) []byte {
	for i := range refs {
		b = append(b, refs[i].Chunk[:]...)
	}
	return b
}

// refChunks sets the chunks of refs, in order.
func (r *reader) refChunks(refs []backup.Ref) {
	for i := range refs {
		copy(refs[i].Chunk[:], r.bytes(chunkIDBytes))
	}
}

const chunkIDBytes = uint64(len(backup.ChunkID{}))

// chunkIDs are the ids that follow the columns of a listing.
type chunkIDs struct {
	lists []byte // of list chunks
	rest  []byte // of data chunks, then of xattr chunks
}

func (c chunkIDs) count() uint64 { return uint64(len(c.lists)+len(c.rest)) / chunkIDBytes }

// chunkIDs reads the ids, which extend to the end of the listing.
func (r *reader) chunkIDs() (ids chunkIDs) {
	lists := r.count(maxRefs, int(chunkIDBytes))
	ids.lists = r.bytes(uint64(lists) * chunkIDBytes)
	if uint64(len(r.b))%chunkIDBytes != 0 {
		r.fail("%d bytes of chunk ids", len(r.b))
	}
	ids.rest = r.bytes(uint64(len(r.b)))
	return ids
}

// takeChunks sets the chunk ids of the refs and xattrs of rows.
func (r *reader) takeChunks(rows []*backup.Entry, ids chunkIDs) {
	if r.err != nil {
		return
	}
	lists, rest := reader{b: ids.lists}, reader{b: ids.rest}
	for _, e := range rows {
		if e.Content.Depth > 0 {
			lists.refChunks(e.Content.Refs)
		} else {
			rest.refChunks(e.Content.Refs)
		}
	}
	for _, e := range rows {
		if e.XattrChunk.Length > 0 {
			copy(e.XattrChunk.Chunk[:], rest.bytes(chunkIDBytes))
		}
	}
	lists.end()
	rest.end()
	if err := cmp.Or(lists.err, rest.err); err != nil {
		r.fail("chunk ids: %v", err)
	}
}

// Chunks are the chunks to which a listing refers.
type Chunks struct {
	Lists []backup.ChunkID // list chunks, which refer to further chunks
	Other []backup.ChunkID // of data and of xattrs
}

// ReadChunks returns the chunks to which a listing refers, without decoding the rest of it. It
// accepts untrusted data; errors wrap backup.ErrCorrupt.
func ReadChunks(data []byte) (Chunks, error) { return AppendChunks(Chunks{}, data) }

// AppendChunks is ReadChunks, and appends the chunks to those in c. After an error, it returns c as
// it was.
func AppendChunks(c Chunks, data []byte) (Chunks, error) {
	r := reader{b: data}
	if v := r.byte(); r.err == nil && v != version {
		r.fail("unknown version %d", v)
	}
	r.byte()
	r.bytes(r.uvarint())
	ids := r.chunkIDs()
	if r.err != nil {
		return c, r.err
	}
	return Chunks{appendIDs(c.Lists, ids.lists), appendIDs(c.Other, ids.rest)}, nil
}

func appendIDs(ids []backup.ChunkID, b []byte) []backup.ChunkID {
	ids = slices.Grow(ids, len(b)/int(chunkIDBytes))
	for id := range slices.Chunk(b, int(chunkIDBytes)) {
		ids = append(ids, backup.ChunkID(id))
	}
	return ids
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

// xattrList reads n attributes. All lists of a page share one limit.
func (r *reader) xattrList(n uint64) []backup.Xattr {
	// An attribute takes at least two lengths.
	if n > uint64(maxXattrs-r.xattrsRead) || 2*n > uint64(len(r.b)) {
		r.fail("%d xattrs", n)
	}
	if n == 0 || r.err != nil {
		return nil
	}
	r.xattrsRead += int(n)
	xattrs := make([]backup.Xattr, n)
	for i := range xattrs {
		xattrs[i].Name = string(r.bytes(r.uvarint()))
		xattrs[i].Value = append([]byte(nil), r.bytes(r.uvarint())...)
	}
	return xattrs
}
