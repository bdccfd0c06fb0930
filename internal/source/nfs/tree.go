//go:build linux

package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/source"
)

// A tree is an open root. Directories and files may outlive it.
type tree struct {
	source    *Source
	server    *server
	address   address
	root      node
	snapshot  *source.Snapshot // the source snapshot that the tree is; nil: none
	identity  backup.Root
	behind    time.Duration
	readBytes int // of one READ

	closed atomic.Bool
	noPlus atomic.Bool // the server does not support READDIRPLUS here
	kept   keptHandles
}

func (t *tree) RootDevice() uint64 { return t.root.attr.FSID }

func (t *tree) Root() backup.Root { return t.identity }

// Clock implements source.Tree.
func (t *tree) Clock() (now time.Time, behind time.Duration) { return time.Now(), t.behind }

func (t *tree) Close() error {
	if !t.closed.Swap(true) {
		t.source.servers.put(t.address.key)
	}
	return nil
}

// String is where the tree is, for errors.
func (t *tree) String() string { return t.address.server.Host + ":" + t.address.path }

// ready fails if the context is done or the tree closed.
func (t *tree) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.closed.Load() {
		return fs.ErrClosed
	}
	return nil
}

// OpenDirectory implements source.Tree. It lists the first page of the directory, with which its
// attributes come.
func (t *tree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	if err := source.CheckPath(path); err != nil {
		return nil, err
	}
	if k, ok := t.kept.take(path); ok {
		d, err := t.openAt(ctx, path, k.node)
		if err == nil && d.isIn(k.node.parent.FileID) {
			return d, nil
		}
		if err != nil && !isGone(asError(err)) {
			return nil, pathError("open", path, err)
		}
		// It was moved or replaced since its directory was listed, or nothing shows that it was
		// not.
	}
	n := t.root
	if path != "" {
		var err error
		if n, err = t.server.find(ctx, t.root, path); err != nil {
			return nil, pathError("open", path, err)
		}
	}
	d, err := t.openAt(ctx, path, n)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	return d, nil
}

// openAt opens a directory that was found. One that can be found but not listed is opened too.
func (t *tree) openAt(ctx context.Context, path string, n node) (*directory, error) {
	d := &directory{tree: t, path: path, handle: n.handle}
	page, err := d.fetch(ctx)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	d.denied, d.page, d.attr = err, page, page.Dir.Attr
	if !page.Dir.Known {
		if d.attr, err = t.server.nfs.GetAttr(ctx, n.handle); err != nil {
			return nil, err
		}
	}
	if d.attr.Type != nfs3.Directory {
		return nil, syscall.ENOTDIR
	}
	if d.self, err = entryOf(&d.attr); err != nil {
		return nil, err
	}
	if path != "" && d.attr.FSID != n.parent.FSID {
		d.self.Flags |= backup.Boundary
	}
	return d, nil
}

// Check implements source.Tree. It mounts the path again, and compares what is there with the root
// that is open. The handle of the root must still be valid: a directory that was removed and made
// again may have its inode.
func (t *tree) Check(ctx context.Context) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	if t.snapshot != nil {
		return t.checkSnapshot(ctx)
	}
	now, err := t.server.mount(ctx, t.address.path)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s can no longer be opened: %w: %w", t, asError(err), backup.ErrUnavailable)
	}
	if now.handle == t.root.handle {
		return nil
	}
	is, err := t.server.nfs.GetAttr(ctx, t.root.handle)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, nfs3.ErrStale):
		return fmt.Errorf("%s: %w: %w", t, asError(err), backup.ErrUnavailable)
	case err != nil || is.FSID != now.attr.FSID || is.FileID != now.attr.FileID:
		return &source.OtherTreeError{What: fmt.Sprintf("%s is not the tree that it was when it was opened", t)}
	}
	return nil
}
