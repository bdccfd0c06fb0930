package embedded_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A volumes is a source whose trees contain directories that are file systems of their own, without
// mount(2). Device numbers change. Inode numbers start at 1 on each file system, so that they occur
// on several. An unmounted file system is an empty directory.
type volumes struct {
	source.Source
	timeless bool // they do not record when a file was created

	mu      sync.Mutex
	mounts  map[string]*volume // by mount point; "" is the root
	devices []uint64           // in the order of volume.number
}

// A volume is one file system.
type volume struct {
	number  int
	mounted bool
	inodes  map[uint64]uint64 // the source's inode numbers, by those of the kernel
}

func newVolumes(s source.Source, mountPoints ...string) *volumes {
	v := &volumes{Source: s, mounts: map[string]*volume{}}
	for n, at := range append([]string{""}, mountPoints...) {
		v.mounts[at] = &volume{number: n, mounted: true, inodes: map[uint64]uint64{}}
		v.devices = append(v.devices, uint64(n))
	}
	return v
}

// mountPoint returns the mount point that a path is at or below; "" if there is none.
func (v *volumes) mountPoint(path string) string {
	for at := range v.mounts {
		if at != "" && (path == at || strings.HasPrefix(path, at+"/")) {
			return at
		}
	}
	return ""
}

// at returns the volume that a path is currently on, and whether it is covered: paths below a mount
// point without a mount do not exist.
func (v *volumes) at(path string) (on *volume, begins, covered bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := v.mountPoint(path)
	on = v.mounts[at]
	if on.mounted {
		return on, at != "" && path == at, false
	}
	return v.mounts[""], false, true
}

// give sets the volume's numbers in an entry.
func (v *volumes) give(on *volume, e *backup.Entry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	given, ok := on.inodes[e.Inode]
	if !ok {
		given = uint64(len(on.inodes)) + 1
		on.inodes[e.Inode] = given
	}
	e.Inode, e.Device = given, v.devices[on.number]
	if v.timeless {
		e.Btime = backup.Time{}
	}
}

// Open implements source.Source.
func (v *volumes) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := v.Source.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &volumeTree{t, v}, nil
}

type volumeTree struct {
	source.Tree
	v *volumes
}

func (t *volumeTree) RootDevice() uint64 {
	t.v.mu.Lock()
	defer t.v.mu.Unlock()
	return t.v.devices[0]
}

func (t *volumeTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	on, begins, covered := t.v.at(path)
	if covered && t.v.mountPoint(path) != path {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	d, err := t.Tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	return &volumeDirectory{Directory: d, v: t.v, on: on, begins: begins, covered: covered}, nil
}

type volumeDirectory struct {
	source.Directory
	v               *volumes
	on              *volume
	begins, covered bool
}

func (d *volumeDirectory) Self() backup.Entry {
	e := d.Directory.Self()
	d.v.give(d.on, &e)
	if d.begins {
		e.Flags |= backup.Boundary
	}
	return e
}

func (d *volumeDirectory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	if d.covered {
		return dst, 0, io.EOF
	}
	from := len(dst)
	dst, stats, err := d.Directory.Read(ctx, dst, problem)
	for i := range dst[from:] {
		e := &dst[from+i]
		d.v.give(d.on, e)
		if e.Kind == backup.Directory {
			e.Device = 0
		}
	}
	return dst, stats, err
}

func (d *volumeDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	if d.covered {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	}
	f, err := d.Directory.OpenFile(ctx, name)
	if err != nil {
		return nil, err
	}
	return &volumeFile{f, d}, nil
}

type volumeFile struct {
	source.File
	d *volumeDirectory
}

func (f *volumeFile) Stat() (backup.Entry, error) {
	e, err := f.File.Stat()
	if err == nil {
		f.d.v.give(f.d.on, &e)
	}
	return e, err
}

// Directories on two file systems may have the same inode number, as their roots usually do, and
// the same times. This must not look like a move.
func TestSameInodeOnAnotherFileSystem(t *testing.T) {
	m := newMachine(t)
	v := newVolumes(m.Source, "one", "two")
	v.mounts[""].inodes[0] = 1 // so that the root of the tree has a different number
	late := faultsource.New(v)
	// Nothing is racy.
	late.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
	m.Source = late
	treetest.Make(t, m.tree, treetest.Tree{"one": treetest.Dir().WithXattr("user.a", "of one"), "two": treetest.Dir(), "file": treetest.File("x")})
	var one, two unix.Stat_t
	for one.Ctim != two.Ctim || one.Ctim.Sec == 0 {
		now := time.Unix(1, 0)
		m.must(errors.Join(os.Chtimes(filepath.Join(m.tree, "one"), now, now), os.Chtimes(filepath.Join(m.tree, "two"), now, now)))
		m.must(errors.Join(unix.Stat(filepath.Join(m.tree, "one"), &one), unix.Stat(filepath.Join(m.tree, "two"), &two)))
	}
	_, err := embedded.Backup(t.Context(), m.Options, m.shard, backup.Snapshot{Selection: backup.Selection{Exclude: []string{"/two"}}}, nil)
	m.must(err)
	s, err := m.backup(t.Context())
	m.must(err)
	if v.mounts["one"].inodes[one.Ino] != v.mounts["two"].inodes[two.Ino] {
		t.Fatal("the roots do not have the same number")
	}
	m.wantRestored(&s)
}
