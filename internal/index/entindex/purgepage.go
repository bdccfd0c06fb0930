package entindex

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// maxPageKey is the largest key that a name may have.
const maxPageKey = 1 << 53

// An entryPurge removes the entry of a path from the pages of its directory.
//
// The key of a page is a hash of its first name. If that name is removed from all snapshots, the
// page gets a random key, so that nobody can find out which name it was. The page before it names
// the key, and is written again, too.
type entryPurge struct {
	*purging
	dir, name string
	has       map[backup.PageKey]bool           // pages with the entry
	rekeyed   map[backup.PageKey]backup.PageKey // new keys
	named     map[backup.PageKey]bool           // pages that name one of these as the next
}

// directory removes the entry of the path from its directory.
func (g *purging) directory(ctx context.Context) error {
	e := &entryPurge{purging: g, has: map[backup.PageKey]bool{}, rekeyed: map[backup.PageKey]backup.PageKey{}, named: map[backup.PageKey]bool{}}
	e.dir, e.name = backup.Split(g.p.Path)
	if err := e.find(ctx); err != nil || len(e.has) == 0 {
		return err
	}
	var page []Version // the versions of one page
	rewrite := func() error {
		if len(page) == 0 || !e.has[page[0].Key] && !e.named[page[0].Key] {
			return nil
		}
		return e.rewrite(ctx, page)
	}
	// All versions are needed: those before from may be patches of others.
	versions := []Version{}
	err := g.tx.eachVersion(ctx, g.p.Shard, onlyOf(e.dir), 0, func(v *Version) error {
		if e.has[v.Key] || e.named[v.Key] {
			versions = append(versions, *v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range versions {
		if len(page) > 0 && page[0].Key != versions[i].Key {
			if err := rewrite(); err != nil {
				return err
			}
			page = nil
		}
		page = append(page, versions[i])
	}
	return rewrite()
}

// decode returns the page of a version.
func decodeVersion(v *Version) (backup.Page, error) {
	row, err := v.version()
	if err != nil {
		return backup.Page{}, err
	}
	return listing.DecodePage(row)
}

func position(entries []backup.Entry, name string) (int, bool) {
	return slices.BinarySearchFunc(entries, name, func(e backup.Entry, name string) int {
		switch {
		case e.Name < name:
			return -1
		case e.Name > name:
			return 1
		}
		return 0
	})
}

// find finds the pages that are to be written again.
func (e *entryPurge) find(ctx context.Context) error {
	taken, next := map[backup.PageKey]bool{}, map[backup.PageKey][]backup.PageKey{}
	err := e.tx.eachVersion(ctx, e.p.Shard, onlyOf(e.dir), 0, func(v *Version) error {
		page, err := decodeVersion(v)
		if err != nil {
			if v.Last < e.from {
				return nil
			}
			return fmt.Errorf("a page of the directory of the path is damaged, and may have it (forget the snapshots from number %d on that have it): %w", v.First, err)
		}
		taken[v.Key] = true
		if !slices.Contains(next[page.Next], v.Key) {
			next[page.Next] = append(next[page.Next], v.Key)
		}
		at, found := position(page.Entries, e.name)
		if !found || v.Last < e.from {
			return nil
		}
		e.has[v.Key] = true
		if at == 0 && v.Key != 0 && e.from == 1 {
			e.rekeyed[v.Key] = 0
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key := range e.rekeyed {
		fresh := backup.PageKey(rand.Int64N(maxPageKey) + 1)
		for taken[fresh] {
			fresh = backup.PageKey(rand.Int64N(maxPageKey) + 1)
		}
		taken[fresh] = true
		e.rekeyed[key], e.purging.rekeyed = fresh, true
		for _, before := range next[key] {
			e.named[before] = true
		}
	}
	return nil
}

// rewrite writes the versions of one page without the entry. Each is stored anew, because its base
// may have the entry.
func (e *entryPurge) rewrite(ctx context.Context, page []Version) error {
	var written []Version
	for i := range page {
		v := page[i]
		fresh, changed, err := e.without(ctx, &v)
		if err != nil {
			return err
		}
		switch {
		case !changed:
			written = append(written, v)
			continue
		case v.First < e.from:
			v.Last = e.from - 1
			written = append(written, v)
			fresh.First = e.from
		}
		written = append(written, fresh)
		e.result.Versions++
	}
	compact(written, e.patches)
	if err := e.tx.Hot.DeletePage(ctx, page[0].id()); err != nil {
		return err
	}
	return e.tx.Hot.PutVersions(ctx, written)
}

// without returns a version without the entry, and without keys that are hashes of it. It corrects
// the snapshots that have the version.
func (e *entryPurge) without(ctx context.Context, v *Version) (fresh Version, changed bool, err error) {
	if v.Last < e.from {
		return fresh, false, nil
	}
	page, err := decodeVersion(v)
	if err != nil {
		return fresh, false, err
	}
	fresh = *v
	fresh.Listing, fresh.Fingerprint = nil, backup.Fingerprint{} // it equals nothing that a walker finds
	if key, ok := e.rekeyed[page.Next]; ok {
		page.Next, changed = key, true
	}
	if key, ok := e.rekeyed[v.Key]; ok {
		fresh.Key, changed = key, true
	}
	at, found := position(page.Entries, e.name)
	var entry backup.Entry
	if found {
		entry, changed = page.Entries[at], true
		if err := e.chunks.put(ctx, e.purging, chunksOf(&entry)); err != nil {
			return fresh, false, err
		}
		page.Entries = slices.Delete(page.Entries, at, at+1)
	}
	if !changed {
		return fresh, false, nil
	}
	page.Key = fresh.Key
	if fresh.Listing, err = e.encoder.Encode(nil, &page); err != nil {
		return fresh, false, err
	}
	if e.patches {
		if fresh.Listing, err = listing.Plain(fresh.Listing); err != nil {
			return fresh, false, err
		}
	}
	row, err := fresh.version()
	if err != nil {
		return fresh, false, err
	}
	fresh.Digest = listing.Digest(&row)
	e.each(v.First, v.Last, func(s *purgedSnapshot) {
		s.pages.Remove(v.Digest)
		s.pages.Add(fresh.Digest)
		if found {
			s.count(&entry)
		}
	})
	return fresh, true, nil
}

// chunksOf returns the chunks to which an entry refers.
func chunksOf(e *backup.Entry) (ids []backup.ChunkID) {
	for i := range e.Content.Refs {
		ids = append(ids, e.Content.Refs[i].Chunk)
	}
	if e.XattrChunk.Length > 0 {
		ids = append(ids, e.XattrChunk.Chunk)
	}
	return ids
}
