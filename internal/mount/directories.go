package mount

import (
	"container/list"
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// aheadPages is the number of pages that are read at once: half of what the index fetches
	// first, so that it does not fetch more.
	aheadPages = 16
	// maxDirectoryBytes bounds the directories in memory.
	maxDirectoryBytes = 8 << 20
)

// A directory is one that was read from the index. It is not changed.
type directory struct {
	path    string
	self    *backup.Entry // nil: its first page is missing or damaged
	entries []backup.Entry
	byName  map[string]int
	lacks   error // wraps backup.ErrCorrupt: pages are missing or damaged
	bytes   int
}

func (d *directory) find(name string) *backup.Entry {
	if i, ok := d.byName[name]; ok {
		return &d.entries[i]
	}
	return nil
}

// A directoryKey names a directory of a snapshot.
type directoryKey struct {
	snapshot backup.SnapshotID
	path     string
}

// directories keeps the most recently used directories of up to aheadPages pages.
type directories struct {
	catalog Catalog

	mu     sync.Mutex
	known  map[directoryKey]*list.Element // of *cachedDirectory
	recent list.List                      // most recently used first
	bytes  int
}

type cachedDirectory struct {
	key directoryKey
	d   *directory
}

// peek returns a directory if it is in memory.
func (ds *directories) peek(v *view, path string) *directory {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	el := ds.known[directoryKey{v.id, path}]
	if el == nil {
		return nil
	}
	ds.recent.MoveToFront(el)
	return el.Value.(*cachedDirectory).d
}

// get returns a directory; nil: it has too many pages. If the snapshot has no such directory, the
// error is backup.ErrNotFound.
func (ds *directories) get(ctx context.Context, v *view, path string) (*directory, error) {
	if d := ds.peek(v, path); d != nil {
		return d, nil
	}
	var wanted *directory
	r := reading{}
	finish := func() {
		if r.d == nil {
			return
		}
		if d, whole := r.end(); whole || d.path == path && d.lacks != nil && !r.cut {
			if d.path == path {
				wanted = d
			}
			ds.put(directoryKey{v.id, d.path}, d)
		}
	}
	pages := 0
	for version, err := range ds.catalog.Pages(ctx, v.id, path) {
		if err != nil {
			return nil, err
		}
		if r.d == nil || r.d.path != version.Path {
			finish()
			r = reading{d: &directory{path: version.Path, byName: map[string]int{}}}
		}
		r.add(version)
		if pages++; pages == aheadPages {
			r.cut = true
			break
		}
	}
	finish()
	if wanted == nil && (r.d == nil || r.d.path != path) {
		for _, err := range browse.Entries(ctx, ds.catalog, v.id, path) {
			return nil, err // why there is none
		}
	}
	return wanted, nil
}

// A reading is a directory whose pages are being read.
type reading struct {
	d     *directory
	chain browse.Chain
	cut   bool // there may be further pages
}

func (r *reading) add(v backup.PageVersion) {
	page, err := listing.DecodePage(v)
	if err != nil {
		r.d.lacks = err
		return
	}
	r.chain.Add(page.Key, page.Next)
	if page.Self != nil {
		r.d.self = page.Self
	}
	for i := range page.Entries {
		e := &page.Entries[i]
		r.d.bytes += entryBytes(e)
		if backup.CheckName(e.Name) == nil {
			r.d.byName[e.Name] = len(r.d.entries)
			r.d.entries = append(r.d.entries, *e)
		}
	}
}

// end returns the directory, and whether all of its pages are there.
func (r *reading) end() (d *directory, whole bool) {
	if err := r.chain.Err(); r.d.lacks == nil && err != nil {
		r.d.lacks = err
	}
	return r.d, r.d.lacks == nil
}

// entryBytes estimates the memory of an entry.
func entryBytes(e *backup.Entry) int {
	n := 400 + 2*len(e.Name) + len(e.Target) + 64*len(e.Content.Refs)
	for i := range e.Xattrs {
		n += 64 + len(e.Xattrs[i].Name) + len(e.Xattrs[i].Value)
	}
	return n
}

func (ds *directories) put(key directoryKey, d *directory) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.known[key] != nil {
		return
	}
	d.bytes += 512 + 2*len(d.path)
	ds.known[key] = ds.recent.PushFront(&cachedDirectory{key, d})
	ds.bytes += d.bytes
	for ds.bytes > maxDirectoryBytes && ds.recent.Len() > 1 {
		oldest := ds.recent.Remove(ds.recent.Back()).(*cachedDirectory)
		delete(ds.known, oldest.key)
		ds.bytes -= oldest.d.bytes
	}
}

// self returns the attributes of a directory. If they are not known, only the kind is set.
func (ds *directories) self(ctx context.Context, v *view, path string) (*backup.Entry, error) {
	d, err := ds.get(ctx, v, path)
	if err != nil {
		return nil, err
	}
	if d != nil && d.self != nil {
		return d.self, nil
	}
	e, err := browse.Directory(ctx, ds.catalog, v.id, path)
	if e == nil && (err == nil || errors.Is(err, backup.ErrCorrupt)) {
		return &backup.Entry{Kind: backup.Directory, Flags: backup.AttributesUnknown | backup.Unreadable}, nil
	}
	return e, err
}

// lookup returns the entry of a name in a directory, which is nil if there is none.
func (ds *directories) lookup(ctx context.Context, v *view, dir, name string) (*backup.Entry, error) {
	d, err := ds.get(ctx, v, dir)
	if err != nil {
		return nil, err
	}
	if d == nil { // a large directory
		for e, err := range browse.Entries(ctx, ds.catalog, v.id, dir) {
			if err != nil {
				return nil, err
			}
			if e.Name == name {
				return &e, nil
			}
		}
		return nil, nil
	}
	e := d.find(name)
	if e == nil {
		return nil, d.lacks
	}
	return e, nil
}

// pages yields the entries of a directory in runs.
func (ds *directories) pages(ctx context.Context, v *view, path string) iter.Seq2[[]backup.Entry, error] {
	return func(yield func([]backup.Entry, error) bool) {
		var run []backup.Entry
		for e, err := range browse.Entries(ctx, ds.catalog, v.id, path) {
			if err != nil {
				if len(run) == 0 || yield(run, nil) {
					yield(nil, err)
				}
				return
			}
			if backup.CheckName(e.Name) == nil {
				run = append(run, e)
			}
			if len(run) == runEntries {
				if !yield(run, nil) {
					return
				}
				run = nil
			}
		}
		if len(run) > 0 {
			yield(run, nil)
		}
	}
}

// runEntries is the number of entries of a large directory that are in memory at a time.
const runEntries = 1024
