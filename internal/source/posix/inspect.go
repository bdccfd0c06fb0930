//go:build linux

package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A Mount describes the mount of the file system that a path is on.
type Mount struct {
	Point      string // where it is mounted
	FileSystem string // ext4, nfs4 …
	Device     string // /dev/sda1, filer:/export
	Options    []string
	Root       bool // the path itself is a mount point
	FreeBytes  uint64
}

// Network reports whether the files are on another machine.
func (m *Mount) Network() bool {
	switch m.FileSystem {
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.ceph", "afs", "9p", "gpfs", "beegfs", "fuse.s3fs":
		return true
	}
	return false
}

// Option returns the value of a mount option ("vers" of vers=4.2), and whether it is set.
func (m *Mount) Option(name string) (value string, ok bool) {
	for _, o := range m.Options {
		if key, value, _ := strings.Cut(o, "="); key == name {
			return value, true
		}
	}
	return "", false
}

// MountOf returns the mount that a path is on.
func MountOf(path string) (Mount, error) {
	var m Mount
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st); err != nil {
		return m, rootError(path, err)
	}
	m.Root = st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	var space unix.Statfs_t
	if err := unix.Statfs(path, &space); err != nil {
		return m, rootError(path, err)
	}
	m.FreeBytes = space.Bavail * uint64(space.Bsize)
	mounts, err := readMounts()
	if err != nil {
		return m, err
	}
	err = m.find(mounts, st.Mnt_id)
	return m, err
}

// find sets the fields that the mount table has for this id.
func (m *Mount) find(mounts []mounted, id uint64) error {
	for _, at := range mounts {
		if at.id == id {
			m.Point, m.FileSystem, m.Device, m.Options = at.point, at.fileSystem, at.source, at.options
			return nil
		}
	}
	return fmt.Errorf("mount %d is not in %s: %w", id, mountTable, backup.ErrNotFound)
}

// A Survey is the result of a short walk of a tree.
type Survey struct {
	Entries, Directories int
	Median, P99          time.Duration // of a stat
	Denied               int           // entries without stat, or directories without a listing
	DeniedPath           string        // one of them
	Openat2              bool          // the kernel resolves beneath the root
	NoAtimeDenied        bool          // O_NOATIME is not permitted: reading changes atimes
	File                 string        // the file that was opened; empty: none
	FileError            error         // error of reading it
	XattrError           error         // error of reading its extended attributes
	Uncached             bool          // RWF_DONTCACHE works: pages that are read do not stay
	Cachestat            bool          // otherwise: the kernel reports what is cached
	Grain                time.Duration // of change times: all that were seen are multiples of it
	Newest               time.Time     // change time
}

// Survey walks the tree at path, breadth first, until it has read the given number of entries with
// stat, and opens one of the files. It makes the same calls as a backup, and changes nothing.
// Errors are those of Open.
func (s *Source) Survey(ctx context.Context, path string, entries int) (Survey, error) {
	t, err := s.open(URL(path))
	if err != nil {
		return Survey{}, err
	}
	defer t.Close()
	w := surveyor{tree: t, limit: entries, seen: Survey{Openat2: !t.noOpenat2, Grain: time.Second}}
	for todo := []string{""}; len(todo) > 0 && len(w.times) < entries && w.seen.Directories < entries; todo = todo[1:] {
		below, err := w.directory(ctx, todo[0])
		if err != nil {
			return w.seen, err
		}
		todo = append(todo, below[:min(len(below), entries)]...)
	}
	slices.Sort(w.times)
	if n := len(w.times); n > 0 {
		w.seen.Median, w.seen.P99 = w.times[n/2], w.times[n*99/100]
	}
	w.seen.Entries, w.seen.NoAtimeDenied = len(w.times), t.noAtimeDenied.Load()
	return w.seen, nil
}

type surveyor struct {
	tree  *tree
	limit int
	seen  Survey
	times []time.Duration
}

// directory reads the entries of one directory, and returns the subdirectories.
func (w *surveyor) directory(ctx context.Context, path string) (below []string, err error) {
	w.seen.Directories++
	opened, err := w.tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, w.skip(ctx, path, err)
	}
	d := opened.(*directory)
	defer d.Close()
	if d.denied != 0 {
		return nil, w.skip(ctx, path, d.denied)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for len(w.times) < w.limit {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		_, err := d.fill(s)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return below, w.skip(ctx, path, err)
		}
		for _, r := range s.records {
			if len(w.times) >= w.limit {
				break
			}
			name := string(s.dents[r.start:r.end])
			at := strings.TrimPrefix(path+"/"+name, "/")
			if r.kind == unix.DT_DIR {
				below = append(below, at)
				continue
			}
			w.entry(ctx, s, d, r, name, at)
		}
	}
	return below, nil
}

// skip records a path that could not be read. For the root, it returns an error.
func (w *surveyor) skip(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if path == "" {
		return fmt.Errorf("list %q: %w", w.tree.path, err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		w.seen.Denied++
		w.seen.DeniedPath = path
	}
	return nil
}

func (w *surveyor) entry(ctx context.Context, s *scratch, d *directory, r record, name, path string) {
	var e backup.Entry
	begin := time.Now()
	if _, err := d.stat(s, r, &e); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.seen.Denied++
			w.seen.DeniedPath = path
		}
		return
	}
	w.times = append(w.times, time.Since(begin))
	if changed := time.Unix(e.Ctime.Sec, int64(e.Ctime.Nsec)); changed.After(w.seen.Newest) {
		w.seen.Newest = changed
	}
	for w.seen.Grain > time.Nanosecond && int64(e.Ctime.Nsec)%int64(w.seen.Grain) != 0 {
		w.seen.Grain /= 10
	}
	if e.Kind == backup.File && e.Size > 0 && (w.seen.File == "" || w.seen.FileError != nil) {
		w.file(ctx, d, name, path)
	}
}

// file opens a file, reads its first byte, and closes it, as a reader does.
func (w *surveyor) file(ctx context.Context, d *directory, name, path string) {
	w.seen.File = path
	opened, err := d.OpenFile(ctx, name)
	if err != nil {
		w.seen.FileError = err
		return
	}
	defer opened.Close()
	f := opened.(*file)
	if _, err := f.Xattrs(); !errors.Is(err, source.ErrNoXattrs) {
		w.seen.XattrError = err
	}
	var b [1]byte
	_, w.seen.FileError = f.ReadAt(b[:], 0)
	w.seen.Uncached = f.uncached
	var stat unix.Cachestat_t
	w.seen.Cachestat = unix.Cachestat(uint(f.fd), &unix.CachestatRange{}, &stat, 0) == nil
}
