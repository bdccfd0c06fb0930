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

// ErrOwner reports that the owner could not be set because only root may.
var ErrOwner = errors.New("only root may set the owner")

// ErrNotTaken reports that a call returned no error although the target has a different value.
var ErrNotTaken = errors.New("the target does not keep it")

// A Report is called with each attribute that could not be set.
type Report func(op string, err error)

// FinishDirectory sets a directory's attributes, after the last change in it. alone keeps extended
// attributes that the directory has and the entry does not have.
func (d *Dir) FinishDirectory(e *backup.Entry, alone bool, report Report) {
	d.root.setAttributes(d.fd, e, !alone, report)
}

// SetTime sets the mtime of a directory.
func (d *Dir) SetTime(mtime backup.Time) error { return d.root.opened(d.fd).putTime(mtime) }

// SetMode sets the mode of a directory.
func (d *Dir) SetMode(mode uint32) error { return d.root.opened(d.fd).putMode(mode) }

// owner sets uid and gid through chown, and reports whether both are then right. If not, the file
// must not get set-id bits, because it belongs to another user.
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

// setAttributes sets the attributes of an open file or directory: the owner first, because that
// clears set-id bits and capabilities, and mtime last, because it marks a file as finished. It does
// not set values that are already right: a query costs a third of setting, and the target may be
// read-only. others means that the file may have extended attributes that the entry does not have.
func (r *Root) setAttributes(fd int, e *backup.Entry, others bool, report Report) {
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
	// Setting or removing an ACL changes the mode.
	changed := o.putXattrs(e.Xattrs, others, report)
	if st.Mode&0o7777 != mode || chown || changed {
		if err := o.putMode(mode); err != nil {
			report("chmod", err)
		}
	}
	if mtimeOf(&st) == e.Mtime {
		return
	}
	if err := o.putTime(e.Mtime); err != nil {
		report("set time", err)
	}
}

// Apply sets the attributes of a name that is not a directory, without opening it. have is the
// existing entry; others is as in setAttributes.
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
	if have.Mtime == e.Mtime {
		return
	}
	if err := d.putTimeAt(name, e.Mtime); err != nil {
		report("set time", err)
	}
}

// applyThroughProc sets the attributes for which no call is relative to a directory and does not
// follow symlinks. The descriptor refers to the inode, so the file cannot be exchanged in between.
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
	changed := o.putXattrs(e.Xattrs, others, report)
	if chmod || e.Kind != backup.Symlink && changed {
		if err := o.putMode(mode); err != nil {
			report("chmod", err)
		}
	}
}

// putMode sets the mode. The kernel silently clears set-id bits that the caller may not set, so
// putMode verifies the mode if it has such bits.
func (o object) putMode(mode uint32) error {
	if err := o.chmod(mode); err != nil || mode&(unix.S_ISUID|unix.S_ISGID|unix.S_ISVTX) == 0 {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(o.fd, &st); err != nil {
		return err
	}
	if got := st.Mode & 0o7777; got != mode {
		return fmt.Errorf("mode %04o became %04o: %w; set-id bits take membership of the file's group, or root with CAP_FSETID", mode, got, ErrNotTaken)
	}
	return nil
}

// Times that every file system can store: FAT begins in 1980, in local time, and 32 bits end in
// 2038.
const (
	firstSureSeconds = 315_619_200 // 1980-01-02
	lastSureSeconds  = 1<<31 - 1
	roundingSeconds  = 2 // of FAT
)

// checkTime returns an error if the target has stored a different time than mtime. The kernel
// changes times silently if the file system cannot store them. Rounding is not an error. Times that
// every file system can store are not checked.
func checkTime(mtime backup.Time, stat func(*unix.Stat_t) error) error {
	if mtime.Sec >= firstSureSeconds && mtime.Sec < lastSureSeconds {
		return nil
	}
	var st unix.Stat_t
	if err := stat(&st); err != nil {
		return err
	}
	got := mtimeOf(&st)
	if got.Sec >= mtime.Sec-roundingSeconds && got.Sec <= mtime.Sec+roundingSeconds {
		return nil
	}
	const layout = "2006-01-02 15:04:05"
	return fmt.Errorf("%s became %s: %w", mtime.Time().UTC().Format(layout), got.Time().UTC().Format(layout), ErrNotTaken)
}

func (o object) putTime(mtime backup.Time) error {
	if err := o.setTime(mtime); err != nil {
		return err
	}
	return checkTime(mtime, func(st *unix.Stat_t) error { return unix.Fstat(o.fd, st) })
}

func (d *Dir) putTimeAt(name string, mtime backup.Time) error {
	if err := d.root.setTimeAt(d.fd, name, mtime); err != nil {
		return err
	}
	return checkTime(mtime, func(st *unix.Stat_t) error { return unix.Fstatat(d.fd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// putXattrs sets the wanted attributes and, with others, removes all that are not wanted. It
// reports whether it tried to change anything.
func (o object) putXattrs(wanted []backup.Xattr, others bool, report Report) (changed bool) {
	var have map[string]struct{}
	if others {
		names, err := xattrNames(o.listXattrs)
		if err != nil {
			report("list xattrs", err)
		}
		have = make(map[string]struct{}, len(names))
		for _, name := range names {
			have[name] = struct{}{}
		}
		changed = o.removeOtherXattrs(names, wanted, report)
	}
	for _, x := range wanted {
		if _, ok := have[x.Name]; ok && o.hasXattr(x.Name, x.Value) {
			continue
		}
		changed = true
		if err := o.setXattr(x.Name, x.Value); err != nil {
			report("set xattr "+x.Name, err)
		}
	}
	return changed
}

// removeOtherXattrs removes those of names that are not wanted, and reports whether there were any.
// It also removes an access ACL with a different value, because setting the wanted one may fail.
func (o object) removeOtherXattrs(names []string, wanted []backup.Xattr, report Report) (removed bool) {
	values := valuesOf(wanted)
	for _, name := range names {
		value, ok := values[name]
		if !isOurs(name) || ok && (name != xattrAccessACL || o.hasXattr(name, value)) {
			continue
		}
		removed = true
		if err := o.removeXattr(name); err != nil {
			report("remove xattr "+name, err)
		}
	}
	return removed
}

// isOurs reports whether an attribute is removed if it is not wanted. Attributes that belong to the
// system (security.selinux …) stay, except rights that a file gives to the user who runs it.
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

// HasXattrs reports whether a name has the wanted extended attributes and, with others, no other
// ones. It is false if the attributes cannot be read.
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
		if !isXattr(value, func(buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) }) {
			return false
		}
	}
	return true
}

// listXattrs is llistxattr(2) of a name in the directory. An entry that is kept costs only this
// call and its stat. listxattrat(2), of Linux 6.13, takes a quarter of the time of a path through
// /proc.
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
		case unix.ENOSYS, unix.EPERM: // a sandbox that does not know the call may return EPERM
			d.root.noListxattrat.Store(true)
		default:
			return 0, errno
		}
	}
	return unix.Llistxattr(procPath(d.fd)+"/"+name, buf)
}

// isXattr reports whether get, which is getxattr(2), puts value into a buffer.
func isXattr(value []byte, get func(buf []byte) (int, error)) bool {
	buf := make([]byte, len(value)+1)
	n, err := ignoringEINTR(func() (int, error) { return get(buf) })
	return err == nil && bytes.Equal(buf[:n], value)
}

func (o object) hasXattr(name string, value []byte) bool {
	return isXattr(value, func(buf []byte) (int, error) {
		if o.path != "" {
			return unix.Getxattr(o.path, name, buf)
		}
		return unix.Fgetxattr(o.fd, name, buf)
	})
}

// xattrNames returns the names that list, which is listxattr(2), puts into a buffer. It returns
// none if the file system has no extended attributes.
func xattrNames(list func(buf []byte) (int, error)) (names []string, err error) {
	var buf []byte
	for {
		n, err := ignoringEINTR(func() (int, error) { return list(buf) })
		switch {
		case errors.Is(err, unix.ENOTSUP) || err == nil && n == 0:
			return nil, nil
		case errors.Is(err, unix.ERANGE): // an attribute was added
			buf = nil
		case err != nil:
			return nil, err
		case buf == nil: // the call returned the size
			buf = make([]byte, n)
		default:
			for name := range bytes.SplitSeq(bytes.TrimSuffix(buf[:n], []byte{0}), []byte{0}) {
				names = append(names, string(name))
			}
			return names, nil
		}
	}
}
