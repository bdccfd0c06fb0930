package restore

import (
	"container/list"
	"context"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/restore/target"
)

// Extended attributes that a page has no room for are in chunks. They are
// fetched for a whole window of entries before it is decided what to do about
// these. ACLs repeat: the chunks used last are kept.

const (
	// maxWindowXattrBytes is how much of such chunks a window may have.
	maxWindowXattrBytes = 4 << 20
	// maxCachedXattrBytes bounds the attributes that are kept for windows to come.
	maxCachedXattrBytes = 8 << 20
)

// An xattrSet is the content of an xattr chunk, or why it cannot be had.
type xattrSet struct {
	xattrs []backup.Xattr
	err    error
}

// bytes is about what the set takes in memory.
func (s *xattrSet) bytes() int {
	n := 128
	for i := range s.xattrs {
		n += 64 + len(s.xattrs[i].Name) + len(s.xattrs[i].Value)
	}
	return n
}

// An xattrCache keeps the sets used last. It belongs to nobody.
type xattrCache struct {
	mu     sync.Mutex
	sets   map[backup.ChunkID]*list.Element // of *cachedXattrs
	recent list.List                        // most recently used first
	bytes  int
}

type cachedXattrs struct {
	id  backup.ChunkID
	set *xattrSet
}

func (c *xattrCache) get(id backup.ChunkID) *xattrSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.sets[id]
	if el == nil {
		return nil
	}
	c.recent.MoveToFront(el)
	return el.Value.(*cachedXattrs).set
}

// put keeps a set, but for one that could not be had.
func (c *xattrCache) put(id backup.ChunkID, set *xattrSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if set.err != nil || c.sets[id] != nil {
		return
	}
	if c.sets == nil {
		c.sets = make(map[backup.ChunkID]*list.Element)
	}
	c.sets[id] = c.recent.PushFront(&cachedXattrs{id, set})
	c.bytes += set.bytes()
	for c.bytes > maxCachedXattrBytes {
		oldest := c.recent.Remove(c.recent.Back()).(*cachedXattrs)
		delete(c.sets, oldest.id)
		c.bytes -= oldest.set.bytes()
	}
}

// An xattrSink decodes xattr chunks; the offset of a want is the set's number.
type xattrSink []xattrSet

func (s xattrSink) Chunk(n int64, data []byte) {
	s[n].xattrs, s[n].err = listing.DecodeXattrs(data)
}

func (s xattrSink) Fail(n int64, err error) { s[n].err = err }

// loadXattrs returns the content of xattr chunks. The error ends the run.
func (r *restorer) loadXattrs(ctx context.Context, chunks map[backup.Ref]struct{}) (map[backup.Ref]*xattrSet, error) {
	sets := make(map[backup.Ref]*xattrSet, len(chunks))
	sink := make(xattrSink, len(chunks))
	wants := make([]fetch.Want, 0, len(chunks))
	for ref := range chunks {
		set := r.xattrs.get(ref.Chunk)
		if set == nil {
			set = &sink[len(sets)]
			wants = append(wants, fetch.Want{Chunk: ref.Chunk, Length: ref.Length, Offset: int64(len(sets)), Sink: sink})
		}
		sets[ref] = set
	}
	if err := r.fetch.Get(ctx, wants); err != nil {
		return nil, err
	}
	for ref, set := range sets {
		r.xattrs.put(ref.Chunk, set)
	}
	return sets, nil
}

// takeXattrs gives the window's files the extended attributes that are in
// chunks. Directories take theirs when they are finished (ownXattrs), from the
// cache most of the time.
func (w *window) takeXattrs(ctx context.Context, r *restorer) error {
	if len(w.xattrs) == 0 || r.root == nil { // nothing is there to compare with
		return nil
	}
	sets, err := r.loadXattrs(ctx, w.xattrs)
	if err != nil {
		return err
	}
	for _, f := range w.files {
		if f.e.XattrChunk.Length == 0 || f.further {
			continue
		}
		set := sets[f.e.XattrChunk]
		if f.e.Xattrs = set.xattrs; set.err != nil {
			f.xattrsLost = true
			f.reportAttribute("xattr", set.err)
		}
	}
	return nil
}

// ownXattrs gives a directory the extended attributes that are in a chunk, and
// reports whether they can be had.
func (d *directory) ownXattrs(report target.Report) (known bool) {
	ref := d.self.XattrChunk
	if ref.Length == 0 {
		return true
	}
	set := d.r.xattrs.get(ref.Chunk)
	if set == nil {
		sets, err := d.r.loadXattrs(d.r.ctx, map[backup.Ref]struct{}{ref: {}})
		if err != nil {
			d.r.abort(err)
			return false
		}
		set = sets[ref]
	}
	if set.err != nil {
		report("xattr", set.err)
		return false
	}
	d.self.Xattrs = set.xattrs
	return true
}

// allXattrs reports whether an entry was backed up with all its extended
// attributes: then those that it has not are not wanted at the target.
func allXattrs(e *backup.Entry) bool {
	return e.Flags&(backup.XattrsUnreadable|backup.XattrsWanted) == 0
}
