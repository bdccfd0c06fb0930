//go:build linux

// Package sourcetest is the suite that every source passes. It creates trees in a directory of this
// machine, opens them through the source, and compares the results with those of the kernel.
package sourcetest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A Feature is a feature that a source may lack.
type Feature int

const (
	// Xattrs: extended attributes, including ACLs.
	Xattrs Feature = iota
	// Holes: NextExtent finds them.
	Holes
	// BirthTime: entries have a Btime.
	BirthTime
	// LocalErrors: the source acts with the credentials of the calling thread, so that permission
	// can be denied to it.
	LocalErrors
	// Devices: device numbers of directories, files and nodes are the kernel's.
	Devices
	// Binds: a bind mount is a Boundary although it is on the same device.
	Binds
	// Mounts: the source notices what is mounted and unmounted in a tree that it has open.
	Mounts
	// EarlyTimes: times before 1970.
	EarlyTimes
)

// An Option changes the behaviour of Run.
type Option func(*suite)

// Lacks declares that the source does not have some features.
func Lacks(features ...Feature) Option {
	return func(s *suite) { s.lacks = append(s.lacks, features...) }
}

// In sets where trees are created, for a source that cannot read everywhere. The default is
// t.TempDir.
func In(dir func(t *testing.T) string) Option {
	return func(s *suite) { s.dir = dir }
}

type suite struct {
	open  func(t *testing.T, dir string) source.Tree
	dir   func(t *testing.T) string
	lacks []Feature
}

func (s *suite) has(f Feature) bool { return !slices.Contains(s.lacks, f) }

// Run runs the suite. open opens a directory of this machine as a tree, which the suite closes at
// the end of the test.
func Run(t *testing.T, open func(t *testing.T, dir string) source.Tree, options ...Option) {
	s := &suite{open: open, dir: func(t *testing.T) string { return t.TempDir() }}
	for _, option := range options {
		option(s)
	}
	for name, test := range map[string]func(*testing.T){
		"Kinds":          s.testKinds,
		"Names":          s.testNames,
		"EmptyDirectory": s.testEmptyDirectory,
		"LargeDirectory": s.testLargeDirectory,
		"DeepPath":       s.testDeepPath,
		"Vanishing":      s.testVanishing,
		"Content":        s.testContent,
		"Extents":        s.testExtents,
		"Xattrs":         s.testXattrs,
		"XattrLimit":     s.testXattrLimit,
		"ReplacedFile":   s.testReplacedFile,
		"Root":           s.testRoot,
		"Clock":          s.testClock,
		"Check":          s.testCheck,
		"CheckUnmounted": s.testCheckUnmounted,
		"Boundary":       s.testBoundary,
		"BoundaryFile":   s.testBoundaryFile,
		"CheckTree":      s.testCheckTree,
		"Closed":         s.testClosed,
		"NotADirectory":  s.testNotADirectory,
		"BadPaths":       s.testBadPaths,
		"Outside":        s.testOutside,
		"SwappedRapidly": s.testSwappedRapidly,
		"Permission":     s.testPermission,
		"Concurrency":    s.testConcurrency,
		"Cancelled":      s.testCancelled,
	} {
		t.Run(name, test)
	}
}

// tree creates an empty directory and opens it. The tree shows entries that a test creates in it
// afterwards.
func (s *suite) tree(t *testing.T) (dir string, tree source.Tree) {
	t.Helper()
	dir = s.dir(t)
	tree = s.open(t, dir)
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Errorf("close the tree: %v", err)
		}
	})
	return dir, tree
}

func openDirectory(t testing.TB, tree source.Tree, path string) source.Directory {
	t.Helper()
	d, err := tree.OpenDirectory(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// readAll reads a directory to its end. A problem fails the test, unless the entry has vanished.
func readAll(t testing.TB, d source.Directory) (entries []backup.Entry, statCalls int) {
	t.Helper()
	for {
		var n int
		var err error
		entries, n, err = d.Read(context.Background(), entries, func(name, op string, err error) {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("problem with %q: %s: %v", name, op, err)
			}
		})
		statCalls += n
		if err == io.EOF {
			return entries, statCalls
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// byName reads a directory and returns its entries by name. Each name must be returned once.
func byName(t testing.TB, d source.Directory) (entries map[string]backup.Entry, statCalls int) {
	t.Helper()
	entries = map[string]backup.Entry{}
	list, statCalls := readAll(t, d)
	for _, e := range list {
		if _, twice := entries[e.Name]; twice {
			t.Errorf("%q came twice", e.Name)
		}
		entries[e.Name] = e
	}
	return entries, statCalls
}

// kernelEntry is the entry that the kernel reports for path, without a name.
func (s *suite) kernelEntry(t *testing.T, path string) backup.Entry {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	kinds := map[uint16]backup.Kind{
		unix.S_IFREG: backup.File, unix.S_IFDIR: backup.Directory, unix.S_IFLNK: backup.Symlink, unix.S_IFIFO: backup.FIFO,
		unix.S_IFSOCK: backup.Socket, unix.S_IFCHR: backup.CharDev, unix.S_IFBLK: backup.BlockDev,
	}
	e := backup.Entry{
		Kind: kinds[st.Mode&unix.S_IFMT], Mode: uint32(st.Mode) & 0o7777, UID: st.Uid, GID: st.Gid, Nlink: st.Nlink,
		Mtime: backup.Time{Sec: st.Mtime.Sec, Nsec: st.Mtime.Nsec}, Ctime: backup.Time{Sec: st.Ctime.Sec, Nsec: st.Ctime.Nsec},
		Inode: st.Ino,
	}
	if s.has(BirthTime) && st.Mask&unix.STATX_BTIME != 0 {
		e.Btime = backup.Time{Sec: st.Btime.Sec, Nsec: st.Btime.Nsec}
	}
	if s.has(Devices) {
		e.Device = unix.Mkdev(st.Dev_major, st.Dev_minor)
	}
	switch e.Kind {
	case backup.File:
		e.Size = int64(st.Size)
	case backup.CharDev, backup.BlockDev:
		e.Rdev = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	case backup.Symlink:
		target, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		e.Target = target
	}
	return e
}

// asKernel makes e comparable with a kernelEntry.
func (s *suite) asKernel(e backup.Entry) backup.Entry {
	e.Name = ""
	if !s.has(BirthTime) {
		e.Btime = backup.Time{}
	}
	if !s.has(Devices) {
		e.Device = 0
	}
	return e
}
