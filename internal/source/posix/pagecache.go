//go:build linux

package posix

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A guard leaves the page cache of one file as it was before the file is read,
// where RWF_DONTCACHE does not do that for us. It drops pages that were not
// resident, behind the reader, and what the kernel has read ahead on close.
//
//	nothing resident     drop everything
//	everything resident  drop nothing
//	some of it           the runs that are cold, found by mincore window by
//	                     window and always further than the kernel reads ahead
//	may not ask          drop nothing
//
// A small cold file costs one cachestat and one fadvise, a hot one the former.
type guard struct {
	tree  *tree
	fd    int
	size  int64 // bytes, when the file was opened
	state guardState

	done    int64 // where pages were dropped last
	sampled int64 // partly: what is before it has been looked at
	cold    []run // partly: not dropped yet, in order
}

type guardState uint8

const (
	unasked guardState = iota
	hot                // drop nothing
	cold               // drop everything
	partly             // drop what is in guard.cold
)

// A run is the pages from start to end, in bytes of the file.
type run struct{ start, end int64 }

const (
	dropBytes   = 1 << 20  // how far pages trail behind the reader before they are dropped
	windowBytes = 16 << 20 // of one mincore
	// More than the kernel reads ahead: two windows, of 16 MiB each on a device
	// with a large one. There are at most 10,240 cold runs in it: 160 KiB.
	aheadBytes = 64 << 20
	// Up to here a file is read at once, and the default readahead stops at its end.
	smallBytes = 256 << 10
)

var pageBytes = int64(os.Getpagesize())

// before is called before the bytes from offset on are read.
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
			g.state = hot // what has not been looked at stays
			return
		}
	}
}

// after is called when the bytes up to end have been read. It drops each run
// from its beginning: pages come in folios of up to some MiB, which go only as
// a whole, and where nothing is left, dropping costs nothing.
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

// drop is advice: there is nothing to do where it fails.
func (g *guard) drop(r run) {
	_ = unix.Fadvise(g.fd, r.start, r.end-r.start, unix.FADV_DONTNEED)
}

// ask finds out how much of the file is resident.
func (g *guard) ask() {
	g.state = partly
	if !g.tree.noCachestat.Load() {
		whole := unix.CachestatRange{} // a length of 0: to the end
		var stat unix.Cachestat_t
		switch err := unix.Cachestat(uint(g.fd), &whole, &stat, 0); {
		case err == unix.ENOSYS:
			g.tree.noCachestat.Store(true)
		case err != nil: // EPERM: not ours to know; EOPNOTSUPP: a file system without a cache
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

// sample looks at the next window of length bytes, and reports whether it could.
func (g *guard) sample(length int64) bool {
	pages := (length + pageBytes - 1) / pageBytes
	at, err := unix.MmapPtr(g.fd, g.sampled, nil, uintptr(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return false
	}
	defer func() { _ = unix.MunmapPtr(at, uintptr(length)) }() // fails only for what is not mapped
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
