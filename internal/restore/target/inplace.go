//go:build linux

package target

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// A file that is changed in place has the snapshot's mtime only when it has the snapshot's content,
// also after a loss of power. A kernel may write data and mtime to the disk in any order, so an
// mtime that is the snapshot's already is changed, and synced, before the first write; and the data
// is synced before the mtime is set.

// MayWrite reports whether the existing file can be changed in place.
func (d *Dir) MayWrite(have *backup.Entry) bool {
	fd, err := d.openExisting(have)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// openExisting opens the existing file, if it is still the one that have describes and has no other
// names.
func (d *Dir) openExisting(have *backup.Entry) (int, error) {
	fd, err := d.openMode(have.Name, unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != have.Inode || st.Dev != have.Device || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		unix.Close(fd)
		return -1, fmt.Errorf("%q changed while it was restored: %w", have.Name, errors.Join(err, backup.ErrOutside))
	}
	return fd, nil
}

func (f *File) openInPlace(e *backup.Entry) (err error) {
	if f.fd, err = f.dir.openExisting(f.how.InPlace); err != nil {
		return err
	}
	f.inode = f.how.InPlace.Inode
	if f.how.InPlace.Mtime.Sec != e.Mtime.Sec { // the file system may not store more
		return nil
	}
	r := f.dir.root
	if err = r.opened(f.fd).setTime(backup.TimeOf(time.Now())); err == nil {
		err = r.syncFile(f.fd, e.Name)
	}
	if err != nil {
		_ = f.close()
	}
	return err
}

// Clear makes a range of a file that is changed in place a hole, or, if the file system has none,
// zeros.
func (f *File) Clear(from, to int64) error {
	if _, err := f.WriteAt(nil, 0); err != nil { // reopens a parked file
		return err
	}
	f.wrote = true
	err := f.dir.root.punch(f.fd, from, to-from)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	zeros := make([]byte, min(to-from, 1<<20))
	for from < to {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-from)], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// finishContent gives a file that was changed in place its size, and waits until its content is on
// the disk.
func (f *File) finishContent(size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return err
	}
	if st.Size != size {
		f.wrote = true
		if err := f.dir.root.truncate(f.fd, size); err != nil {
			return err
		}
	}
	if !f.wrote {
		return nil
	}
	return f.dir.root.syncFile(f.fd, f.final)
}
