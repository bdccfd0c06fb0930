//go:build linux

package slowfs

import (
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// operations implement the requests of the kernel. For all others RawFileSystem returns ENOSYS,
// after which the kernel does not send them again.
type operations struct {
	fuse.RawFileSystem
	load        *load
	nodes       *nodes
	attrTimeout time.Duration

	mu      sync.Mutex
	handles map[uint64]*handle
	last    uint64 // handle
}

// A handle is an open file or directory.
type handle struct {
	node  *node
	fd    int      // -1: of .snapshot
	names []string // in .snapshot, when it was opened

	mu   sync.Mutex
	next uint64 // where fd is in the directory
	page []byte
}

func (o *operations) String() string { return "slowfs" }

// begin finds the node of a request and lets the filer take its time.
func (o *operations) begin(k kind, h *fuse.InHeader, cancel <-chan struct{}, r request) (*node, fuse.Status) {
	n := o.nodes.get(h.NodeId)
	if n == nil {
		return nil, stale
	}
	r.kind, r.node, r.pid, r.cancel = k, n, h.Pid, cancel
	return n, o.load.serve(r)
}

// Lookup finds a name in a directory.
func (o *operations) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	parent, status := o.begin(lookup, header, cancel, request{name: name})
	if !status.Ok() {
		return status
	}
	if parent.isRoot() && name == snapshotDirectory && len(o.nodes.snapshotNames()) > 0 {
		return o.entry(o.nodes.found(key{}, ""), out)
	}
	v, path := parent.key.view, parent.foundAt()+"/"+name
	if parent.listsSnapshots() {
		if v = o.nodes.snapshotNamed(name); v == nil {
			return fuse.ENOENT
		}
		path = v.root
	} else {
		var st syscall.Stat_t // a directory that was moved has other names at its path now
		if status := parent.stat(&st); !status.Ok() {
			return status
		}
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return fuse.ToStatus(err)
	}
	n := o.nodes.found(key{v, st.Dev, st.Ino}, path)
	o.fill(n, &st, out)
	return fuse.OK
}

// entry fills out with a node that has no file.
func (o *operations) entry(n *node, out *fuse.EntryOut) fuse.Status {
	var st syscall.Stat_t
	status := n.stat(&st)
	o.fill(n, &st, out)
	return status
}

func (o *operations) fill(n *node, st *syscall.Stat_t, out *fuse.EntryOut) {
	out.NodeId, out.Generation = n.id, 1
	out.FromStat(st)
	out.SetAttrTimeout(o.attrTimeout)
	n.fresh.Store(o.attrTimeout == 0)
}

// Forget implements fuse.RawFileSystem.
func (o *operations) Forget(nodeid, nlookup uint64) { o.nodes.forget(nodeid, nlookup) }

// GetAttr costs nothing right after a LOOKUP, which had the attributes already.
func (o *operations) GetAttr(cancel <-chan struct{}, input *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := o.nodes.get(input.NodeId)
	free := n != nil && n.fresh.Swap(false)
	n, status := o.begin(getattr, &input.InHeader, cancel, request{free: free})
	if !status.Ok() {
		return status
	}
	var st syscall.Stat_t
	if status := n.stat(&st); !status.Ok() {
		return status
	}
	out.FromStat(&st)
	out.SetTimeout(o.attrTimeout)
	return fuse.OK
}

// Readlink implements fuse.RawFileSystem.
func (o *operations) Readlink(cancel <-chan struct{}, header *fuse.InHeader) ([]byte, fuse.Status) {
	n, status := o.begin(readlink, header, cancel, request{})
	if !status.Ok() {
		return nil, status
	}
	var st syscall.Stat_t
	if status := n.stat(&st); !status.Ok() {
		return nil, status
	}
	target := make([]byte, unix.PathMax)
	length, err := unix.Readlink(n.foundAt(), target)
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	return target[:length], fuse.OK
}

// GetXAttr implements fuse.RawFileSystem.
func (o *operations) GetXAttr(cancel <-chan struct{}, header *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	return o.xattr(cancel, header, func(path string) (int, error) { return unix.Lgetxattr(path, name, dest) })
}

// ListXAttr implements fuse.RawFileSystem.
func (o *operations) ListXAttr(cancel <-chan struct{}, header *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	return o.xattr(cancel, header, func(path string) (int, error) { return unix.Llistxattr(path, dest) })
}

func (o *operations) xattr(cancel <-chan struct{}, header *fuse.InHeader, call func(path string) (int, error)) (uint32, fuse.Status) {
	n, status := o.begin(xattr, header, cancel, request{})
	if !status.Ok() {
		return 0, status
	}
	if n.listsSnapshots() {
		return 0, fuse.ENODATA
	}
	var st syscall.Stat_t
	if status := n.stat(&st); !status.Ok() {
		return 0, status
	}
	size, err := call(n.foundAt())
	return uint32(max(size, 0)), fuse.ToStatus(err)
}

// Open opens a file to read.
func (o *operations) Open(cancel <-chan struct{}, input *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, status := o.begin(open, &input.InHeader, cancel, request{})
	if !status.Ok() {
		return status
	}
	return o.open(n, unix.O_RDONLY|unix.O_NONBLOCK, out)
}

// OpenDir costs nothing: NFS has no such request.
func (o *operations) OpenDir(_ <-chan struct{}, input *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := o.nodes.get(input.NodeId)
	if n == nil {
		return stale
	}
	if status := o.load.fault(request{kind: openDirectory, node: n}); !status.Ok() {
		return status
	}
	if n.listsSnapshots() {
		o.add(&handle{node: n, fd: -1, names: o.nodes.snapshotNames()}, out)
		return fuse.OK
	}
	return o.open(n, unix.O_RDONLY|unix.O_DIRECTORY, out)
}

func (o *operations) open(n *node, flags int, out *fuse.OpenOut) fuse.Status {
	if n.key.view.expired.Load() {
		return stale
	}
	fd, err := unix.Open(n.foundAt(), flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if err == unix.ENOENT || err == unix.ENOTDIR {
			return stale
		}
		return fuse.ToStatus(err)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd) // it was not even read
		return fuse.ToStatus(err)
	}
	if status := n.check(&st); !status.Ok() {
		_ = unix.Close(fd) // it was not even read
		return status
	}
	o.add(&handle{node: n, fd: fd}, out)
	return fuse.OK
}

func (o *operations) add(h *handle, out *fuse.OpenOut) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	o.handles[o.last] = h
	out.Fh = o.last
}

func (o *operations) handle(fh uint64) *handle {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.handles[fh]
}

// Release implements fuse.RawFileSystem.
func (o *operations) Release(_ <-chan struct{}, input *fuse.ReleaseIn) { o.release(input.Fh) }

// ReleaseDir implements fuse.RawFileSystem.
func (o *operations) ReleaseDir(input *fuse.ReleaseIn) { o.release(input.Fh) }

func (o *operations) release(fh uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.handles[fh]
	delete(o.handles, fh)
	if h != nil && h.fd >= 0 {
		_ = unix.Close(h.fd) // it was only read
	}
}

// OnUnmount closes the files that the kernel did not close, because the file system was still in
// use.
func (o *operations) OnUnmount() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for fh, h := range o.handles {
		delete(o.handles, fh)
		if h.fd >= 0 {
			_ = unix.Close(h.fd) // it was only read
		}
	}
}

// Read implements fuse.RawFileSystem.
func (o *operations) Read(cancel <-chan struct{}, input *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, status := o.begin(read, &input.InHeader, cancel, request{})
	if !status.Ok() {
		return nil, status
	}
	h := o.handle(input.Fh)
	if h == nil || n.key.view.expired.Load() {
		return nil, stale
	}
	length, err := unix.Pread(h.fd, buf, int64(input.Offset))
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	o.load.readBytes.Add(int64(length))
	return fuse.ReadResultData(buf[:length]), fuse.OK
}

// Lseek is for holes.
func (o *operations) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	h := o.handle(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	if status := o.load.fault(request{kind: seek, node: h.node}); !status.Ok() {
		return status
	}
	at, err := unix.Seek(h.fd, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(at)
	return fuse.ToStatus(err)
}

// ReadDir answers with one page of a directory.
func (o *operations) ReadDir(cancel <-chan struct{}, input *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	n, status := o.begin(list, &input.InHeader, cancel, request{})
	if !status.Ok() {
		return status
	}
	h := o.handle(input.Fh)
	if h == nil {
		return fuse.EBADF
	}
	if h.fd < 0 {
		for i := int(input.Offset); i < len(h.names); i++ {
			if !out.AddDirEntry(fuse.DirEntry{Name: h.names[i], Mode: unix.S_IFDIR, Off: uint64(i) + 1}) {
				break
			}
		}
		return fuse.OK
	}
	if n.key.view.expired.Load() {
		return stale
	}
	return h.readPage(input.Offset, int(input.Size), out)
}

// readPage passes a page on. Entries that do not fit are read again for the next page.
func (h *handle) readPage(offset uint64, size int, out *fuse.DirEntryList) fuse.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	if offset != h.next {
		if _, err := unix.Seek(h.fd, int64(offset), unix.SEEK_SET); err != nil {
			return fuse.ToStatus(err)
		}
	}
	h.next = ^uint64(0) // unknown, should something fail
	if len(h.page) < size {
		h.page = make([]byte, size)
	}
	length, err := unix.Getdents(h.fd, h.page[:size])
	if err != nil {
		return fuse.ToStatus(err)
	}
	last := offset
	for page := h.page[:length]; len(page) > 0; {
		var e fuse.DirEntry
		n := e.Parse(page)
		if n <= 0 {
			return fuse.EIO
		}
		if !out.AddDirEntry(e) {
			return fuse.OK
		}
		page, last = page[n:], e.Off
	}
	h.next = last
	return fuse.OK
}

// StatFs implements fuse.RawFileSystem.
func (o *operations) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st syscall.Statfs_t
	if err := syscall.Statfs(o.nodes.get(fuse.FUSE_ROOT_ID).foundAt(), &st); err != nil {
		return fuse.ToStatus(err)
	}
	out.FromStatfsT(&st)
	return fuse.OK
}
