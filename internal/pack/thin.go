package pack

import (
	"fmt"
	"math/bits"

	"github.com/bctl/bctl/internal/backup"
)

// A bitmap records which frames of a thinned pack are present: bit i%8 of byte i/8, counted from
// the lowest, is frame i's. A pack with all of its frames has no bitmap, so that packs with the
// same frames always have the same bytes.
type bitmap []byte

func (b bitmap) has(frame int) bool { return len(b) == 0 || b[frame/8]&(1<<(frame%8)) != 0 }

// fits reports whether the bitmap can belong to a pack of the given number of frames.
func (b bitmap) fits(frames int) bool {
	if len(b) == 0 {
		return true
	}
	return len(b) == (frames+7)/8 && b.count() < frames && (frames%8 == 0 || b[len(b)-1]>>(frames%8) == 0)
}

// count returns the number of frames that are present.
func (b bitmap) count() (n int) {
	for _, eight := range b {
		n += bits.OnesCount8(eight)
	}
	return n
}

// Thin appends to dst a copy of a data pack without some of its frames. It needs no key: frames are
// copied sealed, and the table still lists all of them. frameBytes are the lengths that
// Writer.FrameBytes returned, for all frames that the pack ever had; they must be correct, because
// without the key nothing shows where a frame ends. keep is called for each frame that is present;
// a frame that was removed earlier stays removed. Errors: backup.ErrInvalid for a pack that cannot
// be thinned or a wrong number of frames; backup.ErrCorrupt for bytes that are not a pack, or if
// the lengths do not fill it.
func Thin(dst, pack []byte, frameBytes []uint32, keep func(frame int) bool) ([]byte, error) {
	t, err := wholeTrailer(pack)
	if err != nil {
		return dst, fmt.Errorf("thin: %w", err)
	}
	h, err := parseHeader(pack[:t.headerBytes])
	if err != nil {
		return dst, fmt.Errorf("thin: %w", err)
	}
	was, frames := bitmap(pack[t.bitmapOffset():][:t.bitmapBytes]), len(frameBytes)
	if h.kind != KindData || t.signatureBytes != 0 || frames == 0 || frames > MaxFrames || !was.fits(frames) {
		return dst, fmt.Errorf("thin a %s pack of %d frames: %w", h.kind, frames, backup.ErrInvalid)
	}
	start := len(dst)
	dst = append(dst, pack[:t.headerBytes]...)
	now := make(bitmap, (frames+7)/8)
	offset := t.headerBytes
	for i, length := range frameBytes {
		if !was.has(i) {
			continue
		}
		if int64(length) > t.tableOffset()-offset {
			return dst[:start], fmt.Errorf("thin: frame %d reaches beyond the frames: %w", i, backup.ErrCorrupt)
		}
		if keep(i) {
			now[i/8] |= 1 << (i % 8)
			dst = append(dst, pack[offset:][:length]...)
		}
		offset += int64(length)
	}
	if offset != t.tableOffset() {
		return dst[:start], fmt.Errorf("thin: frames end at %d, not at %d: %w", offset, t.tableOffset(), backup.ErrCorrupt)
	}
	if now.count() == frames {
		now = nil
	}
	dst = append(dst, pack[t.tableOffset():][:t.tableBytes]...)
	dst = append(dst, now...)
	return appendTrailer(dst, trailer{
		packBytes:   int64(len(dst) - start + trailerBytes),
		headerBytes: t.headerBytes, tableBytes: t.tableBytes, bitmapBytes: int64(len(now)),
	}), nil
}
