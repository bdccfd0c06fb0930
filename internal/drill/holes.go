//go:build linux

package drill

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// holes finds out whether a file has the holes of its listing.
type holes struct {
	in   *os.File
	size int64

	from, to int64 // the first hole that is filled
}

// compare looks whether the file has a hole between two offsets. Where data is next to a hole, the
// file system's blocks round it: only the whole blocks in between count.
func (h *holes) compare(from, to int64) {
	var st unix.Stat_t
	if h.from < h.to || unix.Fstat(int(h.in.Fd()), &st) != nil {
		return
	}
	block := max(int64(st.Blksize), 1) //nolint:unconvert // an int32 on arm64
	begin, end := (from+block-1)/block*block, to/block*block
	if to == h.size {
		end = to
	}
	if from < 0 || begin < from || begin >= end {
		return
	}
	data, err := unix.Seek(int(h.in.Fd()), begin, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
		return
	}
	h.from, h.to = from, to
}

// filled returns the first hole that is not one any more; 0, 0 if there is none.
func (h *holes) filled() (from, to int64) { return h.from, h.to }
