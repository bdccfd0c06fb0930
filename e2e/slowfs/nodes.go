//go:build linux

package slowfs

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// snapshotDirectory is an entry of the root that the shown directory does not have.
const snapshotDirectory = ".snapshot"

// A view is a tree that is shown: the live one, or a snapshot.
type view struct {
	root    string                 // directory that it shows
	name    atomic.Pointer[string] // below .snapshot; nil: the live one
	expired atomic.Bool
}

// A node is a file that the kernel knows.
type node struct {
	id    uint64
	key   key
	fresh atomic.Bool // the kernel has just received its attributes

	mu      sync.Mutex
	path    string // where it was found last
	lookups uint64 // that the kernel has not forgotten
}

// A key identifies a file under all its names. The key of .snapshot has no view.
type key struct {
	view          *view
	device, inode uint64
}

// nodes holds all files that the kernel knows.
type nodes struct {
	mu        sync.RWMutex
	byID      map[uint64]*node
	byKey     map[key]*node
	last      uint64
	snapshots []*view
}

func newNodes(root string) *nodes {
	n := &node{id: fuse.FUSE_ROOT_ID, path: root, lookups: 1, key: key{view: &view{root: root}}}
	return &nodes{byID: map[uint64]*node{n.id: n}, byKey: map[key]*node{}, last: n.id}
}

func (ns *nodes) get(id uint64) *node {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.byID[id]
}

// found counts a lookup of the file that was found at a path.
func (ns *nodes) found(k key, path string) *node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.byKey[k]
	if n == nil {
		ns.last++
		n = &node{id: ns.last, key: k}
		ns.byID[n.id], ns.byKey[k] = n, n
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.path = path
	n.lookups++
	return n
}

func (ns *nodes) forget(id, lookups uint64) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.byID[id]
	if n == nil || id == fuse.FUSE_ROOT_ID {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lookups -= min(lookups, n.lookups); n.lookups == 0 {
		delete(ns.byID, id)
		delete(ns.byKey, n.key)
	}
}

func (ns *nodes) addSnapshot(name, dir string) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.snapshot(name) >= 0 {
		return fmt.Errorf("snapshot %s: %w", name, fs.ErrExist)
	}
	v := &view{root: dir}
	v.name.Store(&name)
	ns.snapshots = append(ns.snapshots, v)
	return nil
}

func (ns *nodes) renameSnapshot(from, to string) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	i := ns.snapshot(from)
	if i < 0 {
		return fmt.Errorf("snapshot %s: %w", from, fs.ErrNotExist)
	}
	if ns.snapshot(to) >= 0 {
		return fmt.Errorf("snapshot %s: %w", to, fs.ErrExist)
	}
	ns.snapshots[i].name.Store(&to)
	return nil
}

func (ns *nodes) removeSnapshot(name string) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	i := ns.snapshot(name)
	if i < 0 {
		return fmt.Errorf("snapshot %s: %w", name, fs.ErrNotExist)
	}
	ns.snapshots[i].expired.Store(true)
	ns.snapshots = slices.Delete(ns.snapshots, i, i+1)
	return nil
}

// snapshot returns the index of a snapshot in the list, or -1.
func (ns *nodes) snapshot(name string) int {
	return slices.IndexFunc(ns.snapshots, func(v *view) bool { return *v.name.Load() == name })
}

// snapshotNamed returns the snapshot with a name, or nil if there is none.
func (ns *nodes) snapshotNamed(name string) *view {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if i := ns.snapshot(name); i >= 0 {
		return ns.snapshots[i]
	}
	return nil
}

func (ns *nodes) snapshotNames() (names []string) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	for _, v := range ns.snapshots {
		names = append(names, *v.name.Load())
	}
	return names
}

func (n *node) isRoot() bool { return n.id == fuse.FUSE_ROOT_ID }

// listsSnapshots reports whether the node is .snapshot.
func (n *node) listsSnapshots() bool { return n.key.view == nil }

func (n *node) foundAt() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.path
}

// shownPath returns the path of n, or of a name in it, below the mount point.
func (n *node) shownPath(name string) string {
	if n.listsSnapshots() {
		return strings.Trim(snapshotDirectory+"/"+name, "/")
	}
	path := strings.TrimPrefix(n.foundAt(), n.key.view.root) + "/" + name
	if snapshot := n.key.view.name.Load(); snapshot != nil {
		path = snapshotDirectory + "/" + *snapshot + "/" + path
	}
	return strings.Trim(strings.ReplaceAll(path, "//", "/"), "/")
}

// stat returns the attributes of a file. It fails with ESTALE if the file is gone, or if another
// file has its path.
func (n *node) stat(st *syscall.Stat_t) fuse.Status {
	if n.listsSnapshots() {
		*st = syscall.Stat_t{Mode: syscall.S_IFDIR | 0o555, Nlink: 2, Ino: snapshotInode}
		return fuse.OK
	}
	if n.key.view.expired.Load() {
		return stale
	}
	switch err := syscall.Lstat(n.foundAt(), st); err {
	case nil:
		return n.check(st)
	case syscall.ENOENT, syscall.ENOTDIR:
		return stale
	default:
		return fuse.ToStatus(err)
	}
}

// check fails with ESTALE unless the attributes are those of n.
func (n *node) check(st *syscall.Stat_t) fuse.Status {
	if !n.isRoot() && (st.Dev != n.key.device || st.Ino != n.key.inode) {
		return stale
	}
	return fuse.OK
}

const (
	stale = fuse.Status(syscall.ESTALE)
	// snapshotInode is an inode number that no file has.
	snapshotInode = 1<<64 - 2
)
