//go:build linux

package target

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// This file contains every system call that changes the target, so that tests can make each of them
// fail.

// A Call is a kind of system call that changes the target.
type Call string

// The calls.
const (
	CallCreate      Call = "create"
	CallMkdir       Call = "mkdir"
	CallWrite       Call = "write"
	CallTruncate    Call = "truncate"
	CallRename      Call = "rename"
	CallLink        Call = "link"
	CallSymlink     Call = "symlink"
	CallMknod       Call = "mknod"
	CallChown       Call = "chown"
	CallChmod       Call = "chmod"
	CallSetXattr    Call = "setxattr"
	CallRemoveXattr Call = "removexattr"
	CallSetTime     Call = "utimes"
	CallClose       Call = "close" // of a file that was written
	CallUnlink      Call = "unlink"
	CallPunch       Call = "punch"
	CallSync        Call = "sync"  // of a file system
	CallFsync       Call = "fsync" // of a file that is changed in place
)

// before returns the error that a test injects in place of the call.
func (r *Root) before(c Call, name string) error {
	if r.o.Fault == nil {
		return nil
	}
	return r.o.Fault(c, name, false)
}

// after returns the call's error, or the error that a test injects after a successful call.
func (r *Root) after(c Call, name string, err error) error {
	if r.o.Fault == nil || err != nil {
		return err
	}
	return r.o.Fault(c, name, true)
}

// change makes a call, again after EINTR, unless a test injects an error.
func (r *Root) change(c Call, name string, call func() error) error {
	if err := r.before(c, name); err != nil {
		return err
	}
	return r.after(c, name, retryEINTR(call))
}

func (r *Root) makeTarget() error {
	r.makes = []string{r.o.Path}
	for path := filepath.Dir(r.o.Path); !exists(path); path = filepath.Dir(path) {
		r.makes = append(r.makes, path)
	}
	return r.change(CallMkdir, r.o.Path, func() error { return os.MkdirAll(r.o.Path, 0o700) })
}

// exists is also true if the path cannot be read.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// removeTarget undoes makeTarget, as far as the directories are empty.
func (r *Root) removeTarget() {
	for _, path := range r.makes {
		if r.before(CallUnlink, path) != nil || unix.Rmdir(path) != nil {
			return
		}
	}
}

func (r *Root) createAt(dir int, name string, mode uint32) (int, error) {
	if err := r.before(CallCreate, name); err != nil {
		return -1, err
	}
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
	if fault := r.after(CallCreate, name, err); err == nil && fault != nil {
		unix.Close(fd)
		return -1, fault
	}
	return fd, err
}

func (r *Root) mkdirAt(dir int, name string, mode uint32) error {
	return r.change(CallMkdir, name, func() error { return unix.Mkdirat(dir, name, mode) })
}

func (r *Root) write(fd int, p []byte, offset int64) (int, error) {
	if err := r.before(CallWrite, ""); err != nil {
		return 0, err
	}
	n, err := ignoringEINTR(func() (int, error) { return unix.Pwrite(fd, p, offset) })
	return n, r.after(CallWrite, "", err)
}

func (r *Root) truncate(fd int, size int64) error {
	return r.change(CallTruncate, "", func() error { return unix.Ftruncate(fd, size) })
}

func (r *Root) punch(fd int, offset, length int64) error {
	return r.change(CallPunch, "", func() error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	})
}

func (r *Root) syncFile(fd int, name string) error {
	return r.change(CallFsync, name, func() error { return unix.Fsync(fd) })
}

// close closes a file that was written. The descriptor is closed even if close returns an error.
func (r *Root) close(fd int) error { return r.after(CallClose, "", unix.Close(fd)) }

// syncfs waits until all data written to a file system is on its disk. Its error reports data that
// could not be written since fd was opened.
func (r *Root) syncfs(fd int, path string) error {
	return r.change(CallSync, path, func() error { return unix.Syncfs(fd) })
}

// renameAt renames within a directory. With replace, to may exist.
func (r *Root) renameAt(dir int, from, to string, replace bool) error {
	return r.change(CallRename, to, func() error {
		if replace {
			return unix.Renameat(dir, from, dir, to)
		}
		return unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
	})
}

func (r *Root) linkAt(fromDir int, from string, dir int, name string) error {
	return r.change(CallLink, name, func() error { return unix.Linkat(fromDir, from, dir, name, 0) })
}

func (r *Root) symlinkAt(target string, dir int, name string) error {
	return r.change(CallSymlink, name, func() error { return unix.Symlinkat(target, dir, name) })
}

func (r *Root) mknodAt(dir int, name string, mode uint32, rdev uint64) error {
	return r.change(CallMknod, name, func() error { return unix.Mknodat(dir, name, mode, int(rdev)) })
}

func (r *Root) unlinkAt(dir int, name string, flags int) error {
	return r.change(CallUnlink, name, func() error { return unix.Unlinkat(dir, name, flags) })
}

// chownAt changes the owner of a name without following symlinks. -1 keeps the uid or gid.
func (r *Root) chownAt(dir int, name string, uid, gid int) error {
	return r.change(CallChown, name, func() error { return unix.Fchownat(dir, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW) })
}

func (r *Root) setTimeAt(dir int, name string, mtime backup.Time) error {
	return r.change(CallSetTime, name, func() error {
		return unix.UtimesNanoAt(dir, name, timespecs(mtime), unix.AT_SYMLINK_NOFOLLOW)
	})
}

// An object is an inode of the target: an open file, or one that was opened with O_PATH, for which
// the calls need a path.
type object struct {
	root *Root
	fd   int
	path string // the inode itself, below /proc; "" for an open file
}

// opened returns the object of an open file or directory.
func (r *Root) opened(fd int) object { return object{root: r, fd: fd} }

// pathOnly returns the object of a descriptor that was opened with O_PATH.
func (r *Root) pathOnly(fd int) object { return object{root: r, fd: fd, path: procPath(fd)} }

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func (o object) chown(uid, gid int) error {
	return o.root.change(CallChown, "", func() error { return unix.Fchown(o.fd, uid, gid) })
}

func (o object) chmod(mode uint32) error {
	return o.root.change(CallChmod, "", func() error {
		if o.path != "" {
			return unix.Chmod(o.path, mode)
		}
		return unix.Fchmod(o.fd, mode)
	})
}

func (o object) setXattr(name string, value []byte) error {
	return o.root.change(CallSetXattr, name, func() error {
		if o.path != "" {
			return unix.Setxattr(o.path, name, value, 0)
		}
		return unix.Fsetxattr(o.fd, name, value, 0)
	})
}

// listXattrs is listxattr(2).
func (o object) listXattrs(buf []byte) (int, error) {
	if o.path != "" {
		return unix.Listxattr(o.path, buf)
	}
	return unix.Flistxattr(o.fd, buf)
}

// removeXattr removes an attribute. A missing attribute is not an error.
func (o object) removeXattr(name string) error {
	return o.root.change(CallRemoveXattr, name, func() (err error) {
		if o.path != "" {
			err = unix.Removexattr(o.path, name)
		} else {
			err = unix.Fremovexattr(o.fd, name)
		}
		if errors.Is(err, unix.ENODATA) {
			return nil
		}
		return err
	})
}

// setTime is utimensat with a NULL path, for which package unix has no wrapper.
func (o object) setTime(mtime backup.Time) error {
	return o.root.change(CallSetTime, "", func() error {
		ts := timespecs(mtime)
		if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(o.fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0); errno != 0 {
			return errno
		}
		return nil
	})
}

// timespecs keeps atime.
func timespecs(mtime backup.Time) []unix.Timespec {
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: mtime.Sec, Nsec: int64(mtime.Nsec)}}
}

func ignoringEINTR[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
