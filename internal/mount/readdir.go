package mount

import (
	"context"
	"iter"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bctl/bctl/internal/backup"
)

// An openDirectory is a directory that is being listed. Its offsets count the items, after "." and
// "..".
type openDirectory struct {
	f      *fileSystem
	n      *node
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	run   []item // some of the items
	first uint64 // offset of the first of run
	whole bool   // run has all items
	err   error  // after the last item
	next  func() ([]backup.Entry, error, bool)
	stop  func()
}

const dots = 2 // "." and ".."

// openDirectory opens a directory.
func (f *fileSystem) openDirectory(ctx context.Context, n *node) (*openDirectory, error) {
	o := &openDirectory{f: f, n: n, first: dots}
	if n.above != nil {
		items, err := f.list(ctx, n.above)
		o.run, o.whole = items, true
		return o, err
	}
	d, err := f.directories.get(ctx, n.view, n.path())
	if err != nil {
		return nil, err
	}
	if d != nil {
		o.run, o.whole, o.err = items(d.entries), true, d.lacks
	}
	o.ctx, o.cancel = context.WithCancel(f.ctx)
	return o, nil
}

func items(entries []backup.Entry) []item {
	list := make([]item, len(entries))
	for i := range entries {
		list[i] = item{name: entries[i].Name, entry: &entries[i]}
	}
	return list
}

// close ends the reading of a large directory.
func (o *openDirectory) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cancel != nil {
		o.cancel()
	}
	o.rewind()
}

func (o *openDirectory) rewind() {
	if o.stop != nil {
		o.stop()
	}
	o.next, o.stop = nil, nil
	if !o.whole {
		o.run, o.first, o.err = nil, dots, nil
	}
}

// at returns the item at an offset; nil: there is none, after which err is set if not all are
// known.
func (o *openDirectory) at(offset uint64) (*item, error) {
	if offset < o.first {
		o.rewind()
	}
	for {
		if i := offset - o.first; i < uint64(len(o.run)) {
			return &o.run[i], nil
		}
		if o.whole || o.err != nil {
			return nil, o.err
		}
		if o.next == nil {
			o.next, o.stop = iter.Pull2(o.f.directories.pages(o.ctx, o.n.view, o.n.path()))
		}
		entries, err, ok := o.next()
		switch {
		case !ok:
			o.err = errEnd
			return nil, errEnd
		case err != nil:
			o.err = err
			return nil, err
		}
		o.first += uint64(len(o.run))
		o.run = items(entries)
	}
}

// read adds the items from out.Offset on, with their attributes if plus is set.
func (o *openDirectory) read(out *fuse.DirEntryList, plus bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for began := out.Offset; ; {
		offset := out.Offset
		if offset < dots {
			name := [...]string{".", ".."}[offset]
			e := fuse.DirEntry{Name: name, Mode: fuse.S_IFDIR, Ino: fuse.FUSE_UNKNOWN_INO}
			if !add(out, e, plus) {
				return nil
			}
			continue
		}
		it, err := o.at(offset)
		if it == nil {
			if err == errEnd || offset > began { //nolint:errorlint // it is never wrapped; the error is returned by the next call
				err = nil
			}
			return err
		}
		if !o.item(out, it, plus) {
			return nil
		}
	}
}

func add(out *fuse.DirEntryList, e fuse.DirEntry, plus bool) bool {
	if plus {
		return out.AddDirLookupEntry(e) != nil
	}
	return out.AddDirEntry(e)
}

// item adds one item. A directory has attributes only if they are known: the kernel looks others up
// when it needs them.
func (o *openDirectory) item(out *fuse.DirEntryList, it *item, plus bool) bool {
	f, n := o.f, o.n
	e := fuse.DirEntry{Name: it.name, Mode: it.kind()}
	if it.entry == nil {
		e.Ino = levelInode(n, it.name)
		return add(out, e, plus)
	}
	path := backup.Join(n.path(), it.name)
	self := it.entry
	e.Ino = n.view.inode(path, n.volume, self)
	if self.Kind == backup.Directory {
		d := f.directories.peek(n.view, path)
		if !plus || d == nil || d.self == nil {
			return add(out, e, plus)
		}
		self = d.self
	}
	if !plus {
		return out.AddDirEntry(e)
	}
	entry := out.AddDirLookupEntry(e)
	if entry == nil {
		return false
	}
	f.found(entry, f.nodes.add(f.newNode(n, it.name, path, self)), self, e.Ino)
	return true
}
