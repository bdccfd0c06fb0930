package pack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// Limits. MaxBytes leaves a pack that is just under TargetBytes room for one
// more frame of the largest size, and for its table.
const (
	TargetBytes      = 32 << 20  // when a pack is large enough to be put
	MaxBytes         = 48 << 20  // of a whole object
	MaxRawBytes      = 1 << 30   // sum of the plaintext of a pack's frames
	MaxChunks        = 16384     // of a pack
	MaxFrames        = MaxChunks //
	FrameTargetBytes = 512 << 10 // plaintext of a frame of many small chunks
	MaxFrameRawBytes = 8 << 20   // plaintext of any frame; a chunk's maximum fits
)

// ErrFull: the frame does not go into this pack any more, but would go into
// an empty one.
var ErrFull = errors.New("pack is full")

// A Kind says what a pack's frames hold.
type Kind uint8

// The kinds of pack. The numbers are format.
const (
	KindData    Kind = 1 // chunks
	KindSegment Kind = 2 // a part of a snapshot's index segment; its frames need not have chunks
)

// String returns the kind's name, for messages.
func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindSegment:
		return "segment"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// A Chunk is the place of a chunk in the plaintext of its frame.
type Chunk struct {
	Hash           backup.ChunkHash
	Offset, Length uint32 // bytes
}

// A Frame is chunks that were compressed together. The chunks lie in it one
// after the other, without a gap, from 0 to RawLength.
type Frame struct {
	Codec     Codec
	RawLength int    // bytes of plaintext before compression
	Body      []byte // what the codec made of it
	Chunks    []Chunk
}

const (
	version = 1

	headerMagic      = "bctlpack"
	headerFixedBytes = 28 // up to the wrapped key
	crcBytes         = 4
	minHeaderBytes   = headerFixedBytes + 1 + crcBytes
	maxHeaderBytes   = headerFixedBytes + seal.MaxWrappedBytes + crcBytes

	trailerMagic = "bctlend"
	trailerBytes = 28

	maxTableBytes = 1 << 20 // plaintext; the other limits keep it below 800 KiB

	// What the additional data of everything sealed in a pack ends with.
	sectionFrame = 'F'
	sectionTable = 'T'
	aadBytes     = headerFixedBytes + 1 + 4

	// tableCounter is the table's nonce counter; that of frame n is n.
	tableCounter = 1 << 63
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendHeader appends the header of a pack.
func appendHeader(dst []byte, kind Kind, id backup.PackID, wrapped []byte) []byte {
	start := len(dst)
	dst = append(dst, headerMagic...)
	dst = append(dst, version, byte(kind))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(wrapped)))
	dst = append(dst, id[:]...)
	dst = append(dst, wrapped...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// A header is a parsed header.
type header struct {
	fixed   [headerFixedBytes]byte // as stored: part of all additional data
	kind    Kind
	id      backup.PackID
	wrapped []byte
}

// parseHeader parses a whole header, whose length the trailer says.
func parseHeader(data []byte) (h header, err error) {
	if len(data) < minHeaderBytes || string(data[:8]) != headerMagic {
		return h, fmt.Errorf("header: not a pack: %w", backup.ErrCorrupt)
	}
	body, sum := data[:len(data)-crcBytes], data[len(data)-crcBytes:]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return h, fmt.Errorf("header: checksum does not match: %w", backup.ErrCorrupt)
	}
	h.fixed = [headerFixedBytes]byte(body)
	h.kind = Kind(body[9])
	h.id = backup.PackID(body[12:headerFixedBytes])
	h.wrapped = body[headerFixedBytes:]
	wrappedBytes := int(binary.LittleEndian.Uint16(body[10:]))
	switch {
	case body[8] != version:
		return h, fmt.Errorf("header: version %d, the trailer has %d: %w", body[8], version, backup.ErrCorrupt)
	case h.kind != KindData && h.kind != KindSegment:
		return h, fmt.Errorf("header: unknown %s: %w", h.kind, backup.ErrCorrupt)
	case wrappedBytes != len(h.wrapped):
		return h, fmt.Errorf("header: wrapped key of %d bytes in %d: %w", wrappedBytes, len(h.wrapped), backup.ErrCorrupt)
	}
	return h, nil
}

// setAAD fills in the additional data of one section; fixed is the header's beginning.
func setAAD(aad *[aadBytes]byte, fixed []byte, section byte, frame uint32) {
	copy(aad[:], fixed[:headerFixedBytes])
	aad[headerFixedBytes] = section
	binary.LittleEndian.PutUint32(aad[headerFixedBytes+1:], frame)
}

// A trailer says how the object is divided. Nothing in it is secret, and the
// AEAD of what it points at decides whether it is true.
type trailer struct {
	objectBytes int64
	headerBytes int64
	tableBytes  int64 // sealed
}

func (t trailer) tableOffset() int64 { return t.objectBytes - trailerBytes - t.tableBytes }

func appendTrailer(dst []byte, t trailer) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(t.objectBytes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.headerBytes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.tableBytes))
	dst = append(dst, trailerMagic...)
	dst = append(dst, version)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parseTrailer parses the trailer at the end of tail, the last bytes of an object.
func parseTrailer(tail []byte) (t trailer, err error) {
	if len(tail) < trailerBytes {
		return t, fmt.Errorf("trailer: %d bytes are no pack: %w", len(tail), backup.ErrCorrupt)
	}
	b := tail[len(tail)-trailerBytes:]
	if string(b[16:23]) != trailerMagic {
		return t, fmt.Errorf("trailer: not there, so the object is no whole pack: %w", backup.ErrCorrupt)
	}
	if crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return t, fmt.Errorf("trailer: checksum does not match: %w", backup.ErrCorrupt)
	}
	if b[23] != version {
		return t, fmt.Errorf("pack version %d is not known to this version of bctl: %w", b[23], backup.ErrInvalid)
	}
	objectBytes := binary.LittleEndian.Uint64(b)
	if objectBytes > MaxBytes {
		return t, fmt.Errorf("trailer: object of %d bytes, at most %d are allowed: %w", objectBytes, MaxBytes, backup.ErrCorrupt)
	}
	t = trailer{
		objectBytes: int64(objectBytes),
		headerBytes: int64(binary.LittleEndian.Uint32(b[8:])),
		tableBytes:  int64(binary.LittleEndian.Uint32(b[12:])),
	}
	switch {
	case t.headerBytes < minHeaderBytes || t.headerBytes > maxHeaderBytes:
		return t, fmt.Errorf("trailer: header of %d bytes: %w", t.headerBytes, backup.ErrCorrupt)
	case t.tableBytes < seal.OverheadBytes || t.tableBytes > maxTableBytes+seal.OverheadBytes:
		return t, fmt.Errorf("trailer: table of %d bytes: %w", t.tableBytes, backup.ErrCorrupt)
	case t.tableOffset() < t.headerBytes:
		return t, fmt.Errorf("trailer: header and table do not fit into %d bytes: %w", t.objectBytes, backup.ErrCorrupt)
	}
	return t, nil
}
