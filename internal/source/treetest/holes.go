//go:build linux

package treetest

import "golang.org/x/sys/unix"

// holeBytes is the granularity at which holes are compared: the block size of most file systems.
const holeBytes = 4 << 10

type extent struct{ start, end int64 }

// extents returns the ranges of a file that have data. It returns one extent if the file has no
// holes or if the file system does not report them.
func extents(fd int, st unix.Stat_t) (data []extent, err error) {
	whole := []extent{{0, st.Size}}
	if st.Blocks*512 >= st.Size {
		return whole, nil
	}
	for offset := int64(0); offset < st.Size; {
		start, err := unix.Seek(fd, offset, unix.SEEK_DATA)
		switch err {
		case nil:
		case unix.ENXIO:
			return data, nil
		case unix.EINVAL, unix.EOPNOTSUPP:
			return whole, nil
		default:
			return nil, err
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		data = append(data, extent{start, end})
		offset = end
	}
	return data, nil
}

// holes reports data of the copy in a hole of the original. It ignores blocks that are partly data
// on either side.
func (c *comparison) holes(path string, fds [2]int, stats [2]unix.Stat_t) {
	original, err := extents(fds[0], stats[0])
	if err != nil {
		c.differ(path, "holes (original): %v", err)
		return
	}
	if len(original) == 1 && original[0] == (extent{0, stats[0].Size}) {
		return
	}
	data, err := extents(fds[1], stats[1])
	if err != nil {
		c.differ(path, "holes (copy): %v", err)
		return
	}
	for _, e := range data {
		at := (e.start + holeBytes - 1) / holeBytes * holeBytes
		end := e.end / holeBytes * holeBytes
		for len(original) > 0 && roundUp(original[0].end) <= at {
			original = original[1:]
		}
		for _, o := range original {
			if start := o.start / holeBytes * holeBytes; start > at {
				break
			}
			at = max(at, roundUp(o.end))
		}
		if at < end {
			c.differ(path, "data where there was a hole, from byte %d on", at)
			return
		}
	}
}

func roundUp(n int64) int64 { return (n + holeBytes - 1) / holeBytes * holeBytes }
