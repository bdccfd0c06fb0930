//go:build linux

package target

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Several processes may restore into one target, each a part. The first one leaves a mark, which
// the others look for: without it, they see another directory, such as an empty mount point.

// ErrOther reports that the target is not the directory in which the other processes restore.
var ErrOther = errors.New("it is not the directory that the other restorers see: is its file system mounted here?")

// A Joined describes how one of several processes opens the target.
type Joined struct {
	// Mark is the name of the mark that Claim has left.
	Mark string
	// Inode, if not 0, also proves that the target is the right one: the last process may have
	// removed the mark before it was killed.
	Inode uint64
	// Attempt numbers the attempts at the part, from 1. Each has temporary names of its own,
	// because an earlier one may still run.
	Attempt int
}

// maxEarlier bounds the earlier attempts whose temporary files are looked for.
const maxEarlier = 64

// JointMark returns the name of the mark of the restore with an id.
func JointMark(id [16]byte) string { return fmt.Sprintf("%sfleet-%x", tempPrefix, id) }

// Claim leaves the mark in the target, and returns the target's inode.
func (r *Root) Claim(mark string) (inode uint64, err error) {
	fd, err := r.createAt(r.fd, mark, unix.S_IRUSR|unix.S_IWUSR)
	switch {
	case err == nil:
		err = r.close(fd)
	case errors.Is(err, fs.ErrExist): // an earlier attempt has left it
		err = nil
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(r.fd, &st)
	}
	if err == nil {
		err = ignoreNoSync(unix.Fsync(r.fd))
	}
	if err != nil {
		return 0, fmt.Errorf("write to target %s: %w", r.o.Path, err)
	}
	return st.Ino, nil
}

// ignoreNoSync ignores that a file system has no fsync of directories.
func ignoreNoSync(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// Unclaim removes the mark of a joint restore.
func (r *Root) Unclaim() error {
	err := r.unlinkAt(r.fd, r.o.Joined.Mark, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// joins returns an error unless the target is that of the joint restore.
func (r *Root) joins() error {
	j := r.o.Joined
	if j == nil {
		return nil
	}
	var mark, dir unix.Stat_t
	err := unix.Fstatat(r.fd, j.Mark, &mark, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && mark.Mode&unix.S_IFMT == unix.S_IFREG {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look into target %s: %w", r.o.Path, err)
	}
	if err := unix.Fstat(r.fd, &dir); err != nil {
		return fmt.Errorf("look at target %s: %w", r.o.Path, err)
	}
	if j.Inode != 0 && dir.Ino == j.Inode {
		return nil
	}
	return fmt.Errorf("target %s: %w", r.o.Path, ErrOther)
}

func (r *Root) attempt() int {
	if r.o.Joined == nil {
		return 0
	}
	return r.o.Joined.Attempt
}

// removeEarlier removes what earlier attempts have left under their temporary names for name.
func (d *Dir) removeEarlier(name string) {
	for n := min(d.root.attempt()-1, maxEarlier); n > 0; n-- {
		_ = d.root.unlinkAt(d.fd, d.tempNameOf(name, n), 0) // there is none, as a rule
	}
}
