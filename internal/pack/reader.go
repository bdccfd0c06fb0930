package pack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/seal"
)

// A Ranger is the part of store.Store that Open needs, with the store's contract.
type Ranger interface {
	// GetRange appends length bytes of the object, starting at offset, to dst.
	GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error)
	// Stat returns the object's size in bytes.
	Stat(ctx context.Context, name string) (int64, error)
}

// tailBytes is the length of the end of an object that Open reads: the trailer, and the table of a
// pack of up to about 1,800 chunks.
const tailBytes = 64 << 10

// A Place locates a pack. Most packs are objects of their own, but an object may hold several, one
// after another.
type Place struct {
	Object string // its name in the store
	Offset int64  // bytes from the object's beginning
	Bytes  int64  // length of the pack; 0: up to the object's end
}

// A Reader holds a pack's table and key. It is safe for concurrent use.
type Reader struct {
	header header
	key    *seal.DataKey
	frames []FrameInfo
	chunks []ChunkInfo
}

// Open reads the table of the repository's pack id at the given place. It makes two requests. It
// makes three if the object is shorter than 64 KiB, or if the table is longer. Errors: those of r,
// and those in the package documentation.
func Open(ctx context.Context, r Ranger, at Place, repository backup.RepositoryID, id backup.PackID, opener *seal.Opener) (*Reader, error) {
	reader, err := open(ctx, r, at, repository, id, opener)
	if err != nil {
		return nil, fmt.Errorf("open pack %s: %w", at.Object, err)
	}
	return reader, nil
}

func open(ctx context.Context, r Ranger, at Place, repository backup.RepositoryID, id backup.PackID, opener *seal.Opener) (*Reader, error) {
	tail, err := readTail(ctx, r, at)
	if err != nil {
		return nil, err
	}
	t, err := parseTrailer(tail)
	if err != nil {
		return nil, err
	}
	return openTail(ctx, r, at, tail, t, repository, &id, opener)
}

// openTail is open for a pack whose last bytes, and the trailer in them, are known. An id of nil
// stands for any.
func openTail(ctx context.Context, r Ranger, at Place, tail []byte, t trailer, repository backup.RepositoryID, id *backup.PackID, opener *seal.Opener) (*Reader, error) {
	tailOffset := t.packBytes - int64(len(tail))
	if at.Bytes != 0 && t.packBytes != at.Bytes || tailOffset < 0 || tailOffset > 0 && len(tail) < tailBytes {
		return nil, fmt.Errorf("the pack has %d bytes, but its trailer gives %d: %w", max(at.Bytes, int64(len(tail))), t.packBytes, backup.ErrCorrupt)
	}
	part := func(offset, length int64) ([]byte, error) {
		if offset >= tailOffset {
			return tail[offset-tailOffset:][:length], nil
		}
		data, err := r.GetRange(ctx, nil, at.Object, at.Offset+offset, length)
		if err == nil && int64(len(data)) != length {
			err = fmt.Errorf("%d bytes at %d instead of %d: %w", len(data), offset, length, backup.ErrCorrupt)
		}
		return data, err
	}
	headerData, err := part(0, t.headerBytes)
	if err != nil {
		return nil, err
	}
	table, err := part(t.tableOffset(), t.tableBytes+t.bitmapBytes)
	if err != nil {
		return nil, err
	}
	return newReader(headerData, table, t, repository, id, nil, opener)
}

// ReadWrapped returns the wrapped key in the header of a pack, whose length is at least
// at.Bytes. It needs no key, and makes one request. If id is not zero, the pack must have it.
// Errors: those of r, and backup.ErrCorrupt if there is no header of a pack of the repository.
func ReadWrapped(ctx context.Context, r Ranger, at Place, repository backup.RepositoryID, id backup.PackID) ([]byte, error) {
	data, err := r.GetRange(ctx, nil, at.Object, at.Offset, min(at.Bytes, maxHeaderBytes))
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(headerOf(data))
	if err == nil && (h.repository != repository || id != backup.PackID{} && h.id != id) {
		err = fmt.Errorf("pack %s of repository %v is there: %w", h.id, h.repository, backup.ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", at.Object, err)
	}
	return h.wrapped, nil
}

// headerOf returns the part of data that is the header, if data begins with one.
func headerOf(data []byte) []byte {
	if len(data) >= minHeaderBytes {
		data = data[:min(len(data), headerFixedBytes+int(binary.LittleEndian.Uint16(data[10:]))+crcBytes)]
	}
	return data
}

// ReadID returns the id in the header of the first pack of an object of sizeBytes. It needs no key,
// and makes one request. Errors: those of r, and backup.ErrCorrupt if the object does not begin
// with the header of a data pack.
func ReadID(ctx context.Context, r Ranger, object string, sizeBytes int64) (backup.PackID, error) {
	data, err := r.GetRange(ctx, nil, object, 0, min(sizeBytes, maxHeaderBytes))
	if err != nil {
		return backup.PackID{}, err
	}
	h, err := parseHeader(headerOf(data))
	if err == nil && h.kind != KindData {
		err = fmt.Errorf("%s: %w", h.kind, backup.ErrCorrupt)
	}
	if err != nil {
		return backup.PackID{}, fmt.Errorf("%s: %w", object, err)
	}
	return h.id, nil
}

// readTail returns the last tailBytes of the pack, or all of a shorter pack.
func readTail(ctx context.Context, r Ranger, at Place) ([]byte, error) {
	if at.Bytes != 0 {
		length := min(at.Bytes, tailBytes)
		return r.GetRange(ctx, nil, at.Object, at.Offset+at.Bytes-length, length)
	}
	tail, err := r.GetRange(ctx, nil, at.Object, -tailBytes, tailBytes)
	if !errors.Is(err, backup.ErrCorrupt) {
		return tail, err
	}
	// The object is shorter than tailBytes.
	size, statErr := r.Stat(ctx, at.Object)
	if statErr != nil {
		return nil, statErr
	}
	if size >= tailBytes {
		return nil, err
	}
	return r.GetRange(ctx, nil, at.Object, 0, size)
}

// OpenBytes is Open for a pack that is in memory.
func OpenBytes(data []byte, repository backup.RepositoryID, id backup.PackID, opener *seal.Opener) (*Reader, error) {
	return openBytes(data, repository, id, seal.KeyID(id), opener)
}

func openBytes(data []byte, repository backup.RepositoryID, id backup.PackID, key seal.KeyID, opener *seal.Opener) (*Reader, error) {
	t, err := wholeTrailer(data)
	if err != nil {
		return nil, fmt.Errorf("open pack %s: %w", id, err)
	}
	r, err := newReader(data[:t.headerBytes], data[t.tableOffset():][:t.tableBytes+t.bitmapBytes], t, repository, &id, &key, opener)
	if err != nil {
		return nil, fmt.Errorf("open pack %s: %w", id, err)
	}
	return r, nil
}

// wholeTrailer parses the trailer of the pack that data consists of.
func wholeTrailer(data []byte) (trailer, error) {
	t, err := parseTrailer(data)
	if err == nil && t.packBytes != int64(len(data)) {
		err = fmt.Errorf("the pack has %d bytes, but its trailer gives %d: %w", len(data), t.packBytes, backup.ErrCorrupt)
	}
	return t, err
}

// newReader opens the table, which the bitmap follows. An id of nil stands for any. keyID is that
// of the data key, nil for a pack of data.
func newReader(headerData, table []byte, t trailer, repository backup.RepositoryID, id *backup.PackID, keyID *seal.KeyID, opener *seal.Opener) (*Reader, error) {
	h, err := parseHeader(headerData)
	if err != nil {
		return nil, err
	}
	if id == nil {
		id = &h.id
	}
	if err := h.check(repository, *id, t); err != nil {
		return nil, err
	}
	if keyID == nil {
		keyID = (*seal.KeyID)(&h.id)
	}
	key, err := opener.UnwrapPack(*keyID, h.wrapped)
	if err != nil {
		return nil, err
	}
	h.wrapped = nil // the caller owns these bytes, and they are not needed again
	var aad [aadBytes]byte
	setAAD(&aad, h.fixed[:], sectionTable, 0)
	plaintext, err := key.Open(nil, table[:t.tableBytes], tableCounter, aad[:])
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	frames, chunks, err := parseTable(plaintext, h.kind, bitmap(table[t.tableBytes:]), t.headerBytes, t.tableOffset())
	if err != nil {
		return nil, err
	}
	return &Reader{header: h, key: key, frames: frames, chunks: chunks}, nil
}

// Kind returns the type of content in the frames.
func (r *Reader) Kind() Kind { return r.header.kind }

// Frames returns all frames that the pack ever had, in the order of their offsets. The Reader owns
// the slice; the caller must not change it.
func (r *Reader) Frames() []FrameInfo { return r.frames }

// Chunks returns the chunks of all frames, in order. The Reader owns the slice; the caller must not
// change it.
func (r *Reader) Chunks() []ChunkInfo { return r.chunks }

// DecodeFrame appends the plaintext of frame n to dst. sealed is the frame as stored, SealedLength
// bytes from Offset, and is not changed. If verify (a Hasher of the repository's dedup key) is not
// nil, each chunk is checked against its hash.
func (r *Reader) DecodeFrame(dst []byte, n uint32, sealed []byte, verify *chunk.Hasher) ([]byte, error) {
	start := len(dst)
	dst, err := r.decode(dst, n, sealed)
	if err == nil && verify != nil {
		err = r.verify(n, dst[start:], verify)
	}
	if err != nil {
		return nil, fmt.Errorf("pack %s, frame %d: %w", r.header.id, n, err)
	}
	return dst, nil
}

func (r *Reader) decode(dst []byte, n uint32, sealed []byte) ([]byte, error) {
	if int64(n) >= int64(len(r.frames)) {
		return nil, fmt.Errorf("the pack has %d frames: %w", len(r.frames), backup.ErrInvalid)
	}
	f := &r.frames[n]
	if f.Removed {
		return nil, fmt.Errorf("the pack was thinned and no longer has it: %w", backup.ErrNotFound)
	}
	if int64(len(sealed)) != f.SealedLength {
		return nil, fmt.Errorf("%d bytes instead of %d: %w", len(sealed), f.SealedLength, backup.ErrCorrupt)
	}
	var aad [aadBytes]byte
	setAAD(&aad, r.header.fixed[:], sectionFrame, n)
	dst = slices.Grow(dst, f.RawLength)
	if f.Codec == CodecNone {
		return r.key.Open(dst, sealed, uint64(n), aad[:])
	}
	scratch := bodies.Get().(*[]byte)
	defer bodies.Put(scratch)
	*scratch = slices.Grow((*scratch)[:0], len(sealed))
	body, err := r.key.Open(*scratch, sealed, uint64(n), aad[:])
	if err != nil {
		return nil, err
	}
	return decompress(dst, body, f.Codec, f.RawLength)
}

// bodies holds *[]byte: storage for a frame between opening and decompressing.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

func (r *Reader) verify(n uint32, raw []byte, hasher *chunk.Hasher) error {
	for i, c := range r.frames[n].Chunks {
		if hasher.Sum(raw[c.Offset:][:c.Length]) != c.Hash {
			return fmt.Errorf("chunk %d of %d does not have its hash: %w", i, len(r.frames[n].Chunks), backup.ErrCorrupt)
		}
	}
	return nil
}
