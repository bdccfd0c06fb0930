//go:build linux

package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

const (
	directoryFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOATIME
	stepFlags      = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	fileFlags      = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NOATIME
)

// A tree holds the descriptor of its root. Directories and files have their own, and may outlive
// the tree.
type tree struct {
	path      string           // as the operator named it
	snapshot  *source.Snapshot // the source snapshot that the tree is; nil: none
	device    uint64
	identity  backup.Root
	network   bool // the file system is on another machine
	options   Options
	noOpenat2 bool
	readFor   time.Duration // time limit of one Read

	noMountRoot bool // ignore the mount points that statx reports; for tests

	mu   sync.RWMutex // held while root is used: after Close, its number may be another file's
	root int          // -1: closed

	noAtimeDenied atomic.Bool // O_NOATIME is not permitted: neither owner nor CAP_FOWNER
	noCachestat   atomic.Bool
	noXattrat     atomic.Bool
	cached        deviceSet // devices that do not support RWF_DONTCACHE
}

func (t *tree) RootDevice() uint64 { return t.device }

func (t *tree) Root() backup.Root { return t.identity }

// Clock implements source.Tree. The clock of another machine may be behind by Options.Skew.
func (t *tree) Clock() (now time.Time, behind time.Duration) {
	behind = t.options.Grain
	if t.network {
		behind += t.options.Skew
	}
	return time.Now(), behind
}

func (t *tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.root < 0 {
		return nil
	}
	fd := t.root
	t.root = -1
	return unix.Close(fd)
}

func (t *tree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := source.CheckPath(path); err != nil {
		return nil, err
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	d := &directory{tree: t, path: path}
	fd, err := t.openDirectory(s, path, directoryFlags)
	if errno, ok := errors.AsType[syscall.Errno](err); ok && !source.IsGone(err) && !source.IsTransient(err) {
		// A directory that cannot be listed can still be identified.
		var known error
		if fd, known = t.openDirectory(s, path, stepFlags); known == nil {
			d.denied, err = errno, nil
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d.fd = fd
	if errno := statDescriptor(fd, &s.st); errno != 0 {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "stat", Path: path, Err: asError(errno)}
	}
	setAttributes(&d.self, &s.st)
	if path != "" && t.isBoundary(s, fd) {
		d.self.Flags |= backup.Boundary
	}
	return d, nil
}

// subvolumeInode is the inode of the root of each subvolume of btrfs. A subvolume has a device of
// its own, but is not a mount.
const subvolumeInode = 256

// isBoundary reports whether a file system begins at the directory of fd and s.st.
func (t *tree) isBoundary(s *scratch, fd int) bool {
	known, is := t.mountRoot(&s.st)
	if known && (is || s.st.Ino != subvolumeInode) {
		return is
	}
	return s.device() != t.device && t.isOtherDevice(s, fd)
}

// isOtherDevice reports whether a directory is on another device than its parent. It is not called
// for directories on the root's device.
func (t *tree) isOtherDevice(s *scratch, fd int) bool {
	device := s.device()
	if errno := statx(fd, dotDot, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, &s.st); errno != 0 {
		// Prefer a boundary too many: entries on its two sides are not considered one file.
		return true
	}
	return s.device() != device
}

// openDirectory opens path, in pieces if it is longer than PATH_MAX.
func (t *tree) openDirectory(s *scratch, path string, flags int) (int, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.root < 0 {
		return -1, fs.ErrClosed
	}
	if path == "" {
		path = "."
	}
	at := t.root
	for len(path) >= pathMax {
		cut := strings.LastIndexByte(path[:pathMax], '/')
		if cut < 0 {
			t.closeStep(at)
			return -1, unix.ENAMETOOLONG
		}
		next, err := t.openBeneath(s, at, path[:cut], stepFlags)
		t.closeStep(at)
		if err != nil {
			return -1, err
		}
		at, path = next, path[cut+1:]
	}
	fd, err := t.openBeneath(s, at, path, flags)
	t.closeStep(at)
	return fd, err
}

// closeStep closes a descriptor on the way to a directory, unless it is the root's.
func (t *tree) closeStep(fd int) {
	if fd != t.root {
		unix.Close(fd)
	}
}

// openBeneath opens the directory at path below at.
func (t *tree) openBeneath(s *scratch, at int, path string, flags int) (int, error) {
	if t.noOpenat2 {
		return t.openByComponents(s, at, path, flags)
	}
	fd, errno := t.withoutAtime(flags, func(flags int) (int, syscall.Errno) {
		return s.openat2(at, s.setPath(path), flags)
	})
	switch errno {
	case 0:
		return fd, nil
	case unix.ELOOP, unix.EXDEV:
		return -1, fmt.Errorf("%w: %w", errno, backup.ErrOutside)
	case unix.EAGAIN: // endless renames; a single component does not have this problem
		return t.openByComponents(s, at, path, flags)
	}
	return -1, asError(errno)
}

// openByComponents does what openat2 does, for kernels without it.
func (t *tree) openByComponents(s *scratch, at int, path string, flags int) (int, error) {
	start := at
	for {
		name, rest, more := strings.Cut(path, "/")
		open := flags
		if more {
			open = stepFlags
		}
		fd, symlink, errno := t.openComponent(s, at, name, open)
		if at != start {
			unix.Close(at)
		}
		switch {
		case symlink:
			return -1, fmt.Errorf("%w: %w", errno, backup.ErrOutside)
		case errno != 0:
			return -1, asError(errno)
		case !more:
			return fd, nil
		}
		at, path = fd, rest
	}
}

// openComponent opens the directory name in at. If name is not a directory, symlink reports whether
// it is a symlink.
func (t *tree) openComponent(s *scratch, at int, name string, flags int) (fd int, symlink bool, errno syscall.Errno) {
	for range raceRetries {
		fd, errno = t.withoutAtime(flags, func(flags int) (int, syscall.Errno) {
			return openat(at, s.setPath(name), flags|unix.O_NOFOLLOW)
		})
		if errno != unix.ENOTDIR || statEntry(at, &s.path[0], &s.st) != 0 {
			break
		}
		if kind := backup.KindOfMode(uint32(s.st.Mode)); kind != backup.Directory {
			return -1, kind == backup.Symlink, errno
		}
		// It is a directory now: another process exchanges it.
	}
	return fd, errno == unix.ELOOP, errno
}

// withoutAtime calls open with flags. If the kernel denies O_NOATIME, it omits that flag, and
// remembers this for the tree.
func (t *tree) withoutAtime(flags int, open func(flags int) (int, syscall.Errno)) (int, syscall.Errno) {
	if t.noAtimeDenied.Load() {
		flags &^= unix.O_NOATIME
	}
	fd, errno := open(flags)
	if errno != unix.EPERM || flags&unix.O_NOATIME == 0 {
		return fd, errno
	}
	if fd, errno = open(flags &^ unix.O_NOATIME); errno == 0 {
		t.noAtimeDenied.Store(true)
	}
	return fd, errno
}

// asError returns errno as an error. A descriptor that the server has forgotten is ErrStale.
func asError(errno syscall.Errno) error {
	if errno == unix.ESTALE {
		return fmt.Errorf("%w: %w", errno, source.ErrStale)
	}
	return errno
}

// A deviceSet is a small set of devices. It is read for every file and written once per device.
type deviceSet struct {
	devices atomic.Pointer[[]uint64]
}

func (s *deviceSet) has(device uint64) bool {
	devices := s.devices.Load()
	return devices != nil && slices.Contains(*devices, device)
}

func (s *deviceSet) add(device uint64) {
	for {
		old := s.devices.Load()
		var devices []uint64
		if old != nil {
			devices = *old
		}
		if slices.Contains(devices, device) {
			return
		}
		devices = append(slices.Clone(devices), device)
		if s.devices.CompareAndSwap(old, &devices) {
			return
		}
	}
}
