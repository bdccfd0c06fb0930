//go:build linux

// Package treetest creates trees for tests, and compares trees. It shares no code with the sources
// and with restore, so that it can judge them.
//
//	treetest.Make(t, dir, treetest.Tree{
//		"etc/passwd": treetest.File("root:x:0:0\n").WithMode(0o600),
//		"bin/tool":   treetest.File("#!").WithMode(0o4755).WithOwner(1000, 1000),
//		"bin/same":   treetest.HardLink("bin/tool"),
//		"disk.img":   treetest.Sparse(1<<30, treetest.Extent{Offset: 1 << 20, Data: "data"}),
//		"link":       treetest.Symlink("../outside"),
//		"empty":      treetest.Dir(),
//	})
//	…
//	treetest.Equal(t, dir, restored)
package treetest

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Tree is the entries to create, by path. Missing parent directories are created.
type Tree map[string]Entry

// An Entry describes what to create. The functions below return entries; the With methods return
// changed copies.
type Entry struct {
	kind    uint32 // S_IF…; 0: a hard link
	mode    uint32
	uid     int // -1: the user who creates the tree
	gid     int
	mtime   time.Time // zero: now
	size    int64
	extents []Extent
	target  string
	rdev    uint64
	xattrs  map[string]string
}

// An Extent is data at an offset in a file.
type Extent struct {
	Offset int64
	Data   string
}

func entry(kind, mode uint32) Entry { return Entry{kind: kind, mode: mode, uid: -1, gid: -1} }

// File is a regular file of mode 0644.
func File(content string) Entry {
	return Sparse(int64(len(content)), Extent{Data: content})
}

// Sparse is a regular file of a size that consists of holes except for the extents.
func Sparse(sizeBytes int64, extents ...Extent) Entry {
	e := entry(unix.S_IFREG, 0o644)
	e.size, e.extents = sizeBytes, extents
	return e
}

// Dir is a directory of mode 0755.
func Dir() Entry { return entry(unix.S_IFDIR, 0o755) }

// Symlink is a symlink with any target.
func Symlink(target string) Entry {
	e := entry(unix.S_IFLNK, 0o777)
	e.target = target
	return e
}

// HardLink is a further name of the entry at another path of the tree.
func HardLink(path string) Entry { return Entry{target: path} }

// FIFO is a named pipe.
func FIFO() Entry { return entry(unix.S_IFIFO, 0o644) }

// Socket is a socket without a listener.
func Socket() Entry { return entry(unix.S_IFSOCK, 0o644) }

// CharDev is a character device. Creating one requires root.
func CharDev(major, minor uint32) Entry { return device(unix.S_IFCHR, major, minor) }

// BlockDev is a block device. Creating one requires root.
func BlockDev(major, minor uint32) Entry { return device(unix.S_IFBLK, major, minor) }

func device(kind, major, minor uint32) Entry {
	e := entry(kind, 0o600)
	e.rdev = unix.Mkdev(major, minor)
	return e
}

// WithMode sets the permission, set-id and sticky bits.
func (e Entry) WithMode(mode uint32) Entry { e.mode = mode; return e }

// WithOwner sets the owner. It requires root.
func (e Entry) WithOwner(uid, gid int) Entry { e.uid, e.gid = uid, gid; return e }

// WithMtime sets the modification time.
func (e Entry) WithMtime(mtime time.Time) Entry { e.mtime = mtime; return e }

// WithXattr adds an extended attribute.
func (e Entry) WithXattr(name, value string) Entry {
	e.xattrs = maps.Clone(e.xattrs)
	if e.xattrs == nil {
		e.xattrs = map[string]string{}
	}
	e.xattrs[name] = value
	return e
}

// Make creates the tree in dir. It creates dir if necessary, and may add to existing entries. It
// sets the attributes of directories last, from the bottom up, so that creating their content does
// not change them. Errors end the test.
func Make(t testing.TB, dir string, tree Tree) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	paths := slices.SortedFunc(maps.Keys(tree), func(a, b string) int {
		linkA, linkB := tree[a].kind == 0, tree[b].kind == 0
		if linkA != linkB { // targets of hard links first
			if linkA {
				return 1
			}
			return -1
		}
		return cmp.Compare(a, b)
	})
	for _, path := range paths {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := create(dir, full, tree[path]); err != nil {
			t.Fatalf("making %q: %v", path, err)
		}
	}
	for _, path := range slices.Backward(paths) {
		if tree[path].kind == unix.S_IFDIR {
			if err := setAttributes(filepath.Join(dir, path), tree[path]); err != nil {
				t.Fatalf("making %q: %v", path, err)
			}
		}
	}
}

func create(dir, path string, e Entry) error {
	switch e.kind {
	case 0:
		return unix.Link(filepath.Join(dir, e.target), path)
	case unix.S_IFDIR:
		if err := unix.Mkdir(path, 0o755); err != unix.EEXIST {
			return err
		}
		return nil
	case unix.S_IFLNK:
		if err := unix.Symlink(e.target, path); err != nil {
			return err
		}
	case unix.S_IFREG:
		if err := writeFile(path, e); err != nil {
			return err
		}
	default:
		if err := unix.Mknod(path, e.kind|0o600, int(e.rdev)); err != nil {
			return err
		}
	}
	return setAttributes(path, e)
}

func writeFile(path string, e Entry) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, extent := range e.extents {
		if _, err := f.WriteAt([]byte(extent.Data), extent.Offset); err != nil {
			return err
		}
	}
	if err := f.Truncate(e.size); err != nil {
		return err
	}
	return f.Close()
}

// setAttributes sets the mode after the owner, because changing the owner may change it, and the
// time last, because any change may change it.
func setAttributes(path string, e Entry) error {
	for name, value := range e.xattrs {
		if err := unix.Lsetxattr(path, name, []byte(value), 0); err != nil {
			return fmt.Errorf("xattr %s: %w", name, err)
		}
	}
	if e.uid >= 0 || e.gid >= 0 {
		if err := unix.Lchown(path, e.uid, e.gid); err != nil {
			return err
		}
	}
	// An ACL sets the mode, and setting the mode would change the ACL.
	_, acl := e.xattrs["system.posix_acl_access"]
	if e.kind != unix.S_IFLNK && !acl {
		if err := unix.Chmod(path, e.mode); err != nil {
			return err
		}
	}
	if e.mtime.IsZero() {
		return nil
	}
	mtime, err := unix.TimeToTimespec(e.mtime)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

// Equal fails the test with the differences of two trees.
func Equal(t testing.TB, want, got string, ignore ...Aspect) {
	t.Helper()
	if differences := Compare(want, got, ignore...); len(differences) > 0 {
		t.Errorf("%s and %s differ:\n  %s", want, got, strings.Join(differences, "\n  "))
	}
}

// Count returns the number of entries of a tree, and of its directories, with its root.
func Count(t testing.TB, dir string) (all, directories int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		all++
		if d.IsDir() {
			directories++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, directories
}
