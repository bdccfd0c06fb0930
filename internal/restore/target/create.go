//go:build linux

package target

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// A CreateOptions controls how a name is created.
type CreateOptions struct {
	// Temporary: the file is created under a temporary name and renamed when it is finished.
	Temporary bool
	// Keep: if the name exists by the time of the rename, it stays, and Finish returns fs.ErrExist.
	Keep bool
	// Fresh: the name did not exist when it was looked up. If it exists by the time of the rename,
	// Finish returns fs.ErrExist.
	Fresh bool
	// Inherits is the directory's Made.Inherits.
	Inherits bool
	// InPlace, if not nil, is the existing file whose content is changed. It is not replaced.
	InPlace *backup.Entry
}

// A File is a regular file that is being written. It belongs to one goroutine at a time.
type File struct {
	dir   *Dir
	name  string // current name
	final string
	how   CreateOptions
	fd    int
	inode uint64 // set by Park
	wrote bool
}

// Create creates the file that e describes, without content. If the name exists and how is not
// Temporary, the error is fs.ErrExist. The directory must stay open until Finish or Discard.
func (d *Dir) Create(e *backup.Entry, how CreateOptions) (*File, error) {
	f := &File{dir: d, name: e.Name, final: e.Name, how: how}
	if how.InPlace != nil {
		if err := f.openInPlace(e); err != nil {
			return nil, err
		}
		return f, nil
	}
	if how.Temporary {
		f.name = d.tempName(e.Name)
	}
	mode := d.root.firstMode(e, how)
	var err error
	f.fd, err = d.root.createAt(d.fd, f.name, mode)
	if errors.Is(err, fs.ErrExist) && how.Temporary {
		if err := d.Remove(f.name); err != nil { // left by an interrupted restore
			return nil, err
		}
		f.fd, err = d.root.createAt(d.fd, f.name, mode)
	}
	if err == nil && how.Temporary {
		d.removeEarlier(e.Name)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// firstMode is the mode that e's file is created with. It is the final mode, less the umask, if the
// file belongs to the current user and group and can be reopened for writing; otherwise 0600.
func (r *Root) firstMode(e *backup.Entry, how CreateOptions) uint32 {
	const rights = unix.S_IRWXU | unix.S_IRWXG | unix.S_IRWXO
	ours := e.UID == r.euid && e.GID == r.egid
	if !ours || how.Inherits || len(e.Xattrs) > 0 || e.Mode&^rights != 0 || e.Mode&unix.S_IWUSR == 0 {
		return unix.S_IRUSR | unix.S_IWUSR
	}
	return e.Mode
}

// WriteAt writes all of p at offset.
func (f *File) WriteAt(p []byte, offset int64) (int, error) {
	if f.fd < 0 {
		if err := f.reopen(); err != nil {
			return 0, err
		}
	}
	f.wrote = f.wrote || len(p) > 0
	written := 0
	for written < len(p) {
		n, err := f.dir.root.write(f.fd, p[written:], offset+int64(written))
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// Park closes the descriptor until the next WriteAt or Finish.
func (f *File) Park() error {
	if f.fd < 0 {
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	f.inode = st.Ino
	return errors.Join(err, f.close())
}

// reopen opens a parked file again. It fails if another file has taken its place.
func (f *File) reopen() error {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(f.dir.fd, f.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != f.inode || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return fmt.Errorf("%q changed while it was restored: %w", f.final, errors.Join(err, backup.ErrOutside))
	}
	f.fd = fd
	return nil
}

func (f *File) close() error {
	fd := f.fd
	f.fd = -1
	return f.dir.root.close(fd)
}

// Finish gives the file its size (ranges that were not written are holes), attributes and name, and
// closes it. end is the end offset of the data that was written. If Finish returns an error, it has
// removed the file, unless it was changed in place.
func (f *File) Finish(e *backup.Entry, end int64, report Report) error {
	err := f.tryFinish(e, end, report)
	if err != nil {
		f.Discard()
	}
	return err
}

func (f *File) tryFinish(e *backup.Entry, end int64, report Report) error {
	if _, err := f.WriteAt(nil, 0); err != nil { // reopens a parked file
		return err
	}
	if f.how.InPlace != nil {
		if err := f.finishContent(e.Size); err != nil {
			return err
		}
	} else if end < e.Size {
		if err := f.dir.root.truncate(f.fd, e.Size); err != nil {
			return err
		}
	}
	f.dir.root.setAttributes(f.fd, e, f.how.Inherits, report)
	if err := f.close(); err != nil { // NFS reports a full disk here
		return err
	}
	return f.dir.rename(f.name, f.final, f.how)
}

// Discard closes and removes a file that cannot be finished. It returns no error, because the
// caller already has the one that matters. A file that cannot be removed gets a current mtime, so
// it does not look finished, and the next restore to this place finds it by its name and writes it
// again.
func (f *File) Discard() {
	if f.fd >= 0 {
		_ = f.close()
	}
	if f.how.InPlace != nil {
		return // its mtime is not the snapshot's
	}
	if err := f.dir.Remove(f.name); err != nil && f.name == f.final {
		_ = f.dir.root.setTimeAt(f.dir.fd, f.name, backup.TimeOf(time.Now()))
	}
}

// rename gives the final name to what was created under a temporary one.
func (d *Dir) rename(from, to string, how CreateOptions) error {
	if !how.Temporary {
		return nil
	}
	replace := !how.Keep && !how.Fresh
	err := d.root.renameAt(d.fd, from, to, replace)
	if replace || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// The file system, such as NFS, has no rename that fails if the name exists.
	if how.Keep {
		if err := d.root.linkAt(d.fd, from, d.fd, to); err != nil {
			return err
		}
		return d.root.unlinkAt(d.fd, from, 0)
	}
	d.renaming.Lock() // for two names that the file system considers equal
	defer d.renaming.Unlock()
	if _, err := d.Stat(to); err == nil {
		return fmt.Errorf("%q: %w", to, fs.ErrExist)
	}
	return d.root.renameAt(d.fd, from, to, true)
}

// MakeSpecial creates a symlink, fifo, socket or device with all its attributes.
func (d *Dir) MakeSpecial(e *backup.Entry, how CreateOptions, report Report) error {
	return d.make(e.Name, how, func(name string) error {
		if err := d.mknod(name, e); err != nil {
			return err
		}
		// Its attributes depend on the umask, the directory, and a server that maps users.
		have, err := d.Stat(name)
		if err != nil {
			return err
		}
		d.Apply(name, e, &have, how.Inherits, report)
		return nil
	})
}

func (d *Dir) mknod(name string, e *backup.Entry) error {
	types := map[backup.Kind]uint32{
		backup.FIFO: unix.S_IFIFO, backup.Socket: unix.S_IFSOCK, backup.CharDev: unix.S_IFCHR, backup.BlockDev: unix.S_IFBLK,
	}
	if e.Kind == backup.Symlink {
		return d.root.symlinkAt(e.Target, d.fd, name)
	}
	bits, ok := types[e.Kind]
	if !ok {
		return fmt.Errorf("kind %d: %w", e.Kind, backup.ErrInvalid)
	}
	return d.root.mknodAt(d.fd, name, bits|0o600, e.Rdev)
}

// Link makes name another name of oldName in from.
func (d *Dir) Link(from *Dir, oldName, name string, how CreateOptions) error {
	return d.make(name, how, func(name string) error {
		return d.root.linkAt(from.fd, oldName, d.fd, name)
	})
}

// make calls create with the name that how requires, and then renames.
func (d *Dir) make(name string, how CreateOptions, create func(name string) error) error {
	if !how.Temporary {
		return create(name)
	}
	temp := d.tempName(name)
	err := create(temp)
	if errors.Is(err, fs.ErrExist) {
		if err := d.Remove(temp); err != nil {
			return err
		}
		err = create(temp)
	}
	if err != nil {
		return err
	}
	d.removeEarlier(name)
	if err := d.rename(temp, name, how); err != nil {
		_ = d.Remove(temp) // a file that stays is replaced by the next restore to this place
		return err
	}
	return nil
}

// OpenRead opens a regular file of the target to compare its content.
func (d *Dir) OpenRead(name string) (*os.File, error) {
	fd, err := d.openMode(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, errors.Join(fmt.Errorf("%q is not a regular file: %w", name, backup.ErrInvalid), err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
