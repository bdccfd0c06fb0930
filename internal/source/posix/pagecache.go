//go:build linux

package posix

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A guard leaves the page cache of one file as it was before the file was read, if RWF_DONTCACHE is
// not supported. Behind the reader, it drops pages that were not resident. On close, it drops those
// that the kernel has read ahead.
//
//	nothing resident     drop everything
//	everything resident  drop nothing
//	partly resident      drop the cold runs; mincore finds them, window by window, and
//	                     always further ahead than the kernel's readahead
//	query not permitted  drop nothing
//
// A small cold file costs one cachestat and one fadvise, a hot one only the former.
type guard struct {
	tree  *tree
	fd    int
	size  int64 // bytes, when the file was opened
	state guardState

	done    int64 // end offset of the last drop
	sampled int64 // partly: residency is known up to here
	cold    []run // partly: not dropped yet, in order
}

type guardState uint8

const (
	unasked guardState = iota
	hot                // drop nothing
	cold               // drop everything
	partly             // drop the runs in guard.cold
)

// A run is the pages from start to end, in bytes of the file.
type run struct{ start, end int64 }

const (
	dropBytes   = 1 << 20  // how far pages trail behind the reader before they are dropped
	windowBytes = 16 << 20 // of one mincore
	// More than the kernel reads ahead: two windows, of 16 MiB each on a device with a large one.
	// It contains at most 10,240 cold runs: 160 KiB.
	aheadBytes = 64 << 20
	// A file up to this size is read at once, and the default readahead stops at its end.
	smallBytes = 256 << 10
)

var pageBytes = int64(os.Getpagesize())

// before must be called before the bytes from offset on are read.
func (g *guard) before(offset, length int64) {
	if g.state == unasked {
		g.ask()
	}
	if g.state != partly {
		return
	}
	g.sampled = max(g.sampled, offset/pageBytes*pageBytes)
	for g.sampled < min(g.size, offset+length+aheadBytes) {
		if !g.sample(min(windowBytes, g.size-g.sampled)) {
			g.state = hot // pages of unknown residency stay
			return
		}
	}
}

// after must be called when the bytes up to end have been read. It drops each run from its
// beginning: pages are in folios of up to some MiB, which can be dropped only as a whole, and
// dropping costs nothing if no page is left.
func (g *guard) after(end int64) {
	if end-g.done < dropBytes {
		return
	}
	switch g.state {
	case cold:
		g.drop(run{0, end})
	case partly:
		for len(g.cold) > 0 && g.cold[0].start < end {
			r := g.cold[0]
			g.drop(run{r.start, min(r.end, end)})
			if end < r.end {
				break
			}
			g.cold = g.cold[1:]
		}
	}
	g.done = end
}

func (g *guard) close() {
	switch g.state {
	case cold:
		_ = unix.Fadvise(g.fd, 0, 0, unix.FADV_DONTNEED) // 0 bytes: to the end
	case partly:
		for _, r := range g.cold {
			g.drop(r)
		}
	}
	g.state, g.cold = hot, nil
}

// drop only gives advice to the kernel. A failure needs no action.
func (g *guard) drop(r run) {
	_ = unix.Fadvise(g.fd, r.start, r.end-r.start, unix.FADV_DONTNEED)
}

// ask determines how much of the file is resident.
func (g *guard) ask() {
	g.state = partly
	if !g.tree.noCachestat.Load() {
		whole := unix.CachestatRange{} // a length of 0: to the end
		var stat unix.Cachestat_t
		switch err := unix.Cachestat(uint(g.fd), &whole, &stat, 0); {
		case err == unix.ENOSYS:
			g.tree.noCachestat.Store(true)
		case err != nil: // EPERM: not permitted; EOPNOTSUPP: a file system without a cache
			g.state = hot
		case stat.Cache == 0:
			g.state = cold
		case int64(stat.Cache)*pageBytes >= g.size:
			g.state = hot
		}
	}
	if g.state == cold && g.size > smallBytes { // doubles the readahead
		_ = unix.Fadvise(g.fd, 0, 0, unix.FADV_SEQUENTIAL)
	}
}

// sample determines the residency of the next window of length bytes. It is false if that fails.
func (g *guard) sample(length int64) bool {
	pages := (length + pageBytes - 1) / pageBytes
	at, err := unix.MmapPtr(g.fd, g.sampled, nil, uintptr(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return false
	}
	defer func() { _ = unix.MunmapPtr(at, uintptr(length)) }() // fails only for unmapped memory
	resident := make([]byte, pages)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(at), uintptr(length), uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
		return false
	}
	for i, r := range resident {
		if r&1 != 0 {
			continue
		}
		start := g.sampled + int64(i)*pageBytes
		if n := len(g.cold); n > 0 && g.cold[n-1].end == start {
			g.cold[n-1].end += pageBytes
		} else {
			g.cold = append(g.cold, run{start, start + pageBytes})
		}
	}
	g.sampled += pages * pageBytes
	return true
}
