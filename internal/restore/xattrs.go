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

// Extended attributes that do not fit into a page are stored in chunks. They are fetched for a
// whole bundle of entries before these entries are compared with the target. ACLs repeat, so the
// most recently used chunks are kept.

const (
	// maxBundleXattrBytes is the maximum size of such chunks in one bundle.
	maxBundleXattrBytes = 4 << 20
	// maxCachedXattrBytes bounds the attributes that are cached for later bundles.
	maxCachedXattrBytes = 8 << 20
)

// An xattrSet is the content of an xattr chunk, or the error of reading it.
type xattrSet struct {
	xattrs []backup.Xattr
	err    error
}

// bytes is the approximate memory use of the set.
func (s *xattrSet) bytes() int {
	n := 128
	for i := range s.xattrs {
		n += 64 + len(s.xattrs[i].Name) + len(s.xattrs[i].Value)
	}
	return n
}

// An xattrCache keeps the most recently used sets. It may be used concurrently.
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

// put caches a set, unless it failed to load.
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

// An xattrSink decodes xattr chunks. The tag of a want is the number of the set.
type xattrSink []xattrSet

func (s xattrSink) Chunk(n int64, data []byte) {
	s[n].xattrs, s[n].err = listing.DecodeXattrs(data)
}

func (s xattrSink) Fail(n int64, err error) { s[n].err = err }

// loadXattrs returns the content of xattr chunks. Its error ends the run.
func (r *restorer) loadXattrs(ctx context.Context, chunks map[backup.Ref]struct{}) (map[backup.Ref]*xattrSet, error) {
	sets := make(map[backup.Ref]*xattrSet, len(chunks))
	sink := make(xattrSink, len(chunks))
	wants := make([]fetch.Want, 0, len(chunks))
	for ref := range chunks {
		set := r.xattrs.get(ref.Chunk)
		if set == nil {
			set = &sink[len(sets)]
			wants = append(wants, fetch.Want{Chunk: ref.Chunk, Length: ref.Length, Tag: int64(len(sets)), Sink: sink})
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

// takeXattrs gives the bundle's files the extended attributes that are in chunks. Directories get
// theirs when they are finished (ownXattrs), usually from the cache.
func (b *bundle) takeXattrs(ctx context.Context, r *restorer) error {
	if len(b.xattrs) == 0 || r.root == nil { // nothing exists to compare with
		return nil
	}
	sets, err := r.loadXattrs(ctx, b.xattrs)
	if err != nil {
		return err
	}
	for _, f := range b.files {
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

// ownXattrs gives a directory the extended attributes that are in a chunk, and reports whether they
// could be read.
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
	d.r.o.mapACLs(&d.self)
	return true
}
