package listing

import (
	"encoding/binary"

	"github.com/bctl/bctl/internal/backup"
)

// What pages have no room for is in chunks of its own: the refs of large files
// (list chunks), and large xattrs.

// EncodeRefs appends a list chunk: the refs of one level of a large file.
func EncodeRefs(dst []byte, c backup.Content) []byte {
	dst = append(dst, version, byte(c.Depth))
	dst = binary.AppendUvarint(dst, uint64(len(c.Refs)))
	dst = appendRefNumbers(dst, c)
	return appendChunks(dst, c.Refs)
}

// DecodeRefs decodes a list chunk. Any bytes are safe: what is not a list
// chunk is backup.ErrCorrupt.
func DecodeRefs(data []byte) (backup.Content, error) {
	r := reader{b: data}
	if r.byte() != version {
		r.fail("list chunk: unknown version")
	}
	c := backup.Content{Depth: int(r.byte())}
	// A ref takes two numbers and an id at least.
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

// DecodeXattrs decodes the content of an XattrChunk. Any bytes are safe: what
// is not such a chunk is backup.ErrCorrupt.
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

func (r *reader) refChunks(refs []backup.Ref) {
	for i := range refs {
		copy(refs[i].Chunk[:], r.bytes(uint64(len(backup.ChunkID{}))))
	}
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

// xattrList reads n attributes; all lists of a page share one limit.
func (r *reader) xattrList(n uint64) []backup.Xattr {
	// An attribute takes two lengths at least.
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
