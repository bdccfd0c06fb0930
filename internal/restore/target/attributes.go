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

// ErrNotTaken: a call returned no error, and yet the target has another value.
var ErrNotTaken = errors.New("the target does not keep it")

// A Report is called with each attribute that could not be set.
type Report func(op string, err error)

// FinishDirectory sets a directory's attributes, when nothing in it changes any more. alone: it keeps the extended
// attributes that it has and the entry has not.
func (d *Dir) FinishDirectory(e *backup.Entry, alone bool, report Report) {
	d.root.finish(d.fd, e, !alone, report)
}

// SetTime sets the mtime of a directory.
func (d *Dir) SetTime(mtime backup.Time) error { return d.root.opened(d.fd).putTime(mtime) }

// SetMode sets the mode of a directory.
func (d *Dir) SetMode(mode uint32) error { return d.root.opened(d.fd).putMode(mode) }

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
// because that clears set-id bits and capabilities, and mtime last, because it
// marks a file as finished. What is right already is left alone: asking costs a
// third of setting, and the target may be read-only. others: it may have
// extended attributes that the entry does not have.
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
	// Setting an ACL, and removing one, changes the mode.
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
	if have.Mtime == e.Mtime {
		return
	}
	if err := d.putTimeAt(name, e.Mtime); err != nil {
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
	changed := o.putXattrs(e.Xattrs, others, report)
	if chmod || e.Kind != backup.Symlink && changed {
		if err := o.putMode(mode); err != nil {
			report("chmod", err)
		}
	}
}

// putMode sets the mode. The kernel silently clears set-id bits that the caller
// may not give: that costs a look, where there are such bits.
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

// Times that every file system holds: FAT begins in 1980, local time, and 32 bits end in 2038.
const (
	firstSureSeconds = 315_619_200 // 1980-01-02
	lastSureSeconds  = 1<<31 - 1
	roundingSeconds  = 2 // of FAT
)

// checkTime fails where the target has made another time of mtime, which the
// kernel does silently where the file system does not hold it. Rounding is no error.
// Times that every file system holds are not looked at.
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

// putXattrs sets what is wanted, with others removes what is not, and reports
// whether it has tried to change anything.
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

// removeOtherXattrs removes those of names that are not wanted, and reports
// whether there were any. An access ACL with another value goes, too: the one
// that is wanted may be refused.
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

// HasXattrs reports whether a name has the extended
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
		if !isXattr(value, func(buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) }) {
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

// isXattr reports whether get, as getxattr(2) does, puts value into a buffer.
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
