package walk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// store adds the differences from the last snapshot to the result. carried reports that the
// directory was carried forward from the last snapshot because its mount is gone: its current
// content is then ignored.
func (w *visit) store(ctx context.Context, old *oldState, gone []backup.PageKey) (carried bool, err error) {
	if len(w.pages) > 0 || len(gone) > 0 {
		if w.unmounted(old.self) {
			return true, w.slice.carry(ctx, w.path, w.path, errUnmounted, "open")
		}
		for _, name := range old.removed {
			if err := w.slice.result.removed(ctx, backup.Join(w.path, name)); err != nil {
				return false, err
			}
		}
		for i := range w.pages {
			if err := w.takeOver(ctx, &w.pages[i], old.entries, old.self); err != nil {
				return false, err
			}
		}
		for _, key := range gone {
			if err := w.slice.result.ended(ctx, backup.PageName{Path: w.path, Key: key}); err != nil {
				return false, err
			}
		}
	}
	return false, w.storePages(ctx)
}

// endedKeys returns the keys of pages that the directory no longer has.
func (w *visit) endedKeys() (keys []backup.PageKey) {
	if len(w.marks) <= 1 {
		return nil // page 0 never ends alone
	}
	now := make(map[backup.PageKey]bool, len(w.keys))
	for _, key := range w.keys {
		now[key] = true
	}
	return w.marksWithout(now)
}

// An oldState is the last snapshot's content of a directory.
type oldState struct {
	self    *backup.Entry
	entries []backup.Entry // of names that still exist, sorted
	removed []string       // subdirectories that no longer exist
	mounts  []backup.Entry // former mount points that are not mounted now
}

// oldState returns the last snapshot's content of the pages that changed or ended. If the last
// snapshot does not have the directory at this path, but has its inode at another, the content at
// the other path is returned.
func (w *visit) oldState(ctx context.Context, gone []backup.PageKey) (old oldState, err error) {
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
		old.entries = appendKept(old.entries, p.Entries, w.entries)
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

// appendKept appends the old entries whose names are among the entries; both are sorted.
func appendKept(dst, old, entries []backup.Entry) []backup.Entry {
	i := 0
	for j := range old {
		for i < len(entries) && entries[i].Name < old[j].Name {
			i++
		}
		if i < len(entries) && entries[i].Name == old[j].Name {
			dst = append(dst, old[j])
		}
	}
	return dst
}

// oldPages returns the path and keys of the last snapshot's pages that oldState reads.
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

// carryForward adds the last snapshot's entries, flagged, for those that could not be read with
// stat. If the last snapshot has no such entry, the name is listed, so that a restore knows that
// something was there.
func (w *visit) carryForward(ctx context.Context) error {
	slices.Sort(w.failed)
	path, keys, err := w.allOldPages(ctx)
	if err != nil {
		return err
	}
	known := make([]bool, len(w.failed))
	if err := w.carryEntries(ctx, path, keys, known); err != nil {
		return err
	}
	for i, name := range w.failed {
		if !known[i] {
			w.entries = append(w.entries, backup.Entry{Name: name, Kind: backup.File, Flags: backup.Unreadable | backup.ContentMissing | backup.AttributesUnknown})
		}
	}
	return nil
}

// carryEntries is carryForward for the entries that the last snapshot has at path; known records
// which of w.failed those are.
func (w *visit) carryEntries(ctx context.Context, path string, keys []backup.PageKey, known []bool) error {
	return w.eachOld(ctx, pageNames(path, keys), func(_ string, p *backup.Page) error {
		for i := range p.Entries {
			e := &p.Entries[i]
			n, failed := slices.BinarySearch(w.failed, e.Name)
			if !failed || known[n] {
				continue
			}
			known[n] = true
			if e.Kind != backup.Directory {
				e.Flags |= backup.Unreadable
				if e.Flags&backup.ContentMissing == 0 {
					w.counts.Carried++
				}
			} else if path != w.path {
				// It has no page at this path yet.
				err := w.slice.carry(ctx, backup.Join(w.path, e.Name), backup.Join(path, e.Name), nil, "")
				if err != nil {
					return err
				}
				w.carried = append(w.carried, e.Name)
			}
			w.entries = append(w.entries, *e)
		}
		return nil
	})
}

func (w *visit) marked(key backup.PageKey) bool {
	for i := range w.marks {
		if w.marks[i].Key == key {
			return true
		}
	}
	return false
}

// takeOver copies what is known of unchanged entries into a page, and reads the extended attributes
// of the others except regular files.
func (w *visit) takeOver(ctx context.Context, p *page, old []backup.Entry, oldSelf *backup.Entry) error {
	by := w.slice.task.Job.Compare
	reread := w.slice.svc.opts.Reread
	c := listing.TakeOver(by, reread, p.entries, old, w.observer())
	w.counts.FilesNew += c.New
	w.counts.FilesChanged += c.Changed
	w.counts.FilesUnchanged += c.Unchanged
	if p.self != nil {
		if oldSelf != nil {
			p.self.Xattrs, p.self.XattrChunk = oldSelf.Xattrs, oldSelf.XattrChunk
		}
		if oldSelf == nil || reread || !listing.Unchanged(by, p.self, oldSelf) {
			p.self.Flags |= backup.XattrsWanted
		}
		if _, err := w.settleXattrs(ctx, p, p.self); err != nil {
			return err
		}
	}
	if err := w.settleEntries(ctx, p); err != nil {
		return err
	}
	return w.takeInterrupted(ctx, p)
}

// observer returns a function that passes changes to Options.OnChange; nil if there is none. What
// could not be read with stat is not known to have changed; its problem is reported instead.
func (w *visit) observer() func(*backup.Entry, bool) {
	onChange := w.slice.svc.opts.OnChange
	if onChange == nil {
		return nil
	}
	return func(e *backup.Entry, isNew bool) {
		if e.Flags&backup.Unreadable == 0 {
			onChange(backup.Join(w.path, e.Name), e.Size, isNew)
		}
	}
}

// settleEntries flags the entries that could not be read with stat, and reads the extended
// attributes of those that the reader does not open.
func (w *visit) settleEntries(ctx context.Context, p *page) error {
	var gone []string
	for i := range p.entries {
		e := &p.entries[i]
		if _, failed := slices.BinarySearch(w.failed, e.Name); failed && e.Kind != backup.Directory {
			// It is already the old entry.
			e.Flags = e.Flags&^(backup.Wanted|backup.XattrsWanted) | backup.Unreadable
		}
		if e.Kind == backup.File {
			continue
		}
		is, err := w.settleXattrs(ctx, p, e)
		if err != nil {
			return err
		}
		if is {
			gone = append(gone, e.Name)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	w.counts.Files -= int64(len(gone))
	w.counts.Vanished += int64(len(gone))
	p.fingerprint = backup.Fingerprint{}
	p.entries = slices.DeleteFunc(slices.Clone(p.entries), func(e backup.Entry) bool { return slices.Contains(gone, e.Name) })
	return nil
}

// takeInterrupted gives files that would have to be read the content that an uncommitted snapshot
// has stored of them, if they have not changed since.
func (w *visit) takeInterrupted(ctx context.Context, p *page) error {
	job := &w.slice.task.Job
	if files, _ := wanted(p.entries); !job.Interrupted || files == 0 || w.slice.svc.opts.Reread {
		return nil
	}
	listings, err := w.slice.svc.index.InterruptedListings(ctx, job.Shard, []backup.PageName{{Path: w.path, Key: p.key}})
	if err != nil || len(listings) == 0 || listings[0] == nil {
		return err
	}
	left, err := listing.DecodePage(backup.PageVersion{Path: w.path, Key: p.key, Listing: listings[0]})
	if errors.Is(err, backup.ErrCorrupt) {
		return nil // its files are read again
	}
	if err != nil {
		return fmt.Errorf("index: interrupted snapshot of shard %d: %w", job.Shard, err)
	}
	listing.TakeContent(job.Compare, p.entries, left.Entries)
	return nil
}

// settleXattrs reads the extended attributes of an entry that wants them. gone reports that the
// entry no longer exists. An error ends the attempt.
func (w *visit) settleXattrs(ctx context.Context, p *page, e *backup.Entry) (gone bool, _ error) {
	if e.Flags&backup.XattrsWanted == 0 {
		return false, nil
	}
	e.Flags &^= backup.XattrsWanted
	s := w.slice
	asked := s.hold.ask()
	xattrs, err := w.dir.Xattrs(ctx, e.Name, e.Kind)
	s.hold.answer(asked)
	if err == nil {
		e.Xattrs, e.XattrChunk = xattrs, backup.Ref{}
		return false, nil
	}
	if e.Name != "" {
		if gone, err = s.judge(ctx, backup.Join(w.path, e.Name), err); gone {
			return true, err
		}
	}
	if s.isOurs(ctx, err) {
		return false, err
	}
	// The attributes of the last snapshot stay, if it has any.
	e.Flags |= backup.XattrsUnreadable
	p.fingerprint = backup.Fingerprint{}
	w.problem(e.Name, "xattr", err)
	return false, nil
}

// storePages adds the pages that differ to the result, with everything else that is known of the
// directory.
func (w *visit) storePages(ctx context.Context) error {
	add := contribution{path: w.path}
	for i := range w.pages {
		p := &w.pages[i]
		version := backup.PageVersion{Path: w.path, Key: p.key}
		if p.self != nil {
			version.Inode = p.self.Inode
		}
		var err error
		if version.Listing, err = w.encodePage(p); err != nil {
			return fmt.Errorf("directory %q: %w", w.path, err)
		}
		version.Fingerprint = p.fingerprint
		wantedFiles, wantedBytes := wanted(p.entries)
		if wantedFiles == 0 && !wantsXattrs(p) {
			add.pages = append(add.pages, version)
			continue
		}
		add.toRead = append(add.toRead, pageToRead{version, wantedFiles, wantedBytes})
	}
	w.counts.Errors += int64(len(w.problems))
	add.counts, add.problems, add.answers, add.latency = w.counts, w.problems, w.answers, w.latency
	return w.slice.result.add(ctx, add)
}

// encodePage returns the page's listing. If extended attributes make it too large, they are left to
// the reader, which can store them elsewhere: those of files first.
func (w *visit) encodePage(p *page) ([]byte, error) {
	data, err := w.encode.Encode(nil, &backup.Page{Path: w.path, Key: p.key, Next: p.next, Self: p.self, Entries: p.entries})
	for _, files := range []bool{true, false} {
		if err == nil && len(data) <= maxListingBytes {
			return data, nil
		}
		leave := func(e *backup.Entry) {
			if len(e.Xattrs) > 0 && (e.Kind == backup.File) == files {
				e.Xattrs = nil
				e.Flags |= backup.XattrsWanted
			}
		}
		if p.self != nil {
			leave(p.self)
		}
		for i := range p.entries {
			leave(&p.entries[i])
		}
		data, err = w.encode.Encode(nil, &backup.Page{Path: w.path, Key: p.key, Next: p.next, Self: p.self, Entries: p.entries})
	}
	if err == nil && len(data) <= maxListingBytes {
		return data, nil
	}
	return nil, errors.Join(fmt.Errorf("listing of %d bytes: %w", len(data), backup.ErrInvalid), err)
}

// mostBytes limits how much one file counts in progress and batches: a sparse file may claim more.
const mostBytes = 1 << 50

// wanted counts the files whose content is to be read, and their bytes.
func wanted(entries []backup.Entry) (files int, bytes int64) {
	for i := range entries {
		if entries[i].Flags&backup.Wanted != 0 {
			files++
			bytes += min(entries[i].Size, mostBytes)
		}
	}
	return files, bytes
}

func wantsXattrs(p *page) bool {
	return p.self != nil && p.self.Flags&backup.XattrsWanted != 0 ||
		slices.ContainsFunc(p.entries, func(e backup.Entry) bool { return e.Flags&backup.XattrsWanted != 0 })
}
