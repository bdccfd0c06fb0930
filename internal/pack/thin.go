package pack

import (
	"context"
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
// Writer.FrameBytes returned, for all frames that the pack ever had; they must be correct for the
// frames that are present, because without the key nothing shows where a frame ends. keep is called
// for each frame that is present; a frame that was removed earlier stays removed. Errors:
// backup.ErrInvalid for a pack that cannot be thinned or a wrong number of frames;
// backup.ErrCorrupt for bytes that are not a pack, or if the lengths do not fill it.
func Thin(dst, pack []byte, frameBytes []uint32, keep func(frame int) bool) ([]byte, error) {
	t, err := wholeTrailer(pack)
	if err != nil {
		return dst, fmt.Errorf("thin: %w", err)
	}
	s := thinning{t: t, frameBytes: frameBytes, keep: keep}
	out, err := s.appendTo(dst, func(dst []byte, offset, length int64) ([]byte, error) {
		return append(dst, pack[offset:][:length]...), nil
	})
	if err != nil {
		return dst, fmt.Errorf("thin: %w", err)
	}
	return out, nil
}

// ReadThin is Thin for the pack at the given place in a store, of which it reads only what it
// copies. at.Bytes must be set, and id is the pack's. Errors: also those of r, and
// backup.ErrCorrupt if another pack is there.
func ReadThin(ctx context.Context, dst []byte, r Ranger, at Place, id backup.PackID, frameBytes []uint32, keep func(frame int) bool) ([]byte, error) {
	tail, err := readTail(ctx, r, at)
	if err != nil {
		return dst, err
	}
	t, err := parseTrailer(tail)
	if err == nil && t.packBytes != at.Bytes {
		err = fmt.Errorf("%d bytes are there, the trailer says %d: %w", at.Bytes, t.packBytes, backup.ErrCorrupt)
	}
	if err != nil {
		return dst, fmt.Errorf("thin pack %s: %w", at.Object, err)
	}
	tailOffset := t.packBytes - int64(len(tail))
	s := thinning{t: t, id: id, frameBytes: frameBytes, keep: keep}
	out, err := s.appendTo(dst, func(dst []byte, offset, length int64) ([]byte, error) {
		if offset >= tailOffset {
			return append(dst, tail[offset-tailOffset:][:length]...), nil
		}
		return r.GetRange(ctx, dst, at.Object, at.Offset+offset, length)
	})
	if err != nil {
		return dst, fmt.Errorf("thin pack %s: %w", at.Object, err)
	}
	return out, nil
}

// A thinning copies a pack without some of its frames.
type thinning struct {
	t          trailer
	id         backup.PackID // zero: any
	frameBytes []uint32
	keep       func(frame int) bool
}

// appendTo appends the copy to dst. read appends length bytes of the pack at offset.
func (s *thinning) appendTo(dst []byte, read func(dst []byte, offset, length int64) ([]byte, error)) ([]byte, error) {
	t, start := s.t, len(dst)
	dst, err := read(dst, 0, t.headerBytes)
	if err != nil {
		return dst, err
	}
	h, err := parseHeader(dst[start:])
	if err != nil {
		return dst, err
	}
	if s.id != (backup.PackID{}) && h.id != s.id {
		return dst, fmt.Errorf("it holds pack %s: %w", h.id, backup.ErrCorrupt)
	}
	was := bitmap(nil)
	if t.bitmapBytes > 0 {
		if was, err = read(nil, t.bitmapOffset(), t.bitmapBytes); err != nil {
			return dst, err
		}
	}
	frames := len(s.frameBytes)
	if h.kind != KindData || t.signatureBytes != 0 || frames == 0 || frames > MaxFrames || !was.fits(frames) {
		return dst, fmt.Errorf("a %s pack of %d frames: %w", h.kind, frames, backup.ErrInvalid)
	}
	now, runs, err := s.choose(was)
	if err != nil {
		return dst, err
	}
	for _, r := range runs {
		if dst, err = read(dst, r.offset, r.length); err != nil {
			return dst, err
		}
	}
	if dst, err = read(dst, t.tableOffset(), t.tableBytes); err != nil {
		return dst, err
	}
	dst = append(dst, now...)
	return appendTrailer(dst, trailer{
		packBytes:   int64(len(dst) - start + trailerBytes),
		headerBytes: t.headerBytes, tableBytes: t.tableBytes, bitmapBytes: int64(len(now)),
	}), nil
}

// A run is adjacent bytes of a pack.
type run struct{ offset, length int64 }

// choose returns the bitmap of the copy, and the runs of frames that it has.
func (s *thinning) choose(was bitmap) (bitmap, []run, error) {
	frames := len(s.frameBytes)
	now := make(bitmap, (frames+7)/8)
	offset := s.t.headerBytes
	var runs []run
	for i, length := range s.frameBytes {
		if !was.has(i) {
			continue
		}
		if int64(length) > s.t.tableOffset()-offset {
			return nil, nil, fmt.Errorf("frame %d reaches beyond the frames: %w", i, backup.ErrCorrupt)
		}
		if s.keep(i) {
			now[i/8] |= 1 << (i % 8)
			if n := len(runs); n > 0 && runs[n-1].offset+runs[n-1].length == offset {
				runs[n-1].length += int64(length)
			} else {
				runs = append(runs, run{offset, int64(length)})
			}
		}
		offset += int64(length)
	}
	if offset != s.t.tableOffset() {
		return nil, nil, fmt.Errorf("frames end at %d, not at %d: %w", offset, s.t.tableOffset(), backup.ErrCorrupt)
	}
	if now.count() == frames {
		now = nil
	}
	return now, runs, nil
}
