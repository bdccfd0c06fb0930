//go:build linux

package target

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// Remove removes a name: anything but a directory, or an empty directory.
func (d *Dir) Remove(name string) error {
	err := d.root.unlinkAt(d.fd, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if asDirectory := d.root.unlinkAt(d.fd, name, unix.AT_REMOVEDIR); !errors.Is(asDirectory, unix.ENOTDIR) {
		return asDirectory
	}
	return err
}

// IsEmpty reports whether the directory name is empty.
func (d *Dir) IsEmpty(name string) (bool, error) {
	below, err := d.below(name)
	if err != nil {
		return false, err
	}
	defer unix.Close(below.fd)
	taken, err := below.HasName(func(string) bool { return true })
	return err == nil && !taken, err
}

// HasName reports whether is returns true for any name in the directory.
func (d *Dir) HasName(is func(name string) bool) (bool, error) {
	found := errors.New("found")
	err := d.Names(func(name string) error {
		if is(name) {
			return found
		}
		return nil
	})
	if errors.Is(err, found) {
		return true, nil
	}
	return false, err
}

const (
	// maxRemoveDepth bounds the descriptors that RemoveAll holds.
	maxRemoveDepth = 512
	// maxStuck bounds the names per directory that RemoveAll remembers because they stay.
	maxStuck = 4096
)

// A Removal controls RemoveAll. Paths are relative to the target.
type Removal struct {
	// DryRun removes nothing, but calls the functions as if it did.
	DryRun bool
	// Keep reports whether a name stays, and with it the directories that contain it. A file at
	// which another file is mounted has the flag Boundary.
	Keep func(path string, e *backup.Entry) bool
	// Marker reports whether a directory that contains such a name stays with everything below it.
	// If it is nil, no directory does.
	Marker func(name string) bool
	// Removed is called with each name that was removed; a directory follows its content.
	Removed func(path string, e *backup.Entry)
	// Failed is called with each name that cannot be removed. The rest continues.
	Failed func(path string, err error)
}

// RemoveAll removes a name and everything below it. It crosses no symlink and no mount point. It
// reports whether nothing is left.
func (d *Dir) RemoveAll(name string, how *Removal) (gone bool) { return d.removeAll(name, how, 0) }

func (d *Dir) removeAll(name string, how *Removal, depth int) (gone bool) {
	path := backup.Join(d.path, name)
	e, err := d.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true
	case err != nil:
		how.Failed(path, err)
		return false
	}
	if e.Kind != backup.Directory && d.isMountedFile(name) {
		e.Flags |= backup.Boundary
	}
	switch {
	case how.Keep(path, &e):
		return false
	case e.Flags&backup.Boundary != 0:
		how.Failed(path, errMountedFile)
		return false
	}
	if e.Kind == backup.Directory {
		left, err := d.emptied(name, how, depth)
		if err != nil {
			how.Failed(path, err)
		}
		if err != nil || left {
			return false
		}
	}
	if !how.DryRun {
		if err := d.Remove(name); err != nil {
			how.Failed(path, err)
			return false
		}
	}
	how.Removed(path, &e)
	return true
}

// emptied removes the content of the directory name, and reports whether anything is left.
func (d *Dir) emptied(name string, how *Removal, depth int) (left bool, err error) {
	if depth >= maxRemoveDepth {
		return true, errors.New("the directory is too deep to be removed")
	}
	below, err := d.below(name)
	if err != nil {
		return true, err
	}
	defer unix.Close(below.fd)
	if mounted, err := d.IsMounted(below); mounted || err != nil {
		if err == nil {
			err = ErrMounted
		}
		return true, err
	}
	if how.Marker != nil {
		if marked, err := below.HasName(how.Marker); marked || err != nil {
			return true, err
		}
	}
	// Names that stay are read again, and must not be reported again.
	stuck := make(map[string]struct{})
	// A file system may skip names of a directory from which others are removed, so the directory
	// is read until a pass removes nothing.
	for progress := true; progress && len(stuck) < maxStuck; {
		progress = false
		err := below.Names(func(n string) error {
			if _, ok := stuck[n]; ok {
				return nil
			}
			if below.removeAll(n, how, depth+1) {
				progress = !how.DryRun
				return nil
			}
			left = true
			if len(stuck) < maxStuck {
				stuck[n] = struct{}{}
			}
			return nil
		})
		if err != nil {
			return true, err
		}
	}
	return left, nil
}

// below opens a directory for one caller, who closes its descriptor.
func (d *Dir) below(name string) (*Dir, error) {
	fd, err := d.openMode(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &Dir{root: d.root, path: backup.Join(d.path, name), fd: fd}, nil
}

// ErrMounted is the reason why nothing is deleted in a directory.
var ErrMounted = errors.New("another file system is mounted here; nothing on it was deleted")

// IsMounted reports whether another file system is mounted at below, which is a directory in d.
func (d *Dir) IsMounted(below *Dir) (bool, error) {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(d.fd, &a), unix.Fstat(below.fd, &b)); err != nil {
		return false, err
	}
	return a.Dev != b.Dev || isMountRoot(below.fd), nil
}

var errMountedFile = errors.New("another file is mounted here; neither was deleted")

// isMountedFile reports whether something is mounted at a name that is not a directory; false if
// the kernel does not report it.
func (d *Dir) isMountedFile(name string) bool {
	var st unix.Statx_t
	err := unix.Statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// isMountRoot reports whether something is mounted at a directory, including a part of the same
// file system; false if the kernel does not report it (before 5.8).
func isMountRoot(fd int) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
