// Package nfs3test is an NFS server for tests, whose files are in memory. It has hooks for what
// servers do wrong. It is no model of a good server: nfs-ganesha is used for that.
package nfs3test

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/rpc/rpctest"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// A Node is a file or directory of the server. Tests change its fields between calls.
type Node struct {
	Attr    nfs3.Attr
	Content []byte
	Target  string

	names   []string // of a directory, in the order of creation
	entries map[string]*Node
	parent  *Node
	stale   bool
}

// A Server is an NFS server over TCP at one port, with the mount protocol. Its one export is
// "/export".
type Server struct {
	*rpctest.Server
	mu       sync.Mutex
	Root     *Node
	nodes    map[nfs3.Handle]*Node
	last     uint64 // file ID
	boot     uint64 // the write verifier
	counts   map[string]int
	deny     func(op string, n *Node) nfs3.Status
	grow     func(dir *Node, add func(name string))
	behavior Behavior
}

// A Behavior is what the server does wrong. The zero Behavior is right.
type Behavior struct {
	NoAttributes bool // READDIRPLUS and LOOKUP leave attributes out
	NoHandles    bool // READDIRPLUS leaves handles out
	NoDots       bool // listings lack "." and ".."
	NoPlus       bool // READDIRPLUS is not supported
	EmptyPages   bool // listings have no entries, and no end
	Loop         bool // the cookies of a listing lead back to its beginning
	PageEntries  int  // at most so many entries in a page
	ShortReads   int  // READ returns at most so many bytes
	EmptyReads   bool // READ returns nothing, and no end
	LyingReads   bool // READ returns more than was asked for
}

// Serve starts a server.
func Serve(t testing.TB) *Server {
	s := &Server{nodes: map[nfs3.Handle]*Node{}, boot: 1, counts: map[string]int{}}
	s.Root = s.newNode(nil, nfs3.Directory, 0o755)
	s.Server = rpctest.Serve(t, s.handle)
	return s
}

// Do calls f while no call is executed.
func (s *Server) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Set sets what the server does wrong from now on.
func (s *Server) Set(b Behavior) { s.Do(func() { s.behavior = b }) }

// Deny sets a function that answers calls with a status. StatusOK executes the call.
func (s *Server) Deny(f func(op string, n *Node) nfs3.Status) { s.Do(func() { s.deny = f }) }

// Grow sets a function that is called after each page of a listing. It may add files.
func (s *Server) Grow(f func(dir *Node, add func(name string))) { s.Do(func() { s.grow = f }) }

// Count returns how often a procedure was called, with an answer that its caller asked for.
func (s *Server) Count(op string) (n int) {
	s.Do(func() { n = s.counts[op] })
	return n
}

// Options returns the options of a client and of a mounter.
func (s *Server) Options() rpc.Options { return rpc.Options{Address: s.Address()} }

// Restart restarts the server with another write verifier.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.Do(func() { s.boot++ })
	s.Start(t)
}

func (s *Server) newNode(parent *Node, kind nfs3.FileType, mode uint32) *Node {
	s.last++
	n := &Node{parent: parent, Attr: nfs3.Attr{Type: kind, Mode: mode, Nlink: 1, FSID: 7, FileID: s.last, Mtime: nfs3.Time{Sec: 1000}, Ctime: nfs3.Time{Sec: 1000}}}
	if parent == nil {
		n.parent = n
	} else {
		n.Attr.FSID = parent.Attr.FSID
	}
	if kind == nfs3.Directory {
		n.entries = map[string]*Node{}
	}
	s.nodes[n.handle()] = n
	return n
}

func (n *Node) handle() nfs3.Handle {
	return nfs3.Handle(fmt.Sprintf("handle-%d", n.Attr.FileID))
}

// Add adds a node to a directory, not within Do.
func (s *Server) Add(dir *Node, name string, kind nfs3.FileType, content string) (n *Node) {
	s.Do(func() { n = s.add(dir, name, kind, content) })
	return n
}

func (s *Server) add(dir *Node, name string, kind nfs3.FileType, content string) *Node {
	n := s.newNode(dir, kind, 0o644)
	switch kind {
	case nfs3.Symlink:
		n.Target = content
	case nfs3.Regular:
		n.Content, n.Attr.Size = []byte(content), uint64(len(content))
	}
	if dir.entries[name] == nil {
		dir.names = append(dir.names, name)
	}
	dir.entries[name] = n
	return n
}

// Delete removes a name of a directory, not within Do. The handle of the node becomes stale.
func (s *Server) Delete(dir *Node, name string) { s.Do(func() { s.remove(dir, name) }) }

func (s *Server) remove(dir *Node, name string) {
	if n := dir.entries[name]; n != nil {
		n.stale = true
	}
	delete(dir.entries, name)
	for i, other := range dir.names {
		if other == name {
			dir.names = append(dir.names[:i:i], dir.names[i+1:]...)
			break
		}
	}
}

// Move moves a name to another directory, not within Do.
func (s *Server) Move(from *Node, name string, to *Node, as string) {
	s.Do(func() { s.move(from, name, to, as) })
}

func (s *Server) move(from *Node, name string, to *Node, as string) {
	n := from.entries[name]
	s.remove(from, name)
	s.remove(to, as)
	n.stale, n.parent = false, to
	to.names = append(to.names, as)
	to.entries[as] = n
}

// Stale makes the handle of a node stale, within Do.
func (n *Node) Stale(is bool) { n.stale = is }

// Entry returns a node by name.
func (n *Node) Entry(name string) *Node { return n.entries[name] }

func verifier(n uint64) (v nfs3.Verifier) {
	binary.BigEndian.PutUint64(v[:], n)
	return v
}

func appendStatus(s nfs3.Status) []byte { return xdr.AppendUint32(nil, uint32(s)) }

func appendAttr(b []byte, a *nfs3.Attr) []byte {
	for _, v := range []uint32{uint32(a.Type), a.Mode, a.Nlink, a.UID, a.GID} {
		b = xdr.AppendUint32(b, v)
	}
	b = xdr.AppendUint64(xdr.AppendUint64(b, a.Size), a.Used)
	b = xdr.AppendUint32(xdr.AppendUint32(b, a.Device.Major), a.Device.Minor)
	b = xdr.AppendUint64(xdr.AppendUint64(b, a.FSID), a.FileID)
	for _, t := range []nfs3.Time{a.Atime, a.Mtime, a.Ctime} {
		b = xdr.AppendUint32(xdr.AppendUint32(b, t.Sec), t.Nsec)
	}
	return b
}

// appendPost appends a post_op_attr.
func appendPost(b []byte, n *Node, known bool) []byte {
	if b = xdr.AppendBool(b, known); known {
		b = appendAttr(b, &n.Attr)
	}
	return b
}

// appendWCC appends wcc_data.
func appendWCC(b []byte, n *Node) []byte { return appendPost(xdr.AppendBool(b, false), n, true) }
