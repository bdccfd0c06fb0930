//go:build linux

package posix

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below take a pointer to a NUL-terminated name, so that names go from a getdents64
// buffer to statx without a copy. They return the bare errno, so that they do not allocate. All go
// through the scheduler, and are repeated after a signal (FUSE and NFS return EINTR).

const (
	dentsBytes = 64 << 10
	pathMax    = unix.PathMax // with the NUL

	// raceRetries is the number of tries for a path that other processes rename meanwhile.
	raceRetries = 128

	statxMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME
)

var dotDot = &[]byte("..\x00")[0]

// A scratch is the memory that one call into this package needs while it runs. The memory that the
// kernel reads or writes is here, not on a stack.
type scratch struct {
	dents   [dentsBytes]byte
	path    [pathMax]byte // a path to open, or a symlink's target
	st      unix.Statx_t
	how     unix.OpenHow
	records []record
}

// device is the st_dev of st.
func (s *scratch) device() uint64 { return unix.Mkdev(s.st.Dev_major, s.st.Dev_minor) }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

var emptyName = new(byte) // ""

// setPath stores path with its NUL, and returns its address. The caller has checked that it fits
// and contains no NUL.
func (s *scratch) setPath(path string) *byte {
	n := copy(s.path[:pathMax-1], path)
	s.path[n] = 0
	return &s.path[0]
}

func (s *scratch) getdents(fd int) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&s.dents[0])), dentsBytes)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// statx fills st. Attributes are as fresh as those of stat(2): on NFS, the client revalidates them
// according to the mount's caching.
func statx(fd int, name *byte, flags int, st *unix.Statx_t) syscall.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(name)),
			uintptr(flags), statxMask, uintptr(unsafe.Pointer(st)), 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

func statEntry(dir int, name *byte, st *unix.Statx_t) syscall.Errno {
	return statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, st)
}

func statDescriptor(fd int, st *unix.Statx_t) syscall.Errno {
	return statx(fd, emptyName, unix.AT_EMPTY_PATH, st)
}

func readlinkat(dir int, name *byte, buf []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(name)),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func openat(dir int, name *byte, flags int) (int, syscall.Errno) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(flags), 0, 0, 0)
		if errno != unix.EINTR {
			return int(fd), errno
		}
	}
}

// openat2 resolves path beneath dir and through no link at all. It must not use O_NOFOLLOW: with
// it, a symlink at the end is ENOTDIR; without it, ELOOP.
func (s *scratch) openat2(dir int, path *byte, flags int) (int, syscall.Errno) {
	s.how = unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for races := 0; ; {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT2, uintptr(dir), uintptr(unsafe.Pointer(path)),
			uintptr(unsafe.Pointer(&s.how)), unix.SizeofOpenHow, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && races < raceRetries: // something was renamed during the lookup
			races++
		default:
			return int(fd), errno
		}
	}
}

// hasOpenat2 also detects a sandbox that returns EPERM for unknown calls.
func hasOpenat2(dir int) bool {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	fd, errno := s.openat2(dir, s.setPath("."), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno != unix.ENOSYS && errno != unix.EPERM
	}
	unix.Close(fd)
	return true
}
