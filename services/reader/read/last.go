package read

import (
	"context"
	"errors"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// An oldPage is the last snapshot's content of the entries of a page.
type oldPage struct {
	self    *backup.Entry
	entries map[string]*backup.Entry // nil: none
}

// oldEntry returns the last snapshot's version of an entry of the page or, for an empty name, of
// the directory itself; nil if there is none.
func (b *batch) oldEntry(ctx context.Context, at *pageDir, p *page, name string) (*backup.Entry, error) {
	if err := b.readOld(ctx, at, p); err != nil {
		return nil, err
	}
	if name == "" {
		return p.old.self, nil
	}
	return p.old.entries[name], nil
}

// readOld fetches the last snapshot's entries of the page's names: mostly from the page of the same
// key, otherwise from other pages of the directory, which are held one at a time.
func (b *batch) readOld(ctx context.Context, at *pageDir, p *page) error {
	if p.old != nil {
		return nil
	}
	old := &oldPage{entries: make(map[string]*backup.Entry, len(p.Entries))}
	for i := range p.Entries {
		old.entries[p.Entries[i].Name] = nil
	}
	path, keys, err := b.oldKeys(ctx, at, p)
	if err != nil {
		return err
	}
	if i := slices.Index(keys, p.Key); i > 0 {
		keys[0], keys[i] = keys[i], keys[0]
	}
	missing := len(old.entries)
	for i := 0; i < len(keys) && missing > 0; i++ {
		page, err := b.oldListing(ctx, path, keys[i])
		if err != nil {
			return err
		}
		missing -= old.take(&page)
	}
	p.old = old
	return nil
}

// take takes the entries of a page whose names are wanted, and returns their number.
func (old *oldPage) take(page *backup.Page) (found int) {
	if page.Self != nil {
		old.self = page.Self
	}
	for _, e := range page.Entries { // a copy: the page is not held
		if before, wanted := old.entries[e.Name]; wanted && before == nil {
			old.entries[e.Name] = &e
			found++
		}
	}
	return found
}

// oldKeys returns the keys of the last snapshot's pages of the directory, and their path, which may
// have been different then. A freed inode may be reassigned to another directory, so the birth
// times must be equal, too.
func (b *batch) oldKeys(ctx context.Context, at *pageDir, p *page) (path string, keys []backup.PageKey, err error) {
	job := &b.msg.Job
	if job.Base == 0 {
		return p.Path, nil, nil
	}
	keys, err = b.svc.Index.PageKeys(ctx, job.Shard, job.Base, p.Path)
	if err != nil || len(keys) > 0 || at.dir == nil || job.Compare.OrAll()&backup.CompareInode == 0 {
		return p.Path, keys, err
	}
	now := at.dir.Self()
	from, moved, err := b.svc.Index.DirectoryByInode(ctx, job.Shard, job.Base, now.Inode)
	if err != nil || !moved {
		return p.Path, nil, err
	}
	first, err := b.oldListing(ctx, from, 0)
	if err != nil || first.Self == nil || now.Btime.IsZero() || first.Self.Btime != now.Btime {
		return p.Path, nil, err
	}
	keys, err = b.svc.Index.PageKeys(ctx, job.Shard, job.Base, from)
	return from, keys, err
}

// oldListing returns a page of the last snapshot. It returns the zero Page if the page is missing
// or damaged, because there is no good copy then.
func (b *batch) oldListing(ctx context.Context, path string, key backup.PageKey) (backup.Page, error) {
	job := &b.msg.Job
	listings, err := b.svc.Index.Listings(ctx, job.Shard, job.Base, []backup.PageName{{Path: path, Key: key}})
	if err != nil || len(listings) == 0 || listings[0] == nil {
		return backup.Page{}, err
	}
	old, err := listing.DecodePage(backup.PageVersion{Path: path, Key: key, Listing: listings[0]})
	if errors.Is(err, backup.ErrCorrupt) {
		b.svc.opts.Log.Warn("a page of the last snapshot is damaged in the index, and not used", "snapshot", job.Snapshot.Short(), "error", err)
		return backup.Page{}, nil
	}
	return old, err
}
