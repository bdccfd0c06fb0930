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

// tempPrefix begins the names of what is not finished.
const tempPrefix = ".bctl-restore-"

// ownPrefix begins those of one snapshot.
func ownPrefix(salt []byte) string {
	sum := blake3.Sum256(salt)
	return tempPrefix + hex.EncodeToString(sum[:4]) + "-"
}

// IsOwn reports whether a name is one that unfinished files of the snapshot
// have.
func (r *Root) IsOwn(name string) bool { return strings.HasPrefix(name, r.own) }

// tempName returns the temporary name for name in d: the same whenever this
// snapshot is restored to this place.
func (d *Dir) tempName(name string) string {
	h := blake3.New()
	h.Write(d.root.o.Salt)
	_, _ = h.WriteString(d.path + "/" + name) // a hash takes everything
	var sum [12]byte
	h.Digest().Read(sum[:])
	return d.root.own + hex.EncodeToString(sum[:])
}

// Stat returns the attributes of a name without following it, with the target
// of a symlink but without xattrs. fs.ErrNotExist: the name is free.
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
		Mtime: mtimeOf(st),
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

// A Made says what Mkdir found.
type Made struct {
	Existed bool
	// Before is what the directory was, before anything was done to it; nil for one that is new.
	Before *backup.Entry
	// Inherits: what is made in the directory may get a group or an ACL from it.
	Inherits bool
}

// Mkdir makes the directory name, mode 0700. Unless it has to be new, Mkdir takes the one that is there,
// which becomes accessible to its owner (Finish sets the mode). Anything else of that name is fs.ErrExist.
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
			return Made{}, fmt.Errorf("%q is there and no directory: %w", name, fs.ErrExist)
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

// MakeUsable is Mkdir for the target itself. now is what it was.
func (r *Root) MakeUsable() (made Made, now backup.Entry, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return Made{}, now, err
	}
	made, err = r.inspect(r.fd, "", !r.created)
	return made, entryOf("", &st), err
}

// inspect makes an open directory usable for its owner and finds out what it
// hands down. A new one loses what it was handed down itself.
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
	// Of NFSv4's ACLs nothing tells whether they are handed down. Where the directory has not our group, it may be
	// mounted so that what is made in it gets the directory's.
	otherwise := st.Gid != r.egid && !setgid || hasXattrNow(fd, xattrNFS4ACL)
	made := Made{Existed: existed, Inherits: setgid || hasACL || otherwise}
	if existed {
		before := entryOf("", &st)
		made.Before = &before
		return made, r.makeUsable(fd, &st)
	}
	o := r.opened(fd)
	if hasACL {
		// FinishDirectory sets those of the snapshot, and reports what it cannot remove.
		_ = o.removeXattr(xattrDefaultACL)
		_ = o.removeXattr(xattrAccessACL)
	}
	if setgid {
		_ = o.chown(-1, int(r.egid)) // FinishDirectory sets the group, and reports where it cannot
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

// makeUsable gives the owner of an open directory the rights to work in it,
// where they are missing. In one that is read-only, there may be nothing to do.
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

// unlock opens a directory that its owner has locked himself out of, and gives
// him access to it. before is what it was. What cannot be opened is locked again.
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
		return -1, nil, unix.EACCES // which says more
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
	// A descriptor of its own: the offset of d's is shared by all its users.
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
