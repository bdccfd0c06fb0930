//go:build linux

package target

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

const (
	xattrAccessACL  = "system.posix_acl_access"
	xattrDefaultACL = "system.posix_acl_default"
	xattrNFS4ACL    = "system.nfs4_acl"
)

// ErrOwner: the owner could not be set because only root may.
var ErrOwner = errors.New("only root may set the owner")

// A Report is told each attribute that could not be set.
type Report func(op string, err error)

// owner sets uid and gid through chown, and reports whether both are right
// then: if not, set-id bits must not be given to somebody else's file.
func (r *Root) owner(e *backup.Entry, chown func(uid, gid int) error, report Report) bool {
	err := chown(int(e.UID), int(e.GID))
	if err == nil {
		return true
	}
	if errors.Is(err, unix.EPERM) && r.euid != 0 {
		err = fmt.Errorf("uid %d, gid %d: %w", e.UID, e.GID, ErrOwner)
		if e.GID != r.egid && chown(-1, int(e.GID)) == nil && e.UID == r.euid {
			return true
		}
	}
	report("chown", err)
	return false
}

// FinishDirectory sets a directory's attributes, when nothing in it changes any more.
func (d *Dir) FinishDirectory(e *backup.Entry, existed bool, report Report) {
	d.root.finish(d.fd, e, existed, report)
}

// finish sets the attributes of an open file or directory: the owner first, for that takes set-id
// bits away, and mtime last: it marks a file as finished. What is right already is left
// alone: asking costs a third of setting. others: it may have xattrs that the snapshot's has not.
func (r *Root) finish(fd int, e *backup.Entry, others bool, report Report) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		report("stat", err)
		return
	}
	mode := e.Mode
	chown := st.Uid != e.UID || st.Gid != e.GID
	if chown {
		owned := r.owner(e, func(uid, gid int) error { return unix.Fchown(fd, uid, gid) }, report)
		if !owned {
			mode &^= unix.S_ISUID | unix.S_ISGID
		}
	}
	if others {
		_ = unix.Fremovexattr(fd, xattrAccessACL) // fails where there is none; the snapshot's may be refused
		removeOtherXattrs(fd, e.Xattrs, report)
	}
	setXattrs(e.Xattrs, func(name string, value []byte) error { return unix.Fsetxattr(fd, name, value, 0) }, report)
	if st.Mode&0o7777 != mode || chown || others || len(e.Xattrs) > 0 {
		if err := unix.Fchmod(fd, mode); err != nil {
			report("chmod", err)
		}
	}
	if err := futimens(fd, e.Mtime); err != nil {
		report("set time", err)
	}
}

// Apply sets the attributes of a name that is not a directory, without opening
// it. have is what is there now.
func (d *Dir) Apply(name string, e, have *backup.Entry, report Report) {
	mode := e.Mode
	if have.UID != e.UID || have.GID != e.GID {
		owned := d.root.owner(e, func(uid, gid int) error {
			return unix.Fchownat(d.fd, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		}, report)
		if !owned {
			mode &^= unix.S_ISUID | unix.S_ISGID
		}
	}
	chmod := e.Kind != backup.Symlink && (have.Mode != mode || have.UID != e.UID || have.GID != e.GID)
	if chmod || len(e.Xattrs) > 0 {
		d.applyThroughProc(name, e, mode, chmod, report)
	}
	if err := d.setTime(name, e.Mtime); err != nil {
		report("set time", err)
	}
}

// applyThroughProc sets what has no call relative to a directory that leaves
// symlinks alone. The descriptor is of the inode, so nothing can be swapped.
func (d *Dir) applyThroughProc(name string, e *backup.Entry, mode uint32, chmod bool, report Report) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		report("open", err)
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || entryOf(name, &st).Kind != e.Kind {
		report("open", fmt.Errorf("%q changed while it was restored: %w", name, errors.Join(err, backup.ErrOutside)))
		return
	}
	setXattrs(e.Xattrs, func(name string, value []byte) error { return unix.Setxattr(procPath(fd), name, value, 0) }, report)
	if chmod {
		if err := unix.Chmod(procPath(fd), mode); err != nil {
			report("chmod", err)
		}
	}
}

func (d *Dir) setTime(name string, mtime backup.Time) error {
	return unix.UtimesNanoAt(d.fd, name, timespecs(mtime), unix.AT_SYMLINK_NOFOLLOW)
}

func setXattrs(xattrs []backup.Xattr, set func(name string, value []byte) error, report Report) {
	for _, x := range xattrs {
		if err := set(x.Name, x.Value); err != nil {
			report("set xattr "+x.Name, err)
		}
	}
}

// removeOtherXattrs takes away what the snapshot's has not. Names that belong to the system (security.selinux …) stay.
func removeOtherXattrs(fd int, keep []backup.Xattr, report Report) {
	size, err := unix.Flistxattr(fd, nil)
	if err != nil || size == 0 {
		return // a file system without xattrs
	}
	buf := make([]byte, size)
	size, err = unix.Flistxattr(fd, buf)
	if err != nil {
		report("list xattrs", err)
		return
	}
	for _, raw := range bytes.Split(buf[:size], []byte{0}) {
		name := string(raw)
		ours := strings.HasPrefix(name, "user.") || name == xattrAccessACL || name == xattrDefaultACL
		if !ours || hasXattr(keep, name) {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
			report("remove xattr "+name, err)
		}
	}
}

func hasXattr(xattrs []backup.Xattr, name string) bool {
	for _, x := range xattrs {
		if x.Name == name {
			return true
		}
	}
	return false
}

func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// timespecs leaves atime alone.
func timespecs(mtime backup.Time) []unix.Timespec {
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: mtime.Sec, Nsec: int64(mtime.Nsec)}}
}

// futimens has no wrapper in package unix: it is utimensat with a NULL path.
func futimens(fd int, mtime backup.Time) error {
	ts := timespecs(mtime)
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
