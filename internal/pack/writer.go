package pack

import (
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// A Writer builds one pack in memory. It is not safe for concurrent use.
type Writer struct {
	key         *seal.DataKey
	kind        Kind
	repository  backup.RepositoryID
	buf         []byte // header and sealed frames so far
	headerBytes int
	table       table
	frameBytes  []uint32 // sealed lengths
	rawBytes    int
	aad         [aadBytes]byte
	finished    bool
}

// NewWriter starts a pack of the given kind, repository and id, under a fresh key that is wrapped
// to sealer's recipients. buf is storage to reuse, and may be nil; with a capacity of MaxBytes it
// is never reallocated.
func NewWriter(kind Kind, repository backup.RepositoryID, id backup.PackID, sealer *seal.Sealer, buf []byte) (*Writer, error) {
	if kind < KindData || kind > KindIndex {
		return nil, fmt.Errorf("new pack of unknown %s: %w", kind, backup.ErrInvalid)
	}
	key, wrapped, err := sealer.NewDataKey()
	if err != nil {
		return nil, fmt.Errorf("new pack: %w", err)
	}
	buf = appendHeader(buf[:0], kind, repository, id, wrapped)
	return &Writer{key: key, kind: kind, repository: repository, buf: buf, headerBytes: len(buf)}, nil
}

// Size returns the length that the pack would have if it were finished now, or up to two bytes
// more.
func (w *Writer) Size() int {
	return len(w.buf) + w.table.size() + seal.OverheadBytes + int(signatureBytes(w.kind)) + trailerBytes
}

// Chunks returns the number of chunks in the pack so far.
func (w *Writer) Chunks() int { return w.table.chunks }

// FrameBytes returns the stored length of each frame. With these lengths the pack can be thinned
// without its key. The Writer owns the slice.
func (w *Writer) FrameBytes() []uint32 { return w.frameBytes }

// Fits reports whether Add would accept f. A valid frame always fits into an empty pack.
func (w *Writer) Fits(f Frame) bool {
	row := 1 + 3*4 + len(f.Chunks)*(minChunkRowBytes+3) // at most
	return w.table.frames < MaxFrames &&
		w.table.chunks+len(f.Chunks) <= MaxChunks &&
		w.rawBytes+f.RawLength <= MaxRawBytes &&
		w.Size()+len(f.Body)+seal.OverheadBytes+row <= MaxBytes
}

// Add seals f.Body into the pack and returns the number of the frame. The caller may reuse f's
// storage when Add returns. Errors: ErrFull if another pack would accept the frame;
// backup.ErrInvalid if none would.
func (w *Writer) Add(f Frame) (frame uint32, err error) {
	if w.finished {
		return 0, fmt.Errorf("frame for a finished pack: %w", backup.ErrInvalid)
	}
	if err := f.check(w.kind); err != nil {
		return 0, err
	}
	if !w.Fits(f) {
		return 0, ErrFull
	}
	frame = uint32(w.table.frames)
	setAAD(&w.aad, w.buf, sectionFrame, frame)
	w.buf = slices.Grow(w.buf, len(f.Body)+seal.OverheadBytes)
	w.buf = w.key.Seal(w.buf, f.Body, uint64(frame), w.aad[:])
	w.table.add(&f)
	w.frameBytes = append(w.frameBytes, uint32(len(f.Body)+seal.OverheadBytes))
	w.rawBytes += f.RawLength
	return frame, nil
}

// Finish seals the table and returns the whole pack, in buf's storage or in its reallocation. The
// Writer accepts no more frames. For a pack without frames, or of a kind that must be signed, the
// error is backup.ErrInvalid.
func (w *Writer) Finish() ([]byte, error) {
	if w.kind.signed() {
		return nil, fmt.Errorf("finish a %s without a signature: %w", w.kind, backup.ErrInvalid)
	}
	return w.finish(func([]byte) []byte { return nil })
}

// FinishSigned is Finish for the other kinds: it signs the pack as the object with the given name.
// OpenSigned reads it.
func (w *Writer) FinishSigned(key seal.SigningKey, name string) ([]byte, error) {
	if !w.kind.signed() {
		return nil, fmt.Errorf("sign a %s pack: %w", w.kind, backup.ErrInvalid)
	}
	return w.finish(func(data []byte) []byte { return key.Sign(w.repository, name, data) })
}

func (w *Writer) finish(sign func(data []byte) []byte) ([]byte, error) {
	if w.finished || w.table.frames == 0 {
		return nil, fmt.Errorf("finish a pack of %d frames (finished before: %t): %w", w.table.frames, w.finished, backup.ErrInvalid)
	}
	w.finished = true
	tableOffset := len(w.buf)
	w.buf = slices.Grow(w.buf, w.Size()-len(w.buf))
	// The table is sealed in place.
	plaintext := w.table.appendTo(w.buf)[tableOffset:]
	setAAD(&w.aad, w.buf, sectionTable, 0)
	w.buf = w.key.Seal(w.buf, plaintext, tableCounter, w.aad[:])
	tableBytes := len(w.buf) - tableOffset
	signature := sign(w.buf)
	w.buf = append(w.buf, signature...)
	w.buf = appendTrailer(w.buf, trailer{
		packBytes:      int64(len(w.buf) + trailerBytes),
		headerBytes:    int64(w.headerBytes),
		tableBytes:     int64(tableBytes),
		signatureBytes: int64(len(signature)),
	})
	return w.buf, nil
}

// check returns an error unless a reader would accept f.
func (f *Frame) check(kind Kind) error {
	if f.RawLength <= 0 || f.RawLength > MaxFrameRawBytes || len(f.Chunks) > MaxChunks {
		return fmt.Errorf("frame of %d bytes and %d chunks: %w", f.RawLength, len(f.Chunks), backup.ErrInvalid)
	}
	info := FrameInfo{SealedLength: int64(len(f.Body) + seal.OverheadBytes), RawLength: f.RawLength, Codec: f.Codec}
	if !plausible(&info, len(f.Chunks), kind) {
		return fmt.Errorf("%s frame of %d bytes in %d, with %d chunks: %w", f.Codec, f.RawLength, len(f.Body), len(f.Chunks), backup.ErrInvalid)
	}
	offset := uint64(0)
	for i := range f.Chunks {
		if uint64(f.Chunks[i].Offset) != offset || f.Chunks[i].Length == 0 {
			return fmt.Errorf("chunk %d of a frame is at %d with %d bytes, the one before ended at %d: %w", i, f.Chunks[i].Offset, f.Chunks[i].Length, offset, backup.ErrInvalid)
		}
		offset += uint64(f.Chunks[i].Length)
	}
	if len(f.Chunks) > 0 && offset != uint64(f.RawLength) {
		return fmt.Errorf("chunks of %d bytes in a frame of %d: %w", offset, f.RawLength, backup.ErrInvalid)
	}
	return nil
}
