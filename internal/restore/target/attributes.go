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
	xattrCapability = "security.capability"
	xattrDefaultACL = "system.posix_acl_default"
	xattrNFS4ACL    = "system.nfs4_acl"
)

// ErrOwner: the owner could not be set because only root may.
var ErrOwner = errors.New("only root may set the owner")

// A Report is called with each attribute that could not be set.
type Report func(op string, err error)

// FinishDirectory sets a directory's attributes, when nothing in it changes any more. alone: it keeps the extended
// attributes that it has and the entry has not.
func (d *Dir) FinishDirectory(e *backup.Entry, alone bool, report Report) {
	d.root.finish(d.fd, e, !alone, report)
}

// SetTime sets the mtime of a directory.
func (d *Dir) SetTime(mtime backup.Time) error { return d.root.opened(d.fd).setTime(mtime) }

// SetMode sets the mode of a directory.
func (d *Dir) SetMode(mode uint32) error { return d.root.opened(d.fd).chmod(mode) }

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

// finish sets the attributes of an open file or directory: the owner first,
// for that takes set-id bits and capabilities away, and mtime last: it marks a
// file as finished. What is right already is left alone: asking costs a third
// of setting. others: it may have extended attributes that the entry has not.
func (r *Root) finish(fd int, e *backup.Entry, others bool, report Report) {
	o := r.opened(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		report("stat", err)
		return
	}
	mode := e.Mode
	chown := st.Uid != e.UID || st.Gid != e.GID
	if chown && !r.owner(e, o.chown, report) {
		mode &^= unix.S_ISUID | unix.S_ISGID
	}
	removed := others && o.removeOtherXattrs(e.Xattrs, report)
	o.setXattrs(e.Xattrs, report)
	// Setting an ACL, and removing one, changes the mode.
	if st.Mode&0o7777 != mode || chown || removed || len(e.Xattrs) > 0 {
		if err := o.chmod(mode); err != nil {
			report("chmod", err)
		}
	}
	if err := o.setTime(e.Mtime); err != nil {
		report("set time", err)
	}
}

// Apply sets the attributes of a name that is not a directory, without opening
// it. have is what is there now, and others is as in finish.
func (d *Dir) Apply(name string, e, have *backup.Entry, others bool, report Report) {
	mode := e.Mode
	chown := have.UID != e.UID || have.GID != e.GID
	if chown && !d.root.owner(e, func(uid, gid int) error { return d.root.chownAt(d.fd, name, uid, gid) }, report) {
		mode &^= unix.S_ISUID | unix.S_ISGID
	}
	chmod := e.Kind != backup.Symlink && (have.Mode != mode || chown)
	if chmod || others || len(e.Xattrs) > 0 {
		d.applyThroughProc(name, e, mode, chmod, others, report)
	}
	if err := d.root.setTimeAt(d.fd, name, e.Mtime); err != nil {
		report("set time", err)
	}
}

// applyThroughProc sets what has no call relative to a directory that leaves
// symlinks alone. The descriptor is of the inode, so nothing can be swapped.
func (d *Dir) applyThroughProc(name string, e *backup.Entry, mode uint32, chmod, others bool, report Report) {
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
	o := d.root.pathOnly(fd)
	removed := others && o.removeOtherXattrs(e.Xattrs, report)
	o.setXattrs(e.Xattrs, report)
	if chmod || e.Kind != backup.Symlink && (removed || len(e.Xattrs) > 0) {
		if err := o.chmod(mode); err != nil {
			report("chmod", err)
		}
	}
}

func (o object) setXattrs(xattrs []backup.Xattr, report Report) {
	for _, x := range xattrs {
		if err := o.setXattr(x.Name, x.Value); err != nil {
			report("set xattr "+x.Name, err)
		}
	}
}

// removeOtherXattrs takes away what is not wanted, and reports whether anything
// was. An access ACL goes in any case: the one that is wanted may be refused.
func (o object) removeOtherXattrs(wanted []backup.Xattr, report Report) (removed bool) {
	names, err := xattrNames(o.listXattrs)
	if err != nil {
		report("list xattrs", err)
		return false
	}
	if len(names) == 0 {
		return false
	}
	values := valuesOf(wanted)
	for _, name := range names {
		if _, ok := values[name]; !isOurs(name) || ok && name != xattrAccessACL {
			continue
		}
		removed = true
		if err := o.removeXattr(name); err != nil {
			report("remove xattr "+name, err)
		}
	}
	return removed
}

// isOurs reports whether an attribute is removed where it is not wanted. Names
// that belong to the system (security.selinux …) stay, but not rights that a file
// gives to whoever runs it.
func isOurs(name string) bool {
	return strings.HasPrefix(name, "user.") || name == xattrAccessACL || name == xattrDefaultACL || name == xattrCapability
}

func valuesOf(xattrs []backup.Xattr) map[string][]byte {
	values := make(map[string][]byte, len(xattrs))
	for _, x := range xattrs {
		values[x.Name] = x.Value
	}
	return values
}

// HasXattrs reports whether a name that is not a directory has the extended
// attributes that are wanted, and, with others, no others. What cannot be
// found out is false.
func (d *Dir) HasXattrs(name string, wanted []backup.Xattr, others bool) bool {
	names, err := xattrNames(func(buf []byte) (int, error) { return d.listXattrs(name, buf) })
	if err != nil {
		return false
	}
	if len(names) == 0 {
		return len(wanted) == 0
	}
	values := valuesOf(wanted)
	for _, name := range names {
		if _, ok := values[name]; others && !ok && isOurs(name) {
			return false
		}
	}
	path := procPath(d.fd) + "/" + name
	for name, value := range values {
		if !hasXattr(path, name, value) {
			return false
		}
	}
	return true
}

// listXattrs is llistxattr(2) of a name in the directory. What is left alone
// is asked for nothing but this and its stat: listxattrat(2), of Linux 6.13,
// takes a quarter of the time that the way through /proc does.
func (d *Dir) listXattrs(name string, buf []byte) (int, error) {
	if !d.root.noListxattrat.Load() {
		path, err := unix.BytePtrFromString(name)
		if err != nil {
			return 0, err
		}
		n, _, errno := unix.Syscall6(unix.SYS_LISTXATTRAT, uintptr(d.fd), uintptr(unsafe.Pointer(path)), unix.AT_SYMLINK_NOFOLLOW,
			uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.ENOSYS, unix.EPERM: // a sandbox that does not know the call may say the latter
			d.root.noListxattrat.Store(true)
		default:
			return 0, errno
		}
	}
	return unix.Llistxattr(procPath(d.fd)+"/"+name, buf)
}

func hasXattr(path, name string, value []byte) bool {
	buf := make([]byte, len(value)+1)
	n, err := ignoringEINTR(func() (int, error) { return unix.Lgetxattr(path, name, buf) })
	return err == nil && bytes.Equal(buf[:n], value)
}

// xattrNames returns the names that list puts into a buffer, as listxattr(2)
// does; none where the file system has no extended attributes.
func xattrNames(list func(buf []byte) (int, error)) (names []string, err error) {
	var buf []byte
	for {
		n, err := ignoringEINTR(func() (int, error) { return list(buf) })
		switch {
		case errors.Is(err, unix.ENOTSUP) || err == nil && n == 0:
			return nil, nil
		case errors.Is(err, unix.ERANGE): // one was added
			buf = nil
		case err != nil:
			return nil, err
		case buf == nil: // this was the size
			buf = make([]byte, n)
		default:
			for name := range bytes.SplitSeq(bytes.TrimSuffix(buf[:n], []byte{0}), []byte{0}) {
				names = append(names, string(name))
			}
			return names, nil
		}
	}
}
