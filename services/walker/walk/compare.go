package walk

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// store adds to the result what differs from the last snapshot.
func (w *visit) store(ctx context.Context) error {
	gone := w.endedKeys()
	if len(w.pages) > 0 || len(gone) > 0 {
		old, oldSelf, err := w.oldEntries(ctx, gone)
		if err != nil {
			return err
		}
		if len(w.marks) > 0 {
			if err := w.dropRemoved(ctx, old); err != nil {
				return err
			}
		}
		for i := range w.pages {
			w.takeOver(ctx, &w.pages[i], old, oldSelf)
		}
		for _, key := range gone {
			if err := w.slice.result.ended(ctx, backup.PageName{Path: w.path, Key: key}); err != nil {
				return err
			}
		}
	}
	return w.storePages(ctx)
}

// endedKeys returns the keys of pages that the directory does not have any more.
func (w *visit) endedKeys() (keys []backup.PageKey) {
	if len(w.marks) <= 1 {
		return nil // page 0 never ends alone
	}
	now := map[backup.PageKey]bool{0: true}
	for rest := w.entries; len(rest) > 0; {
		n := listing.Cut(rest, false)
		if rest = rest[n:]; len(rest) > 0 {
			now[listing.Key(rest[0].Name)] = true
		}
	}
	for i := range w.marks {
		if !now[w.marks[i].Key] {
			keys = append(keys, w.marks[i].Key)
		}
	}
	return keys
}

// oldEntries returns what the last snapshot has of the pages that changed or
// ended, sorted. Of a directory that it does not have at this path, but knows
// by its inode, it is what it had at the other.
func (w *visit) oldEntries(ctx context.Context, gone []backup.PageKey) (old []backup.Entry, self *backup.Entry, err error) {
	job := &w.slice.task.Job
	if job.Base == 0 {
		return nil, nil, nil
	}
	idx := w.slice.svc.index
	path, keys := w.path, gone
	if len(w.marks) == 0 {
		moved, ok, err := idx.DirectoryByInode(ctx, job.Shard, job.Base, w.self.Inode)
		if err != nil || !ok {
			return nil, nil, err
		}
		path = moved
		if keys, err = idx.PageKeys(ctx, job.Shard, job.Base, path); err != nil {
			return nil, nil, err
		}
	} else {
		for i := range w.pages {
			if w.marked(w.pages[i].key) {
				keys = append(keys, w.pages[i].key)
			}
		}
	}
	return w.fetch(ctx, path, keys)
}

// fetch returns the entries of some of a directory's pages in the last
// snapshot, sorted, and the directory's own where page 0 is among them.
func (w *visit) fetch(ctx context.Context, path string, keys []backup.PageKey) (old []backup.Entry, self *backup.Entry, err error) {
	job := &w.slice.task.Job
	names := make([]backup.PageName, len(keys))
	for i, key := range keys {
		names[i] = backup.PageName{Path: path, Key: key}
	}
	listings, err := w.slice.svc.index.Listings(ctx, job.Shard, job.Base, names)
	if err != nil {
		return nil, nil, err
	}
	for i, data := range listings {
		if data == nil {
			continue
		}
		p, err := listing.DecodePage(backup.PageVersion{Path: path, Key: keys[i], Listing: data})
		if err != nil {
			return nil, nil, fmt.Errorf("index: shard %d, snapshot %d: %w", job.Shard, job.Base, err)
		}
		old = append(old, p.Entries...)
		if p.Self != nil {
			self = p.Self
		}
	}
	if len(names) > 1 {
		old = listing.Sort(old)
	}
	return old, self, nil
}

func (w *visit) marked(key backup.PageKey) bool {
	for i := range w.marks {
		if w.marks[i].Key == key {
			return true
		}
	}
	return false
}

// dropRemoved ends what the last snapshot has below subdirectories that are gone.
func (w *visit) dropRemoved(ctx context.Context, old []backup.Entry) error {
	for _, name := range listing.RemovedDirectories(w.entries, old) {
		if err := w.slice.result.removed(ctx, backup.Join(w.path, name)); err != nil {
			return err
		}
	}
	return nil
}

// takeOver gives unchanged entries of a page what is known of them, and reads
// the xattrs of the rest but for regular files, which the reader opens anyway.
func (w *visit) takeOver(ctx context.Context, p *page, old []backup.Entry, oldSelf *backup.Entry) {
	c := listing.TakeOver(p.entries, old)
	w.counts.FilesNew += c.New
	w.counts.FilesChanged += c.Changed
	w.counts.FilesUnchanged += c.Unchanged
	if p.self != nil {
		if oldSelf != nil && listing.Unchanged(p.self, oldSelf) {
			p.self.Xattrs, p.self.XattrChunk = oldSelf.Xattrs, oldSelf.XattrChunk
		} else {
			w.readXattrs(ctx, p, p.self)
		}
	}
	for i := range p.entries {
		if e := &p.entries[i]; e.Flags&backup.XattrsWanted != 0 {
			e.Flags &^= backup.XattrsWanted
			w.readXattrs(ctx, p, e)
		}
	}
}

func (w *visit) readXattrs(ctx context.Context, p *page, e *backup.Entry) {
	xattrs, err := w.dir.Xattrs(ctx, e.Name, e.Kind)
	if err != nil {
		w.problem(e.Name, "xattr", err)
		p.fingerprint = backup.Fingerprint{}
		return
	}
	e.Xattrs = xattrs
}

// storePages adds the pages that differ to the result, with everything else
// that is known of the directory.
func (w *visit) storePages(ctx context.Context) error {
	w.counts.Errors += int64(len(w.problems))
	add := contribution{path: w.path, counts: w.counts, problems: w.problems}
	for i := range w.pages {
		p := &w.pages[i]
		version := backup.PageVersion{Path: w.path, Key: p.key, Fingerprint: p.fingerprint}
		if p.self != nil {
			version.Inode = p.self.Inode
		}
		var err error
		version.Listing, err = w.encode.Encode(nil, &backup.Page{Path: w.path, Key: p.key, Self: p.self, Entries: p.entries})
		if err != nil || len(version.Listing) > maxListingBytes {
			return errors.Join(fmt.Errorf("directory %q: listing of %d bytes: %w", w.path, len(version.Listing), backup.ErrInvalid), err)
		}
		wantedFiles, wantedBytes := wanted(p.entries)
		if wantedFiles == 0 {
			add.pages = append(add.pages, version)
			continue
		}
		add.toRead = append(add.toRead, pageToRead{version, wantedFiles, wantedBytes})
	}
	return w.slice.result.add(ctx, add)
}

func wanted(entries []backup.Entry) (files int, bytes int64) {
	for i := range entries {
		if entries[i].Flags&backup.Wanted != 0 {
			files++
			bytes += entries[i].Size
		}
	}
	return files, bytes
}
