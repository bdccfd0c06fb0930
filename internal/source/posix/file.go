//go:build linux

package posix

import (
	"io"
	"math"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

type file struct {
	tree *tree
	fd   int

	st     unix.Statx_t
	fresh  bool // st is from opening, and nothing was read since: the next Stat returns it
	size   int64
	device uint64
	solid  bool // has no holes that matter, or the file system cannot report them
	unsure bool // its blocks cover the size, which does not prove that it is solid

	uncached bool // reads use RWF_DONTCACHE; otherwise guard manages the page cache
	guard    guard
	iov      unix.Iovec
}

// trustedBytes is the largest size for which the number of blocks is trusted to show whether a file
// has holes. Blocks may be behind the end of the file, or allocated and never written. lseek(2)
// detects that, and its time is negligible compared with reading a larger file.
const trustedBytes = 1 << 20

// init must be called when st holds the attributes that the file has when opened.
func (f *file) init() {
	f.fresh = true
	f.size = int64(f.st.Size)
	f.device = unix.Mkdev(f.st.Dev_major, f.st.Dev_minor)
	covered := f.st.Blocks >= (f.st.Size+511)/512
	f.solid, f.unsure = covered && f.size <= trustedBytes, covered && f.size > trustedBytes
	f.uncached = !f.tree.cached.has(f.device)
	f.guard = guard{tree: f.tree, fd: f.fd, size: f.size}
}

// Stat implements source.File. The first call, if nothing was read before, returns the attributes
// from opening the file.
func (f *file) Stat() (backup.Entry, error) {
	if !f.fresh {
		if errno := statDescriptor(f.fd, &f.st); errno != 0 {
			return backup.Entry{}, asError(errno)
		}
	}
	f.fresh = false
	var e backup.Entry
	setAttributes(&e, &f.st)
	return e, nil
}

// NextExtent implements source.File.
func (f *file) NextExtent(offset, size int64) (start, length int64, err error) {
	if offset >= size {
		return offset, 0, nil
	}
	if f.solid {
		return offset, size - offset, nil
	}
	f.fresh = false
	if f.unsure {
		f.unsure = false
		if hole, err := unix.Seek(f.fd, offset, unix.SEEK_HOLE); err == nil && hole >= size {
			f.solid = true
			return offset, size - offset, nil
		}
	}
	start, err = unix.Seek(f.fd, offset, unix.SEEK_DATA)
	switch err {
	case nil:
	case unix.ENXIO: // no data from here on, or the file has shrunk
		return size, 0, nil
	case unix.EINVAL, unix.EOPNOTSUPP: // the file system does not support it
		f.solid = true
		return offset, size - offset, nil
	default:
		return 0, 0, asStale(err)
	}
	if start >= size {
		return size, 0, nil
	}
	end, err := unix.Seek(f.fd, start, unix.SEEK_HOLE)
	if err != nil || end <= start { // the file shrank meanwhile: the read detects it
		end = size
	}
	return start, min(end, size) - start, nil
}

// ReadAt implements io.ReaderAt. A short read that ends exactly at the size that the file had when
// it was opened is the end of the file; no second read confirms it.
func (f *file) ReadAt(p []byte, offset int64) (n int, err error) {
	f.fresh = false
	for n < len(p) {
		got, err := f.read(p[n:], offset+int64(n))
		if err != nil {
			return n, asStale(err)
		}
		n += got
		if got == 0 || n < len(p) && offset+int64(n) == f.size {
			return n, io.EOF
		}
	}
	return n, nil
}

// read makes one read of at least one byte, unless at the end.
func (f *file) read(p []byte, offset int64) (int, error) {
	if f.uncached {
		n, errno := f.preadv2(p, offset, unix.RWF_DONTCACHE)
		if errno != unix.EOPNOTSUPP && errno != unix.ENOSYS {
			return result(uintptr(n), errno)
		}
		f.uncached = false
		f.tree.cached.add(f.device)
	}
	f.guard.before(offset, int64(len(p)))
	for {
		n, err := unix.Pread(f.fd, p, offset)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		f.guard.after(offset + int64(n))
		return n, nil
	}
}

func (f *file) preadv2(p []byte, offset int64, flags int) (int, syscall.Errno) {
	f.iov.Base = unsafe.SliceData(p)
	f.iov.SetLen(min(len(p), math.MaxInt32))
	defer func() { f.iov.Base = nil }()
	for {
		n, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(f.fd), uintptr(unsafe.Pointer(&f.iov)), 1,
			uintptr(offset), uintptr(uint64(offset)>>32), uintptr(flags))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
}

// Close implements source.File.
func (f *file) Close() error {
	if f.fd < 0 {
		return nil
	}
	f.guard.close()
	fd := f.fd
	f.fd = -1
	return unix.Close(fd)
}
