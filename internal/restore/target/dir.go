//go:build linux

package target

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// tempPrefix begins the names of unfinished files.
const tempPrefix = ".bctl-restore-"

// ownPrefix returns the beginning of the names of one snapshot's unfinished files.
func ownPrefix(salt []byte) string {
	sum := blake3.Sum256(salt)
	return tempPrefix + hex.EncodeToString(sum[:4]) + "-"
}

// IsOwn reports whether a name has the prefix of the snapshot's unfinished files.
func (r *Root) IsOwn(name string) bool { return strings.HasPrefix(name, r.own) }

// tempName returns the temporary name for name in d. It is the same whenever this snapshot is
// restored to this place.
func (d *Dir) tempName(name string) string { return d.tempNameOf(name, d.root.attempt()) }

func (d *Dir) tempNameOf(name string, attempt int) string {
	h := blake3.New()
	h.Write(d.root.o.Salt)
	if attempt > 0 {
		h.Write([]byte{byte(attempt), byte(attempt >> 8), byte(attempt >> 16)})
	}
	_, _ = h.WriteString(d.path + "/" + name) // a hash never fails
	var sum [12]byte
	h.Digest().Read(sum[:])
	return d.root.own + hex.EncodeToString(sum[:])
}

// Stat returns the attributes of a name, including the target of a symlink but not xattrs. It does
// not follow symlinks. fs.ErrNotExist means that the name is free.
func (d *Dir) Stat(name string) (backup.Entry, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return backup.Entry{}, err
	}
	e := entryOf(name, &st)
	if e.Kind == backup.Symlink {
		if e.Target, err = d.readlink(name); err != nil {
			return backup.Entry{}, err
		}
	}
	return e, nil
}

func (d *Dir) readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := ignoringEINTR(func() (int, error) { return unix.Readlinkat(d.fd, name, buf) })
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func entryOf(name string, st *unix.Stat_t) backup.Entry {
	e := backup.Entry{
		Kind: backup.KindOfMode(st.Mode), Name: name, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Nlink: uint32(st.Nlink),
		Mtime: mtimeOf(st), Ctime: ctimeOf(st),
		Inode: st.Ino, Device: st.Dev, Rdev: st.Rdev,
	}
	if e.Kind == backup.File {
		e.Size = st.Size
	}
	return e
}

func mtimeOf(st *unix.Stat_t) backup.Time {
	seconds, nanoseconds := st.Mtim.Unix()
	return backup.Time{Sec: seconds, Nsec: uint32(nanoseconds)}
}

func ctimeOf(st *unix.Stat_t) backup.Time {
	seconds, nanoseconds := st.Ctim.Unix()
	return backup.Time{Sec: seconds, Nsec: uint32(nanoseconds)}
}

// A Made describes the directory that Mkdir created or found.
type Made struct {
	Existed bool
	// Before is the directory's entry before anything was changed; nil for a new directory.
	Before *backup.Entry
	// Inherits means that new entries of the directory may inherit a group or an ACL from it.
	Inherits bool
}

// Mkdir creates the directory name with mode 0700. If the name exists as a directory and isNew is
// false, Mkdir uses that directory and makes it accessible to its owner; FinishDirectory sets the
// final mode. If anything else has the name, the error is fs.ErrExist.
func (d *Dir) Mkdir(name string, isNew bool) (Made, error) {
	err := d.root.mkdirAt(d.fd, name, 0o700)
	existed := errors.Is(err, unix.EEXIST)
	if err != nil && (!existed || isNew) {
		return Made{}, err
	}
	fd, err := d.openMode(name, unix.O_RDONLY|unix.O_DIRECTORY)
	var before *backup.Entry
	if existed && errors.Is(err, unix.EACCES) {
		fd, before, err = d.unlock(name)
	}
	if err != nil {
		if existed && (errors.Is(err, unix.ENOTDIR) || errors.Is(err, backup.ErrOutside)) {
			return Made{}, fmt.Errorf("%q exists and is not a directory: %w", name, fs.ErrExist)
		}
		return Made{}, err
	}
	defer unix.Close(fd)
	made, err := d.root.inspect(fd, backup.Join(d.path, name), existed)
	if before != nil {
		made.Before = before
	}
	return made, err
}

// MakeUsable is Mkdir for the target itself. now is the entry of the target before the call.
func (r *Root) MakeUsable() (made Made, now backup.Entry, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return Made{}, now, err
	}
	made, err = r.inspect(r.fd, "", !r.created)
	return made, entryOf("", &st), err
}

// inspect makes an open directory usable for its owner and determines what new entries inherit from
// it. It removes from a new directory what that directory itself has inherited.
func (r *Root) inspect(fd int, path string, existed bool) (Made, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Made{}, err
	}
	if err := r.fileSystems.meet(fd, st.Dev, filepath.Join(r.o.Path, path)); err != nil {
		return Made{}, err
	}
	hasACL := hasXattrNow(fd, xattrDefaultACL)
	setgid := st.Mode&unix.S_ISGID != 0
	// NFSv4 ACLs do not show whether they are inherited. If the directory's group is not ours, the
	// file system may be mounted so that new entries get the directory's group.
	otherwise := st.Gid != r.egid && !setgid || hasXattrNow(fd, xattrNFS4ACL)
	made := Made{Existed: existed, Inherits: setgid || hasACL || otherwise}
	if existed {
		before := entryOf("", &st)
		made.Before = &before
		return made, r.makeUsable(fd, &st)
	}
	o := r.opened(fd)
	if hasACL {
		// FinishDirectory sets those of the snapshot, and reports the ones that it cannot remove.
		_ = o.removeXattr(xattrDefaultACL)
		_ = o.removeXattr(xattrAccessACL)
	}
	if setgid {
		_ = o.chown(-1, int(r.egid)) // FinishDirectory sets the group, and reports if it cannot
		if err := o.chmod(0o700); err != nil {
			return made, err
		}
	}
	made.Inherits = otherwise
	return made, nil
}

func hasXattrNow(fd int, name string) bool {
	size, err := unix.Fgetxattr(fd, name, nil)
	return err == nil && size > 0
}

// makeUsable gives the owner of an open directory the rights to work in it, if they are missing. A
// read-only file system is not an error, because there may be nothing to do in the directory.
func (r *Root) makeUsable(fd int, st *unix.Stat_t) error {
	if st.Mode&0o700 == 0o700 || st.Uid != r.euid {
		return nil
	}
	err := unix.Faccessat(fd, ".", unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == nil || errors.Is(err, unix.EROFS) {
		return nil
	}
	if err = r.opened(fd).chmod(st.Mode&0o7777 | 0o700); errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}

// unlock opens a directory whose mode denies its owner access, after granting that access. before
// is the entry before the change. If the directory cannot be opened, unlock restores its mode.
func (d *Dir) unlock(name string) (fd int, before *backup.Entry, err error) {
	path, err := d.openMode(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, nil, err
	}
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return -1, nil, err
	}
	o := d.root.pathOnly(path)
	if err := o.chmod(st.Mode&0o7777 | 0o700); errors.Is(err, unix.EROFS) {
		return -1, nil, unix.EACCES // the more specific error
	} else if err != nil {
		return -1, nil, err
	}
	fd, err = d.openMode(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, nil, errors.Join(err, o.putMode(st.Mode&0o7777))
	}
	e := entryOf("", &st)
	return fd, &e, nil
}

// openMode opens one name of d.
func (d *Dir) openMode(name string, flags int) (int, error) {
	if err := backup.CheckName(name); err != nil {
		return -1, err
	}
	return d.root.openAt(d.fd, name, flags)
}

// Names calls yield for each name in the directory until it returns an error.
func (d *Dir) Names(yield func(name string) error) error {
	// All users of d share the offset of its descriptor, so Names opens its own.
	fd, err := d.root.openAt(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	var names []string
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil || n <= 0 {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := yield(name); err != nil {
				return err
			}
		}
	}
}
