package walk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// An oldState is the last snapshot's content of a directory.
type oldState struct {
	self    *backup.Entry
	entries []backup.Entry // of names that still exist, sorted
	removed []string       // subdirectories that no longer exist
	mounts  []backup.Entry // former mount points that are not mounted now
	gone    []listing.Gone // files whose names no longer exist
}

// fetchOld returns the last snapshot's content of the pages that changed or ended. If the last
// snapshot does not have the directory at this path, but has its inode at another, the content at
// the other path is returned.
func (w *visit) fetchOld(ctx context.Context, gone []backup.PageKey) (old oldState, err error) {
	if len(w.pages) == 0 && len(gone) == 0 {
		return old, nil
	}
	path, keys, err := w.oldPages(ctx, gone)
	if err != nil {
		return old, err
	}
	err = w.eachOld(ctx, pageNames(path, keys), func(_ string, p *backup.Page) error {
		if p.Self != nil {
			old.self = p.Self
		}
		old.entries, old.gone = appendKept(old.entries, old.gone, p.Entries, w.entries)
		if len(w.marks) > 0 {
			old.removed = append(old.removed, listing.RemovedDirectories(w.entries, p.Entries)...)
			old.mounts = append(old.mounts, w.lostMounts(p.Entries)...)
		}
		return nil
	})
	if err == nil && len(w.marks) > 0 {
		err = w.eachUnlisted(ctx, func(name string) {
			at, is := w.find(name)
			if (!is || w.entries[at].Kind != backup.Directory) && !slices.Contains(old.removed, name) {
				old.removed = append(old.removed, name)
			}
		})
	}
	if err == nil && len(keys) > 1 {
		old.entries = listing.Sort(old.entries)
	}
	if err == nil {
		err = w.addLostDirectories(ctx, &old)
	}
	return old, err
}

// appendKept appends the old entries whose names are among the entries to dst, and the other files
// to gone. Old entries and entries are sorted.
func appendKept(dst []backup.Entry, gone []listing.Gone, old, entries []backup.Entry) ([]backup.Entry, []listing.Gone) {
	i := 0
	for j := range old {
		for i < len(entries) && entries[i].Name < old[j].Name {
			i++
		}
		if i < len(entries) && entries[i].Name == old[j].Name {
			dst = append(dst, old[j])
		} else if e := &old[j]; e.Kind == backup.File {
			gone = append(gone, listing.Gone{Name: e.Name, Inode: e.Inode, Class: e.Flags.Class()})
		}
	}
	return dst, gone
}

// oldPages returns the path and keys of the last snapshot's pages that fetchOld reads.
func (w *visit) oldPages(ctx context.Context, gone []backup.PageKey) (path string, keys []backup.PageKey, err error) {
	if len(w.marks) == 0 {
		return w.allOldPages(ctx)
	}
	keys = gone
	for i := range w.pages {
		if w.marked(w.pages[i].key) {
			keys = append(keys, w.pages[i].key)
		}
	}
	return w.path, keys, nil
}

// allOldPages returns the last snapshot's pages of the directory, at this path or another.
func (w *visit) allOldPages(ctx context.Context) (path string, keys []backup.PageKey, err error) {
	path, err = w.oldPath(ctx)
	if err != nil {
		return "", nil, err
	}
	if path != w.path {
		job := &w.slice.task.Job
		keys, err = w.slice.svc.index.PageKeys(ctx, job.Shard, job.Base, path)
		return path, keys, err
	}
	for i := range w.marks {
		keys = append(keys, w.marks[i].Key)
	}
	return path, keys, nil
}

// oldPath returns the path of the directory in the last snapshot: this path, unless its inode was
// at exactly one other path. Entries are still compared with the old ones, so an inode that was
// reassigned to another directory, or an old path that still exists, does no harm.
func (w *visit) oldPath(ctx context.Context) (string, error) {
	job := &w.slice.task.Job
	// Inodes are not compared, or not needed.
	if job.Base == 0 || job.NewRoot || len(w.marks) > 0 || job.Compare.OrAll()&backup.CompareInode == 0 {
		return w.path, nil
	}
	from, moved, err := w.slice.svc.index.DirectoryByInode(ctx, job.Shard, job.Base, w.self.Inode)
	if err != nil || !moved {
		return w.path, err
	}
	mount, born, err := w.oldMount(ctx, from)
	if err != nil || mount != w.mount() || !born.IsZero() && !w.self.Btime.IsZero() && born != w.self.Btime {
		return w.path, err
	}
	return from, nil
}

// mount returns the mount point of the file system that the directory is on; "" is the root. Inode
// numbers are meaningless beyond one file system: the roots of two, for example, have the same.
func (w *visit) mount() (deepest string) {
	for _, m := range w.slice.mounts.above(w.path) {
		if len(m) > len(deepest) {
			deepest = m
		}
	}
	return deepest
}

// oldMount is mount for a directory in the last snapshot; it also returns the mount point's birth
// time.
func (w *visit) oldMount(ctx context.Context, path string) (deepest string, born backup.Time, err error) {
	var names []backup.PageName
	for above := path; above != ""; above, _ = backup.Split(above) {
		names = append(names, backup.PageName{Path: above})
	}
	found := false
	err = w.eachOld(ctx, names, func(at string, p *backup.Page) error {
		if p.Self == nil || found {
			return nil
		}
		if at == path {
			born = p.Self.Btime
		}
		if p.Self.Flags&backup.Boundary != 0 {
			deepest, found = at, true
		}
		return nil
	})
	return deepest, born, err
}

// fetchPages is how many pages of the last snapshot are held at a time.
const fetchPages = 16

// eachOld calls fn with each of the pages that the last snapshot has, in order. It skips damaged
// pages, and records them.
func (w *visit) eachOld(ctx context.Context, pages []backup.PageName, fn func(path string, p *backup.Page) error) error {
	job := &w.slice.task.Job
	for names := range slices.Chunk(pages, fetchPages) {
		listings, err := w.slice.svc.index.Listings(ctx, job.Shard, job.Base, names)
		if err != nil {
			return err
		}
		for i, data := range listings {
			if data == nil && (names[i].Path != w.path || !w.marked(names[i].Key)) {
				continue
			}
			p, err := listing.DecodePage(backup.PageVersion{Path: names[i].Path, Key: names[i].Key, Listing: data})
			if errors.Is(err, backup.ErrCorrupt) {
				w.damaged(names[i], err)
				continue
			}
			if err != nil {
				return fmt.Errorf("index: shard %d, snapshot %d: %w", job.Shard, job.Base, err)
			}
			if err := fn(names[i].Path, &p); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageNames names pages of one directory.
func pageNames(path string, keys []backup.PageKey) []backup.PageName {
	names := make([]backup.PageName, len(keys))
	for i, key := range keys {
		names[i] = backup.PageName{Path: path, Key: key}
	}
	return names
}
