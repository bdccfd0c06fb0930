//go:build linux

package posix

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

type directory struct {
	tree *tree
	path string
	fd   int
	self backup.Entry

	denied  syscall.Errno // why it could not be opened for listing; otherwise 0
	pending *pending      // of a buffer that was partly read; nil: nothing
}

// pending is the rest of a getdents64 buffer.
type pending struct {
	dents   []byte
	records []record
}

const (
	// readFor is the time limit for the stats of one Read, so that its caller notices a slow file
	// server while that still answers. It is checked every readCheck entries.
	readFor   = time.Second
	readCheck = 64
)

func (d *directory) Self() backup.Entry { return d.self }

func (d *directory) Close() error {
	if d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	return unix.Close(fd)
}

// Read makes one getdents64 call, and one statx for each entry in it that is not a directory.
// Entries that it has not read with statx within readFor are left for the next call. The names of
// one call share one allocation.
func (d *directory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	if err := ctx.Err(); err != nil {
		return dst, 0, err
	}
	if d.denied != 0 {
		return dst, 0, &fs.PathError{Op: "list", Path: d.path, Err: asError(d.denied)}
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	namesBytes, err := d.fill(s)
	if err != nil {
		return dst, 0, err
	}
	started := time.Now()
	dst = slices.Grow(dst, len(s.records))
	var names strings.Builder
	names.Grow(namesBytes)
	statCalls := 0
	for i, r := range s.records {
		if i%readCheck == 0 && i > 0 && time.Since(started) >= d.tree.readFor {
			d.keep(s, s.records[i:])
			break
		}
		from := names.Len()
		names.Write(s.dents[r.start:r.end])
		name := names.String()[from:]
		dst = dst[:len(dst)+1]
		e := &dst[len(dst)-1]
		*e = backup.Entry{Name: name}
		if r.kind == unix.DT_DIR {
			e.Kind, e.Inode = backup.Directory, r.inode
			continue
		}
		statCalls++
		if op, err := d.stat(s, r, e); err != nil {
			dst = dst[:len(dst)-1]
			problem(name, op, err)
		}
	}
	return dst, statCalls, nil
}

// fill puts the next entries into s: those that the last Read left, or another buffer. It returns
// the total length of their names.
func (d *directory) fill(s *scratch) (namesBytes int, err error) {
	if p := d.pending; p != nil {
		d.pending = nil
		copy(s.dents[:], p.dents)
		s.records = append(s.records[:0], p.records...)
		for _, r := range s.records {
			namesBytes += int(r.end - r.start)
		}
		return namesBytes, nil
	}
	for namesBytes == 0 { // a buffer may contain only "." and ".."
		n, errno := s.getdents(d.fd)
		if errno != 0 {
			return 0, &fs.PathError{Op: "list", Path: d.path, Err: asError(errno)}
		}
		if n == 0 {
			return 0, io.EOF
		}
		if namesBytes, err = s.parse(s.dents[:n]); err != nil {
			return 0, err
		}
	}
	if d.tree.options.SortByInode {
		slices.SortFunc(s.records, func(a, b record) int { return cmp.Compare(a.inode, b.inode) })
	}
	return namesBytes, nil
}

// keep keeps the records, and their names, for the next Read.
func (d *directory) keep(s *scratch, rest []record) {
	end := uint32(0)
	for _, r := range rest {
		end = max(end, r.end+1) // with its NUL
	}
	d.pending = &pending{dents: slices.Clone(s.dents[:end]), records: slices.Clone(rest)}
}

// stat fills e. With an error, it returns the operation that failed.
func (d *directory) stat(s *scratch, r record, e *backup.Entry) (op string, err error) {
	name := &s.dents[r.start]
	for try := 1; ; try++ {
		if errno := statEntry(d.fd, name, &s.st); errno != 0 {
			return "stat", asError(errno)
		}
		switch s.st.Mode & unix.S_IFMT {
		case unix.S_IFDIR: // the listing lacks the kind, or the entry was replaced since
			e.Kind, e.Inode = backup.Directory, r.inode
			return "", nil
		case unix.S_IFLNK:
			target, errno := readTarget(s, d.fd, name)
			if errno == unix.EINVAL && try < raceRetries { // it is no longer a symlink
				continue
			}
			if errno != 0 {
				return "readlink", asError(errno)
			}
			e.Target = target
		}
		break
	}
	if setAttributes(e, &s.st); e.Kind == 0 {
		return "stat", fmt.Errorf("file type %#o: %w", s.st.Mode&unix.S_IFMT, backup.ErrInvalid)
	}
	if known, is := d.tree.mountRoot(&s.st); is || !known && e.Device != d.self.Device {
		e.Flags |= backup.Boundary
	}
	return "", nil
}

// mountRoot reports whether the kernel marks mount points (since Linux 5.8), and whether st is
// marked as one.
func (t *tree) mountRoot(st *unix.Statx_t) (known, is bool) {
	known = st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && !t.noMountRoot
	return known, known && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// readTarget reads the target of a symlink, whose length is at most that of a path.
func readTarget(s *scratch, dir int, name *byte) (string, syscall.Errno) {
	n, errno := readlinkat(dir, name, s.path[:])
	if errno != 0 {
		return "", errno
	}
	if n == len(s.path) { // truncated
		return "", unix.ENAMETOOLONG
	}
	return string(s.path[:n]), 0
}

// OpenFile implements source.Directory.
func (d *directory) OpenFile(ctx context.Context, name string) (source.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := backup.CheckName(name); err != nil {
		return nil, err
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	fd, errno := d.tree.withoutAtime(fileFlags, func(flags int) (int, syscall.Errno) {
		return openat(d.fd, s.setPath(name), flags)
	})
	switch errno {
	case 0:
	case unix.ELOOP, unix.ENXIO, unix.ENODEV: // a symlink, a socket, a device without a driver
		return nil, &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("%w: %w", errno, source.ErrReplaced)}
	default:
		return nil, &fs.PathError{Op: "open", Path: name, Err: asError(errno)}
	}
	f := &file{tree: d.tree, fd: fd}
	if errno := statDescriptor(fd, &f.st); errno != 0 {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "stat", Path: name, Err: asError(errno)}
	}
	if backup.KindOfMode(uint32(f.st.Mode)) != backup.File {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("no regular file any more: %w", source.ErrReplaced)}
	}
	f.init()
	return f, nil
}

// A record is one entry of a getdents64 buffer.
type record struct {
	inode      uint64
	start, end uint32 // of the name; a NUL follows it
	kind       uint8  // DT_…
}

// The layout of struct linux_dirent64.
const (
	direntInode  = 0
	direntLength = 16
	direntKind   = 18
	direntName   = 19
)

// parse sets s.records to the entries in dents, which is the beginning of s.dents, and returns the
// total length of their names.
func (s *scratch) parse(dents []byte) (namesBytes int, err error) {
	s.records = s.records[:0]
	for at := 0; at < len(dents); {
		d := dents[at:]
		if len(d) <= direntName {
			return 0, fmt.Errorf("list: truncated directory entry: %w", unix.EIO)
		}
		length := int(binary.NativeEndian.Uint16(d[direntLength:]))
		if length <= direntName || length > len(d) {
			return 0, fmt.Errorf("list: directory entry of %d bytes: %w", length, unix.EIO)
		}
		end := direntName
		for end < length && d[end] != 0 {
			end++
		}
		name := d[direntName:end]
		if end == length || len(name) == 0 {
			return 0, fmt.Errorf("list: directory entry without a name: %w", unix.EIO)
		}
		if string(name) != "." && string(name) != ".." {
			s.records = append(s.records, record{
				inode: binary.NativeEndian.Uint64(d[direntInode:]),
				start: uint32(at + direntName),
				end:   uint32(at + end),
				kind:  d[direntKind],
			})
			namesBytes += len(name)
		}
		at += length
	}
	return namesBytes, nil
}

// setAttributes fills e from st, except its name and a symlink's target.
func setAttributes(e *backup.Entry, st *unix.Statx_t) {
	e.Kind = backup.KindOfMode(uint32(st.Mode))
	e.Mode = uint32(st.Mode) & 0o7777
	e.UID, e.GID, e.Nlink = st.Uid, st.Gid, st.Nlink
	e.Mtime = backup.Time{Sec: st.Mtime.Sec, Nsec: st.Mtime.Nsec}
	e.Ctime = backup.Time{Sec: st.Ctime.Sec, Nsec: st.Ctime.Nsec}
	if st.Mask&unix.STATX_BTIME != 0 {
		e.Btime = backup.Time{Sec: st.Btime.Sec, Nsec: st.Btime.Nsec}
	}
	e.Inode = st.Ino
	e.Device = unix.Mkdev(st.Dev_major, st.Dev_minor)
	switch e.Kind {
	case backup.File:
		e.Size = int64(st.Size)
	case backup.CharDev, backup.BlockDev:
		e.Rdev = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	}
}
