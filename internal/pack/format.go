package pack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// Limits. MaxBytes leaves a pack just below TargetBytes room for one more frame of the largest
// size, and for its table.
const (
	TargetBytes      = 32 << 20  // size at which a pack is put
	MaxBytes         = 48 << 20  // of a whole object
	MaxRawBytes      = 1 << 30   // sum of the plaintext of a pack's frames
	MaxChunks        = 16384     // of a pack
	MaxFrames        = MaxChunks //
	FrameTargetBytes = 512 << 10 // plaintext of a frame of many small chunks
	MaxFrameRawBytes = 8 << 20   // plaintext of any frame; a chunk's maximum fits
)

// ErrFull: the frame does not fit into this pack, but would fit into an empty one.
var ErrFull = errors.New("pack is full")

// A Kind is the type of content in a pack's frames.
type Kind uint8

// The kinds of pack. The numbers are part of the format. Only the frames of KindData hold chunks;
// the other kinds are signed, and package journal defines their content.
const (
	KindData    Kind = 1
	KindSegment Kind = 2 // a part of a snapshot's index segment
	KindCommit  Kind = 3 // a snapshot's commit record
	KindCatalog Kind = 4 // filers, shards, policies
	KindIndex   Kind = 5 // a part of a copy of a SQLite index
)

// String returns the kind's name, for messages.
func (k Kind) String() string {
	if k < KindData || k > KindIndex {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

var kindNames = [...]string{KindData: "data", KindSegment: "segment", KindCommit: "commit record", KindCatalog: "catalog", KindIndex: "index copy"}

// signed reports whether packs of the kind end with a signature.
func (k Kind) signed() bool { return k != KindData }

// signatureBytes is the length of the signature of a pack of that kind.
func signatureBytes(k Kind) int64 {
	if k.signed() {
		return seal.SignatureBytes
	}
	return 0
}

// A Chunk is the position of a chunk in the plaintext of its frame.
type Chunk struct {
	Hash           backup.ChunkHash
	Offset, Length uint32 // bytes
}

// A Frame is a run of chunks that were compressed together. The chunks lie one after another,
// without gaps, from 0 to RawLength.
type Frame struct {
	Codec     Codec
	RawLength int    // bytes of plaintext before compression
	Body      []byte // output of the codec
	Chunks    []Chunk
}

const (
	version = 1

	headerMagic      = "bctlpack"
	headerFixedBytes = 44 // up to the wrapped key
	crcBytes         = 4
	minHeaderBytes   = headerFixedBytes + 1 + crcBytes
	maxHeaderBytes   = headerFixedBytes + seal.MaxWrappedBytes + crcBytes

	trailerMagic = "bctlend"
	trailerBytes = 36

	maxBitmapBytes = MaxFrames / 8

	maxTableBytes = 1 << 20 // plaintext; the other limits keep it below 800 KiB

	// The last part of the additional data of each sealed section.
	sectionFrame = 'F'
	sectionTable = 'T'
	aadBytes     = headerFixedBytes + 1 + 4

	// tableCounter is the table's nonce counter. The counter of frame n is n.
	tableCounter = 1 << 63
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendHeader appends the header of a pack.
func appendHeader(dst []byte, kind Kind, repository backup.RepositoryID, id backup.PackID, wrapped []byte) []byte {
	start := len(dst)
	dst = append(dst, headerMagic...)
	dst = append(dst, version, byte(kind))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(wrapped)))
	dst = append(dst, repository[:]...)
	dst = append(dst, id[:]...)
	dst = append(dst, wrapped...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// A header is the parsed header of a pack.
type header struct {
	fixed      [headerFixedBytes]byte // as stored: part of all additional data
	kind       Kind
	repository backup.RepositoryID
	id         backup.PackID
	wrapped    []byte
}

// parseHeader parses a whole header, whose length the trailer states.
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
	h.repository = backup.RepositoryID(body[12:28])
	h.id = backup.PackID(body[28:headerFixedBytes])
	h.wrapped = body[headerFixedBytes:]
	wrappedBytes := int(binary.LittleEndian.Uint16(body[10:]))
	switch {
	case body[8] != version:
		return h, fmt.Errorf("header: version %d, the trailer has %d: %w", body[8], version, backup.ErrCorrupt)
	case h.kind < KindData || h.kind > KindIndex:
		return h, fmt.Errorf("header: unknown %s: %w", h.kind, backup.ErrCorrupt)
	case wrappedBytes != len(h.wrapped):
		return h, fmt.Errorf("header: wrapped key of %d bytes in %d: %w", wrappedBytes, len(h.wrapped), backup.ErrCorrupt)
	}
	return h, nil
}

// check returns an error unless the header is that of the expected pack, and the trailer has the
// sections that a pack of this kind has.
func (h *header) check(repository backup.RepositoryID, id backup.PackID, t trailer) error {
	if h.repository != repository {
		return fmt.Errorf("it belongs to repository %v, not %v: %w", h.repository, repository, backup.ErrCorrupt)
	}
	if h.id != id {
		return fmt.Errorf("it holds pack %s: %w", h.id, backup.ErrCorrupt)
	}
	if t.signatureBytes != signatureBytes(h.kind) || t.bitmapBytes != 0 && h.kind.signed() {
		return fmt.Errorf("%s pack with a signature of %d bytes and a bitmap of %d: %w", h.kind, t.signatureBytes, t.bitmapBytes, backup.ErrCorrupt)
	}
	return nil
}

// setAAD sets the additional data of one section. fixed is the beginning of the header.
func setAAD(aad *[aadBytes]byte, fixed []byte, section byte, frame uint32) {
	copy(aad[:], fixed[:headerFixedBytes])
	aad[headerFixedBytes] = section
	binary.LittleEndian.PutUint32(aad[headerFixedBytes+1:], frame)
}

// A trailer states the lengths of a pack's sections. It is not secret and need not be trusted,
// because the AEAD authenticates the sections that it locates.
type trailer struct {
	packBytes      int64
	headerBytes    int64
	tableBytes     int64 // sealed
	bitmapBytes    int64 // 0: all frames are present
	signatureBytes int64 // 0: the pack is not signed
}

// The sections at the end of a pack: their offsets from its beginning.
func (t trailer) signatureOffset() int64 { return t.packBytes - trailerBytes - t.signatureBytes }
func (t trailer) bitmapOffset() int64    { return t.signatureOffset() - t.bitmapBytes }
func (t trailer) tableOffset() int64     { return t.bitmapOffset() - t.tableBytes }

func appendTrailer(dst []byte, t trailer) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(t.packBytes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.headerBytes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.tableBytes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.bitmapBytes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.signatureBytes))
	dst = append(dst, trailerMagic...)
	dst = append(dst, version)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parseTrailer parses the trailer at the end of tail, the last bytes of a pack.
func parseTrailer(tail []byte) (t trailer, err error) {
	if len(tail) < trailerBytes {
		return t, fmt.Errorf("trailer: %d bytes are too short for a pack: %w", len(tail), backup.ErrCorrupt)
	}
	b := tail[len(tail)-trailerBytes:]
	if string(b[24:31]) != trailerMagic {
		return t, fmt.Errorf("trailer: missing, so the object does not end with a complete pack: %w", backup.ErrCorrupt)
	}
	if crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return t, fmt.Errorf("trailer: checksum does not match: %w", backup.ErrCorrupt)
	}
	if b[31] != version {
		return t, fmt.Errorf("pack version %d is not known to this version of bctl: %w", b[31], backup.ErrInvalid)
	}
	packBytes := binary.LittleEndian.Uint64(b)
	if packBytes > MaxBytes {
		return t, fmt.Errorf("trailer: pack of %d bytes, at most %d are allowed: %w", packBytes, MaxBytes, backup.ErrCorrupt)
	}
	t = trailer{
		packBytes:      int64(packBytes),
		headerBytes:    int64(binary.LittleEndian.Uint32(b[8:])),
		tableBytes:     int64(binary.LittleEndian.Uint32(b[12:])),
		bitmapBytes:    int64(binary.LittleEndian.Uint32(b[16:])),
		signatureBytes: int64(binary.LittleEndian.Uint32(b[20:])),
	}
	switch {
	case t.headerBytes < minHeaderBytes || t.headerBytes > maxHeaderBytes:
		return t, fmt.Errorf("trailer: header of %d bytes: %w", t.headerBytes, backup.ErrCorrupt)
	case t.tableBytes < seal.OverheadBytes || t.tableBytes > maxTableBytes+seal.OverheadBytes:
		return t, fmt.Errorf("trailer: table of %d bytes: %w", t.tableBytes, backup.ErrCorrupt)
	case t.bitmapBytes > maxBitmapBytes || t.signatureBytes != 0 && t.signatureBytes != seal.SignatureBytes:
		return t, fmt.Errorf("trailer: bitmap of %d bytes, signature of %d: %w", t.bitmapBytes, t.signatureBytes, backup.ErrCorrupt)
	case t.tableOffset() < t.headerBytes:
		return t, fmt.Errorf("trailer: header and table do not fit into %d bytes: %w", t.packBytes, backup.ErrCorrupt)
	}
	return t, nil
}
