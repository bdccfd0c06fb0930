package mount

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/hardlink"
)

var (
	errNoIdentity = errors.New("no identity: content is not shown")
	errEnd        = errors.New("end of directory")
)

// stale is the status of what was there, and is not there any more.
const stale = fuse.Status(syscall.ESTALE)

// A fileSystem answers the requests of the kernel.
type fileSystem struct {
	fuse.RawFileSystem // refuses everything else

	o       *Options
	ctx     context.Context // ends when the mount does
	started time.Time
	owner   fuse.Owner // of what is above snapshots

	nodes       *nodes
	views       *views
	directories *directories
	chunks      *chunks // nil: there is no identity

	mu      sync.Mutex
	handles map[uint64]any // *file, *openDirectory
	last    uint64
}

// status logs an error, and returns the status that the request ends with.
func (f *fileSystem) status(n *node, err error) fuse.Status {
	switch {
	case err == nil:
		return fuse.OK
	case errors.Is(err, errNoIdentity):
		return fuse.EACCES
	case errors.Is(err, context.Canceled):
		return fuse.EINTR
	case errors.As(err, new(syscall.Errno)):
		return fuse.ToStatus(err)
	}
	if n.view == nil {
		f.o.Log.Error("the snapshots cannot be listed in the mount", "error", err)
	} else {
		f.o.Log.Error("what was read in the mount is damaged, or cannot be reached", "snapshot", n.view.id.Short(), "path", n.path(), "error", err)
	}
	return fuse.EIO
}

// statusIn is status, for a directory or file whose snapshot may have been forgotten.
func (f *fileSystem) statusIn(n *node, err error) fuse.Status {
	if errors.Is(err, backup.ErrNotFound) {
		return stale
	}
	return f.status(n, err)
}

// Lookup implements fuse.RawFileSystem.
func (f *fileSystem) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	parent := f.nodes.get(header.NodeId)
	if parent == nil {
		return stale
	}
	ctx, stop := f.request(cancel)
	defer stop()
	if parent.above != nil {
		return f.lookupAbove(ctx, parent, name, out)
	}
	if parent.entry != nil {
		return fuse.ENOTDIR
	}
	if err := f.views.use(parent.view); err != nil {
		return stale
	}
	path := backup.Join(parent.path(), name)
	if n := f.nodes.known(parent, name); n != nil {
		return f.foundAgain(ctx, out, n, path)
	}
	var e *backup.Entry
	err := f.patiently(ctx, func(ctx context.Context) (err error) {
		if e, err = f.directories.lookup(ctx, parent.view, parent.path(), name); err == nil && e != nil && e.Kind == backup.Directory {
			e, err = f.directories.self(ctx, parent.view, path)
		}
		return err
	})
	if err != nil {
		return f.statusIn(parent, err)
	}
	if e == nil { // the kernel remembers that, too
		*out = fuse.EntryOut{}
		out.SetEntryTimeout(keepFor)
		return fuse.OK
	}
	n := f.nodes.add(f.newNode(parent, name, path, e))
	f.found(out, n, e, parent.view.inode(path, parent.volume, e))
	return fuse.OK
}

// newNode returns a node for an entry; of a directory, e is the Self.
func (f *fileSystem) newNode(parent *node, name, path string, e *backup.Entry) *node {
	n := &node{parent: parent, name: strings.Clone(name), view: parent.view, volume: parent.volume}
	if e.Kind == backup.Directory {
		n.volume = volumeOf(path, e, parent.volume)
	} else {
		n.entry = compact(e)
	}
	return n
}

// found fills the answer to a request that looked up a node.
func (f *fileSystem) found(out *fuse.EntryOut, n *node, e *backup.Entry, inode uint64) {
	out.NodeId = n.id
	n.view.fill(&out.Attr, e, inode)
	out.SetEntryTimeout(keepFor)
	out.SetAttrTimeout(keepFor)
}

// foundAgain is found for a node that the kernel knows.
func (f *fileSystem) foundAgain(ctx context.Context, out *fuse.EntryOut, n *node, path string) fuse.Status {
	e, err := f.entry(ctx, n)
	if err != nil {
		f.nodes.forget(n.id, 1)
		return f.statusIn(n, err)
	}
	f.found(out, n, e, n.view.inode(path, n.parent.volume, e))
	return fuse.OK
}

// entry returns the entry of a node of a snapshot.
func (f *fileSystem) entry(ctx context.Context, n *node) (e *backup.Entry, err error) {
	if n.entry != nil {
		return n.entry, nil
	}
	err = f.patiently(ctx, func(ctx context.Context) (err error) {
		e, err = f.directories.self(ctx, n.view, n.path())
		return err
	})
	return e, err
}

// lookupAbove is Lookup above snapshots.
func (f *fileSystem) lookupAbove(ctx context.Context, parent *node, name string, out *fuse.EntryOut) fuse.Status {
	var it *item
	err := f.patiently(ctx, func(ctx context.Context) (err error) {
		it, err = f.findAbove(ctx, parent.above, name)
		return err
	})
	switch {
	case err != nil:
		return f.status(parent, err)
	case it == nil:
		return fuse.ENOENT
	}
	n := &node{parent: parent, name: name, above: it.level}
	if it.snapshot != nil {
		n.view = f.views.get(it.snapshot)
		if err := f.views.use(n.view); err != nil {
			return fuse.ENOENT
		}
	}
	n = f.nodes.add(n)
	out.NodeId = n.id
	out.SetEntryTimeout(keepAbove)
	out.SetAttrTimeout(keepAbove)
	if n.view == nil {
		f.fillLevel(&out.Attr, it.level, levelInode(parent, name))
		return fuse.OK
	}
	e, err := f.entry(ctx, n)
	if err != nil {
		f.nodes.forget(n.id, 1)
		return f.statusIn(n, err)
	}
	n.view.fill(&out.Attr, e, levelInode(parent, name))
	return fuse.OK
}

// Forget implements fuse.RawFileSystem.
func (f *fileSystem) Forget(id, lookups uint64) { f.nodes.forget(id, lookups) }

// GetAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	if n.above != nil {
		inode := uint64(fuse.FUSE_ROOT_ID)
		if n.parent != nil {
			inode = levelInode(n.parent, n.name)
		}
		f.fillLevel(&out.Attr, n.above, inode)
		out.SetTimeout(keepAbove)
		return fuse.OK
	}
	ctx, stop := f.request(cancel)
	defer stop()
	e, err := f.entry(ctx, n)
	if err != nil {
		return f.statusIn(n, err)
	}
	n.view.fill(&out.Attr, e, f.inodeOf(n, e))
	out.SetTimeout(keepFor)
	return fuse.OK
}

// inodeOf returns the inode number of a node of a snapshot.
func (f *fileSystem) inodeOf(n *node, e *backup.Entry) uint64 {
	if n.isTop() {
		return levelInode(n.parent, n.name)
	}
	return n.view.inode(n.path(), n.parent.volume, e)
}

// Access implements fuse.RawFileSystem. Without default_permissions, who may use the mount may
// read everything that the identity opens.
func (f *fileSystem) Access(_ <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	const write = 2
	if in.Mask&write != 0 {
		return fuse.EROFS
	}
	return fuse.OK
}

// Readlink implements fuse.RawFileSystem.
func (f *fileSystem) Readlink(_ <-chan struct{}, header *fuse.InHeader) ([]byte, fuse.Status) {
	n := f.nodes.get(header.NodeId)
	switch {
	case n == nil:
		return nil, stale
	case n.above != nil && n.above.kind == symlinkLevel:
		return []byte(n.above.target), fuse.OK
	case n.entry == nil || n.entry.Kind != backup.Symlink:
		return nil, fuse.EINVAL
	}
	return []byte(n.entry.Target), fuse.OK
}

// GetXAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, header *fuse.InHeader, name string, dst []byte) (uint32, fuse.Status) {
	xattrs, status := f.xattrsOf(cancel, header)
	if !status.Ok() {
		return 0, status
	}
	for i := range xattrs {
		if xattrs[i].Name == name {
			return fit(dst, xattrs[i].Value)
		}
	}
	return 0, fuse.ENODATA
}

// ListXAttr implements fuse.RawFileSystem.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, header *fuse.InHeader, dst []byte) (uint32, fuse.Status) {
	xattrs, status := f.xattrsOf(cancel, header)
	if !status.Ok() {
		return 0, status
	}
	var names []byte
	for i := range xattrs {
		names = append(append(names, xattrs[i].Name...), 0)
	}
	return fit(dst, names)
}

// fit copies a value. Without room for any, it only returns the length.
func fit(dst, value []byte) (uint32, fuse.Status) {
	if len(dst) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dst, value)), fuse.OK
}

func (f *fileSystem) xattrsOf(cancel <-chan struct{}, header *fuse.InHeader) ([]backup.Xattr, fuse.Status) {
	n := f.nodes.get(header.NodeId)
	if n == nil {
		return nil, stale
	}
	if n.above != nil || n.entry != nil && n.entry.XattrChunk.Length == 0 && len(n.entry.Xattrs) == 0 {
		return nil, fuse.OK
	}
	ctx, stop := f.request(cancel)
	defer stop()
	e, err := f.entry(ctx, n)
	if err != nil {
		return nil, f.statusIn(n, err)
	}
	xattrs, err := f.xattrs(ctx, e)
	return xattrs, f.status(n, err)
}

// OpenDir implements fuse.RawFileSystem.
func (f *fileSystem) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	if n.view != nil {
		if err := f.views.use(n.view); err != nil {
			return stale
		}
	}
	ctx, stop := f.request(cancel)
	defer stop()
	var o *openDirectory
	err := f.patiently(ctx, func(ctx context.Context) (err error) {
		o, err = f.openDirectory(ctx, n)
		return err
	})
	if err != nil {
		return f.statusIn(n, err)
	}
	if n.view != nil {
		n.view.opened(1)
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_CACHE_DIR
	}
	out.Fh = f.handle(o)
	return fuse.OK
}

// handle returns a number for something that is open.
func (f *fileSystem) handle(open any) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	f.handles[f.last] = open
	return f.last
}

func (f *fileSystem) opened(handle uint64) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.handles[handle]
}

func (f *fileSystem) closed(handle uint64) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	open := f.handles[handle]
	delete(f.handles, handle)
	return open
}

// ReadDir implements fuse.RawFileSystem.
func (f *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDirectory(in, out, false)
}

// ReadDirPlus implements fuse.RawFileSystem.
func (f *fileSystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDirectory(in, out, true)
}

func (f *fileSystem) readDirectory(in *fuse.ReadIn, out *fuse.DirEntryList, plus bool) fuse.Status {
	o, ok := f.opened(in.Fh).(*openDirectory)
	if !ok {
		return fuse.EBADF
	}
	return f.statusIn(o.n, o.read(out, plus))
}

// ReleaseDir implements fuse.RawFileSystem.
func (f *fileSystem) ReleaseDir(in *fuse.ReleaseIn) {
	if o, ok := f.closed(in.Fh).(*openDirectory); ok {
		o.close()
		if o.n.view != nil {
			o.n.view.opened(-1)
		}
	}
}

// Open implements fuse.RawFileSystem.
func (f *fileSystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	switch {
	case n == nil:
		return stale
	case n.entry == nil || n.entry.Kind != backup.File:
		return fuse.EINVAL
	case in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return fuse.EROFS
	case n.entry.Flags&hardlink.Missing != 0:
		return f.status(n, browse.ErrContentMissing)
	case f.chunks == nil && n.entry.Size > 0:
		return fuse.EACCES
	}
	if err := f.views.use(n.view); err != nil {
		return stale
	}
	n.view.opened(1)
	out.Fh, out.OpenFlags = f.handle(newFile(f, n)), fuse.FOPEN_KEEP_CACHE|fuse.FOPEN_NOFLUSH
	return fuse.OK
}

// Read implements fuse.RawFileSystem.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, dst []byte) (fuse.ReadResult, fuse.Status) {
	o, ok := f.opened(in.Fh).(*file)
	if !ok {
		return nil, fuse.EBADF
	}
	if o.e.Size == 0 {
		return fuse.ReadResultData(nil), fuse.OK
	}
	ctx, stop := f.request(cancel)
	defer stop()
	n, err := o.read(ctx, dst[:min(len(dst), int(in.Size))], int64(in.Offset))
	if err != nil {
		return nil, f.status(o.n, err)
	}
	return fuse.ReadResultData(dst[:n]), fuse.OK
}

// Lseek implements fuse.RawFileSystem: SEEK_DATA and SEEK_HOLE.
func (f *fileSystem) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	const seekData, seekHole = 3, 4
	o, ok := f.opened(in.Fh).(*file)
	if !ok || in.Whence != seekData && in.Whence != seekHole {
		return fuse.EINVAL
	}
	ctx, stop := f.request(cancel)
	defer stop()
	at, err := o.seek(ctx, int64(in.Offset), in.Whence == seekHole)
	if err != nil {
		return f.status(o.n, err)
	}
	out.Offset = uint64(at)
	return fuse.OK
}

// Release implements fuse.RawFileSystem.
func (f *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if o, ok := f.closed(in.Fh).(*file); ok {
		o.n.view.opened(-1)
	}
}

// StatFs implements fuse.RawFileSystem.
func (f *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = pageBytes, pageBytes, backup.MaxEntryNameBytes
	return fuse.OK
}

// String implements fuse.RawFileSystem.
func (f *fileSystem) String() string { return "bctl" }
