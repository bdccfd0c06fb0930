//go:build linux

package nfs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
)

// idleFor is how long the connections to a server stay open after its last tree was closed: a
// reader opens the tree for each batch.
const idleFor = 30 * time.Second

// A server is the connections to one server, with the options of a URL. All trees with the same
// options share it.
type server struct {
	nfs     *nfs3.Client
	mounter *nfs3.Mounter
}

func (s *server) close() {
	s.nfs.Close()
	s.mounter.Close()
}

// servers are the servers in use.
type servers struct {
	mu   sync.Mutex
	uses map[string]*use
}

// A use is a server and the number of its trees.
type use struct {
	server *server
	trees  int
	idle   *time.Timer // closes it; nil while it has trees
}

// get returns the server of an address, which the caller must put back.
func (s *servers) get(ctx context.Context, a *address) (*server, error) {
	if found := s.find(a.key); found != nil {
		return found, nil
	}
	nfs, mount, err := a.server.Find(ctx, a.options)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uses[a.key]
	if u == nil { // otherwise another goroutine was faster
		u = &use{server: &server{nfs: nfs3.New(nfs), mounter: nfs3.NewMounter(mount)}}
		s.uses[a.key] = u
	}
	u.take()
	return u.server, nil
}

func (s *servers) find(key string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uses[key]
	if u == nil {
		return nil
	}
	u.take()
	return u.server
}

func (u *use) take() {
	u.trees++
	if u.idle != nil {
		u.idle.Stop()
		u.idle = nil
	}
}

func (s *servers) put(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uses[key]
	if u.trees--; u.trees > 0 {
		return
	}
	u.idle = time.AfterFunc(idleFor, func() { s.closeIdle(key, u) })
}

func (s *servers) closeIdle(key string, u *use) {
	s.mu.Lock()
	if s.uses[key] != u || u.trees > 0 {
		s.mu.Unlock()
		return
	}
	delete(s.uses, key)
	s.mu.Unlock()
	u.server.close()
}

// A node is a directory on the server.
type node struct {
	handle nfs3.Handle
	attr   nfs3.Attr
	parent nfs3.Attr // of its directory; for the root of a tree its own
}

// mount finds the directory at an absolute path: the root of its export, and the names below it.
// The server resolves a path with symlinks itself, if it can.
func (s *server) mount(ctx context.Context, at string) (node, error) {
	root, below := s.exportOf(ctx, at)
	if below == "" {
		return s.mountExactly(ctx, at)
	}
	n, err := s.mountExactly(ctx, root)
	if err != nil {
		return n, err
	}
	found, err := s.find(ctx, n, below)
	if errors.Is(err, backup.ErrOutside) {
		return s.mountExactly(ctx, at)
	}
	found.parent = found.attr
	return found, err
}

// exportOf splits a path into that of its export, and the rest. If the server does not tell its
// exports, or none contains the path, the rest is empty.
func (s *server) exportOf(ctx context.Context, at string) (root, below string) {
	exports, err := s.mounter.Exports(ctx)
	if err != nil {
		return at, ""
	}
	for _, export := range exports {
		export = path.Clean("/" + export)
		if rest, ok := strings.CutPrefix(at, strings.TrimSuffix(export, "/")+"/"); ok && len(export) > len(root) {
			root, below = export, rest
		} else if export == at {
			return at, ""
		}
	}
	return root, below
}

// mountExactly mounts a path.
func (s *server) mountExactly(ctx context.Context, at string) (n node, err error) {
	mounted, err := s.mounter.Mount(ctx, at)
	if err != nil {
		return n, err
	}
	n.handle = mounted.Root
	if n.attr, err = s.nfs.GetAttr(ctx, n.handle); err != nil {
		return n, err
	}
	if n.attr.Type != nfs3.Directory {
		return n, syscall.ENOTDIR
	}
	n.parent = n.attr
	return n, nil
}

// find finds the directory at a path below from. No component may be a symlink.
func (s *server) find(ctx context.Context, from node, below string) (node, error) {
	for name := range strings.SplitSeq(below, "/") {
		found, err := s.lookup(ctx, from.handle, name)
		if err != nil {
			return node{}, err
		}
		switch found.Attr.Type {
		case nfs3.Directory:
		case nfs3.Symlink:
			return node{}, fmt.Errorf("%q is a symlink: %w", name, backup.ErrOutside)
		default:
			return node{}, syscall.ENOTDIR
		}
		from = node{handle: found.Handle, attr: found.Attr.Attr, parent: from.attr}
	}
	return from, nil
}

// lookup finds a name, with its attributes.
func (s *server) lookup(ctx context.Context, dir nfs3.Handle, name string) (found nfs3.Found, err error) {
	found, err = s.nfs.Lookup(ctx, dir, name)
	if err != nil || found.Attr.Known {
		return found, err
	}
	found.Attr.Attr, err = s.nfs.GetAttr(ctx, found.Handle)
	found.Attr.Known = err == nil
	return found, err
}
