//go:build linux

package posix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

const (
	xattrBufferBytes = 4 << 10
	// The kernel's limits for one list and for one value (XATTR_LIST_MAX, XATTR_SIZE_MAX).
	xattrMaxBytes = 64 << 10
	// xattrRetries is the number of tries for attributes that change while they are read.
	xattrRetries = 8
)

var xattrBuffers = sync.Pool{New: func() any { return new([xattrBufferBytes]byte) }}

// An xattrCaller makes the two system calls for one entry. dest is as in the system calls: if the
// result does not fit, the error is ERANGE.
type xattrCaller interface {
	list(dest []byte) (int, error)
	get(name string, dest []byte) (int, error)
}

// Xattrs implements source.Directory.
func (d *directory) Xattrs(ctx context.Context, name string, _ backup.Kind) ([]backup.Xattr, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if name == "" {
		return xattrs(d.path, descriptorXattrs(d.fd))
	}
	if err := backup.CheckName(name); err != nil {
		return nil, err
	}
	if !d.tree.noXattrat.Load() {
		found, err := xattrs(name, entryXattrs{d.fd, name})
		// A sandbox may return EPERM for unknown calls.
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return found, err
		}
		if errors.Is(err, unix.ENOSYS) {
			d.tree.noXattrat.Store(true)
		}
	}
	return xattrs(name, pathXattrs("/proc/self/fd/"+strconv.Itoa(d.fd)+"/"+name))
}

// Xattrs implements source.File.
func (f *file) Xattrs() ([]backup.Xattr, error) {
	f.fresh = false
	return xattrs("", descriptorXattrs(f.fd))
}

// xattrs reads all attributes through c. An entry that has none costs one system call and no
// allocation.
func xattrs(path string, c xattrCaller) ([]backup.Xattr, error) {
	buf := xattrBuffers.Get().(*[xattrBufferBytes]byte)
	defer xattrBuffers.Put(buf)
	list, err := readXattr(buf[:], c.list)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, source.ErrNoXattrs
	case err != nil:
		return nil, &fs.PathError{Op: "listxattr", Path: path, Err: asStale(err)}
	case len(list) == 0:
		return nil, nil
	}
	names := string(list) // buf is used again for the values
	found := make([]backup.Xattr, 0, strings.Count(names, "\x00"))
	sizeBytes := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(names, "\x00"), "\x00") {
		value, err := readXattr(buf[:], func(dest []byte) (int, error) { return c.get(name, dest) })
		if errors.Is(err, unix.ENODATA) { // removed since it was listed
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr " + name, Path: path, Err: asStale(err)}
		}
		if sizeBytes += len(name) + len(value); sizeBytes > source.MaxXattrBytes {
			return nil, &fs.PathError{Op: "getxattr", Path: path, Err: errXattrLimit{}}
		}
		found = append(found, backup.Xattr{Name: name, Value: slices.Clone(value)})
	}
	slices.SortFunc(found, func(a, b backup.Xattr) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

// errXattrLimit is E2BIG with a text of its own, because that of E2BIG is about the arguments of a
// program.
type errXattrLimit struct{}

func (errXattrLimit) Error() string {
	return fmt.Sprintf("more than %d bytes of extended attributes, which is the most that bctl stores of an entry", source.MaxXattrBytes)
}

func (errXattrLimit) Unwrap() error { return unix.E2BIG }

// readXattr makes call with buf. If that is too small, it repeats the call with a buffer of the
// size that the kernel reports, until the result fits.
func readXattr(buf []byte, call func(dest []byte) (int, error)) ([]byte, error) {
	for range xattrRetries {
		n, err := call(buf)
		switch {
		case err == nil:
			return buf[:n], nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.ERANGE):
			return nil, err
		}
		if n, err = call(nil); err != nil {
			return nil, err
		}
		if n > source.MaxXattrBytes {
			return nil, errXattrLimit{}
		}
		if n > len(buf) {
			buf = make([]byte, max(n, xattrMaxBytes))
		}
	}
	return nil, unix.ERANGE
}

// descriptorXattrs are those of an open file or directory.
type descriptorXattrs int

func (fd descriptorXattrs) list(dest []byte) (int, error) { return unix.Flistxattr(int(fd), dest) }
func (fd descriptorXattrs) get(name string, dest []byte) (int, error) {
	return unix.Fgetxattr(int(fd), name, dest)
}

// pathXattrs are those of the file at a path, without following a symlink.
type pathXattrs string

func (path pathXattrs) list(dest []byte) (int, error) { return unix.Llistxattr(string(path), dest) }
func (path pathXattrs) get(name string, dest []byte) (int, error) {
	return unix.Lgetxattr(string(path), name, dest)
}

// entryXattrs are those of an entry of an open directory. The entry need not be one that can be
// opened (Linux 6.13).
type entryXattrs struct {
	dir  int
	name string
}

func (e entryXattrs) list(dest []byte) (int, error) {
	name, err := unix.BytePtrFromString(e.name)
	if err != nil {
		return 0, err
	}
	n, _, errno := unix.Syscall6(unix.SYS_LISTXATTRAT, uintptr(e.dir), uintptr(unsafe.Pointer(name)), unix.AT_SYMLINK_NOFOLLOW,
		uintptr(unsafe.Pointer(unsafe.SliceData(dest))), uintptr(len(dest)), 0)
	return result(n, errno)
}

func (e entryXattrs) get(attribute string, dest []byte) (int, error) {
	name, err := unix.BytePtrFromString(e.name)
	if err != nil {
		return 0, err
	}
	attributeName, err := unix.BytePtrFromString(attribute)
	if err != nil {
		return 0, err
	}
	// struct xattr_args of linux/xattr.h
	args := &struct {
		value *byte
		_     [8 - unsafe.Sizeof(uintptr(0))]byte
		size  uint32
		flags uint32
	}{value: unsafe.SliceData(dest), size: uint32(len(dest))}
	n, _, errno := unix.Syscall6(unix.SYS_GETXATTRAT, uintptr(e.dir), uintptr(unsafe.Pointer(name)), unix.AT_SYMLINK_NOFOLLOW,
		uintptr(unsafe.Pointer(attributeName)), uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args))
	return result(n, errno)
}

func asStale(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return asError(errno)
	}
	return err
}

func result(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
