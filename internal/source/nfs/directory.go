//go:build linux

package nfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/source"
)

// pageBytes is the size of a page of a listing. Servers return less if they want to.
const pageBytes = 1 << 20

type directory struct {
	tree   *tree
	path   string
	handle nfs3.Handle
	attr   nfs3.Attr
	self   backup.Entry
	denied error // why it cannot be listed; otherwise nil

	page   nfs3.DirPage // the first page, until it is read
	next   nfs3.Position
	eof    bool
	cycle  cycle
	closed bool

	mu     sync.Mutex
	listed map[string]*nfs3.DirEntry // of the first page, for OpenFile; nil until it is used
}

func (d *directory) Self() backup.Entry { return d.self }

func (d *directory) Close() error {
	d.closed = true
	return nil
}

// fetch lists the next page.
func (d *directory) fetch(ctx context.Context) (page nfs3.DirPage, err error) {
	page, err = d.fetchPlus(ctx)
	if errors.Is(err, nfs3.StatusNotSupp) {
		page, err = d.tree.server.nfs.ReadDir(ctx, d.handle, d.next, pageBytes, nil)
	}
	if err != nil {
		return nfs3.DirPage{}, err
	}
	if page.EOF {
		d.eof = true
		return page, nil
	}
	if page.Next.Cookie == d.next.Cookie || d.cycle.closes(page.Next.Cookie) {
		return nfs3.DirPage{}, fmt.Errorf("the server lists a directory without coming to its end: %w", syscall.EIO)
	}
	d.next = page.Next
	return page, nil
}

// fetchPlus lists the next page, with attributes. If an entry of the page vanishes meanwhile,
// nfs-ganesha answers that the directory is stale, or does not exist, or that the server failed. So
// it is asked again while the directory exists. The last answer is StatusNotSupp: the entries can
// be listed without attributes.
func (d *directory) fetchPlus(ctx context.Context) (page nfs3.DirPage, err error) {
	if d.tree.noPlus.Load() {
		return page, nfs3.StatusNotSupp
	}
	const tries = 4
	for range tries {
		page, err = d.tree.server.nfs.ReadDirPlus(ctx, d.handle, d.next, pageBytes, nil)
		if errors.Is(err, nfs3.StatusNotSupp) {
			d.tree.noPlus.Store(true)
		}
		if !errors.Is(err, nfs3.ErrStale) && !errors.Is(err, nfs3.StatusNoEnt) && !errors.Is(err, nfs3.StatusServerFault) {
			return page, err
		}
		if _, gone := d.tree.server.nfs.GetAttr(ctx, d.handle); gone != nil {
			return page, err
		}
	}
	return page, nfs3.StatusNotSupp
}

// A cycle recognizes a sequence of cookies that leads back to an earlier one. It compares each with
// one earlier cookie, which it replaces at growing distances (Brent's algorithm).
type cycle struct {
	earlier     uint64
	steps, most int
}

func (c *cycle) closes(cookie uint64) bool {
	if c.most > 0 && cookie == c.earlier {
		return true
	}
	if c.steps++; c.steps >= c.most {
		c.earlier, c.steps, c.most = cookie, 0, max(2*c.most, 1)
	}
	return false
}

// isIn reports whether the listing shows that the directory is in the one with this file ID.
func (d *directory) isIn(parent uint64) bool {
	for i := range d.page.Entries {
		if d.page.Entries[i].Name == ".." {
			return d.page.Entries[i].FileID == parent
		}
	}
	return false
}

// Read implements source.Directory. It returns the entries of one page.
func (d *directory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	if err := ctx.Err(); err != nil {
		return dst, 0, err
	}
	if d.closed {
		return dst, 0, fs.ErrClosed
	}
	if d.denied != nil {
		return dst, 0, pathError("list", d.path, d.denied)
	}
	d.mu.Lock()
	d.listed = map[string]*nfs3.DirEntry{} // a walker that opens a file later wants the one that is there then
	d.mu.Unlock()
	have, stats := len(dst), 0
	for len(dst) == have && stats == 0 {
		page := d.page
		d.page = nfs3.DirPage{}
		if page.Entries == nil {
			if d.eof {
				return dst, 0, io.EOF
			}
			var err error
			if page, err = d.fetch(ctx); err != nil {
				return dst, 0, pathError("list", d.path, err)
			}
		}
		var err error
		if dst, stats, err = d.add(ctx, dst, page.Entries, problem); err != nil {
			return dst[:have], 0, pathError("list", d.path, err)
		}
	}
	return dst, stats, nil
}

// add appends the entries of a page. It asks the server only for what the page lacks.
func (d *directory) add(ctx context.Context, dst []backup.Entry, listed []nfs3.DirEntry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	listed = slices.DeleteFunc(listed, func(e nfs3.DirEntry) bool { return e.Name == "." || e.Name == ".." })
	namesBytes := 0
	for i := range listed {
		if err := backup.CheckName(listed[i].Name); err != nil {
			return dst, 0, fmt.Errorf("the server lists an impossible name: %w: %w", err, syscall.EIO)
		}
		namesBytes += len(listed[i].Name)
	}
	lacks, err := d.complete(ctx, listed)
	if err != nil {
		return dst, 0, err
	}
	dst = slices.Grow(dst, len(listed))
	var names strings.Builder
	names.Grow(namesBytes)
	stats, now := 0, time.Now()
	for i := range listed {
		l := &listed[i]
		from := names.Len()
		names.WriteString(l.Name)
		name := names.String()[from:]
		if lack := lacks[i]; lack.err != nil {
			stats++
			problem(name, lack.op, asError(lack.err))
			continue
		}
		if l.Attr.Type == nfs3.Directory {
			dst = append(dst, backup.Entry{Name: name, Kind: backup.Directory, Inode: l.FileID})
			if l.Handle != "" {
				n := node{handle: nfs3.Handle(strings.Clone(string(l.Handle))), attr: l.Attr.Attr, parent: d.attr}
				d.tree.kept.put(backup.Join(d.path, name), n, now)
			}
			continue
		}
		stats++
		e, err := entryOf(&l.Attr.Attr)
		if err != nil {
			problem(name, "stat", err)
			continue
		}
		e.Name, e.Target = name, lacks[i].target
		if e.Device != d.self.Device {
			e.Flags |= backup.Boundary
		}
		dst = append(dst, e)
	}
	return dst, stats, nil
}

// OpenFile implements source.Directory. The file is the one that the directory had when it was
// opened, if that is known and nothing was read since. Otherwise, it is looked up.
func (d *directory) OpenFile(ctx context.Context, name string) (source.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := backup.CheckName(name); err != nil {
		return nil, err
	}
	f := &file{ctx: ctx, tree: d.tree}
	if l := d.takeListed(name); l != nil {
		f.handle, f.attr = nfs3.Handle(strings.Clone(string(l.Handle))), l.Attr.Attr
	} else {
		found, err := d.tree.server.lookup(ctx, d.handle, name)
		if err != nil {
			return nil, pathError("open", name, err)
		}
		f.handle, f.attr = found.Handle, found.Attr.Attr
	}
	if f.attr.Type != nfs3.Regular {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("no regular file any more: %w", source.ErrReplaced)}
	}
	f.fresh = true
	return f, nil
}

// takeListed returns an entry of the first page, once.
func (d *directory) takeListed(name string) *nfs3.DirEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listed == nil {
		d.listed = make(map[string]*nfs3.DirEntry, len(d.page.Entries))
		for i := range d.page.Entries {
			if e := &d.page.Entries[i]; e.Handle != "" && e.Attr.Known && e.Attr.Type == nfs3.Regular {
				d.listed[e.Name] = e
			}
		}
	}
	e := d.listed[name]
	delete(d.listed, name)
	return e
}

// Xattrs implements source.Directory: the protocol has no extended attributes.
func (d *directory) Xattrs(ctx context.Context, name string, _ backup.Kind) ([]backup.Xattr, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if name != "" {
		if err := backup.CheckName(name); err != nil {
			return nil, err
		}
	}
	return nil, source.ErrNoXattrs
}
