package mount

import (
	"container/list"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bctl/bctl/internal/backup"
)

// maxKnown bounds the files whose attributes are in memory because the kernel knows them. The
// kernel is asked to forget others.
const maxKnown = 1 << 15

// A node is a file or directory that the kernel knows.
type node struct {
	id     uint64
	parent *node // nil: the root
	name   string
	above  *level // what it is, if it is above snapshots; otherwise nil
	view   *view  // the snapshot; nil above
	volume uint64 // of a directory: the file system of the shard that it is on
	// entry is nil for a directory, whose attributes are read again when they are needed.
	entry *backup.Entry

	lookups uint64        // that the kernel has not forgotten; nodes.mu guards it
	element *list.Element // in nodes.files
}

// path returns the path in the snapshot.
func (n *node) path() string {
	if n.isTop() {
		return ""
	}
	var names []string
	for ; !n.isTop(); n = n.parent {
		names = append(names, n.name)
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteString(names[i])
		if i > 0 {
			b.WriteByte('/')
		}
	}
	return b.String()
}

// isTop reports whether the node is the root directory of a snapshot.
func (n *node) isTop() bool { return n.view != nil && (n.parent == nil || n.parent.view == nil) }

// A nameKey is a name in a directory.
type nameKey struct {
	parent uint64
	name   string
}

// nodes has everything that the kernel knows.
type nodes struct {
	mu     sync.Mutex
	byID   map[uint64]*node
	byName map[nameKey]*node
	last   uint64
	files  list.List // of *node: the files, least recently looked up first
	max    int
	excess chan struct{} // signals that there are too many files
}

func newNodes() *nodes {
	root := &node{id: fuse.FUSE_ROOT_ID, above: &level{kind: rootLevel}, lookups: 1}
	return &nodes{
		byID: map[uint64]*node{root.id: root}, byName: map[nameKey]*node{}, last: root.id, max: maxKnown, excess: make(chan struct{}, 1),
	}
}

func (ns *nodes) get(id uint64) *node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.byID[id]
}

// known counts a lookup of a name that the kernel knows; nil: it does not know it.
func (ns *nodes) known(parent *node, name string) *node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.byName[nameKey{parent.id, name}]
	if n != nil {
		ns.count(n)
	}
	return n
}

// isSame reports whether a name still leads to the same: above snapshots, it may lead to another
// snapshot later.
func (n *node) isSame(other *node) bool {
	return n.view == other.view && (n.above == nil || *n.above == *other.above)
}

// add counts a lookup of a name. If the kernel does not know it yet, n becomes its node.
func (ns *nodes) add(n *node) *node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	key := nameKey{n.parent.id, n.name}
	if known := ns.byName[key]; known != nil && known.isSame(n) {
		ns.count(known)
		return known
	}
	ns.last++
	n.id = ns.last
	ns.byID[n.id], ns.byName[key] = n, n
	if n.entry != nil {
		n.element = ns.files.PushBack(n)
	}
	ns.count(n)
	if ns.files.Len() > ns.max {
		select {
		case ns.excess <- struct{}{}:
		default:
		}
	}
	return n
}

func (ns *nodes) count(n *node) {
	n.lookups++
	if n.element != nil {
		ns.files.MoveToBack(n.element)
	}
}

func (ns *nodes) forget(id, lookups uint64) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.byID[id]
	if n == nil || n.parent == nil {
		return
	}
	if n.lookups -= min(lookups, n.lookups); n.lookups > 0 {
		return
	}
	delete(ns.byID, id)
	if key := (nameKey{n.parent.id, n.name}); ns.byName[key] == n {
		delete(ns.byName, key)
	}
	if n.element != nil {
		ns.files.Remove(n.element)
	}
}

// oldest returns the files that the kernel should forget.
func (ns *nodes) oldest() (names []nameKey) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for el, n := ns.files.Front(), ns.files.Len()-ns.max*7/8; el != nil && n > 0; el, n = el.Next(), n-1 {
		f := el.Value.(*node)
		names = append(names, nameKey{f.parent.id, f.name})
	}
	return names
}
