package walk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

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
	now := make(map[backup.PageKey]bool, len(w.keys))
	for _, key := range w.keys {
		now[key] = true
	}
	for i := range w.marks {
		if !now[w.marks[i].Key] {
			keys = append(keys, w.marks[i].Key)
		}
	}
	return keys
}

// oldEntries returns what the last snapshot has, of the pages that changed or
// ended, under names that are still there, sorted. It ends directories that are not. Of
// a directory that the last snapshot does not have at this path, but knows by its
// inode, it returns what it had at the other.
func (w *visit) oldEntries(ctx context.Context, gone []backup.PageKey) (old []backup.Entry, self *backup.Entry, err error) {
	path, keys, err := w.oldPages(ctx, gone)
	if err != nil {
		return nil, nil, err
	}
	err = w.eachOld(ctx, path, keys, func(p *backup.Page) error {
		if p.Self != nil {
			self = p.Self
		}
		old = appendKept(old, p.Entries, w.entries)
		if len(w.marks) == 0 {
			return nil
		}
		return w.dropRemoved(ctx, p.Entries)
	})
	if err != nil {
		return nil, nil, err
	}
	if len(keys) > 1 {
		old = listing.Sort(old)
	}
	return old, self, nil
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

// oldPages returns where the last snapshot has the pages that oldEntries is about.
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

// allOldPages returns the pages that the last snapshot has of the directory, at this path or another.
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

// oldPath returns where the last snapshot has the directory: at this path, unless it knows its inode at another one alone. What
// can be looked at is compared with what was there all the same: an inode that was given to another
// directory, or an old path that is still there, does it no harm.
func (w *visit) oldPath(ctx context.Context) (string, error) {
	job := &w.slice.task.Job
	if job.Base == 0 || len(w.marks) > 0 || job.Compare.OrAll()&backup.CompareInode == 0 { // where inodes say nothing
		return w.path, nil
	}
	from, moved, err := w.slice.svc.index.DirectoryByInode(ctx, job.Shard, job.Base, w.self.Inode)
	if err != nil || !moved {
		return w.path, err
	}
	return from, nil
}

// fetchPages of the last snapshot are held at a time.
const fetchPages = 16

// eachOld calls fn with pages that the last snapshot has of a directory.
func (w *visit) eachOld(ctx context.Context, path string, keys []backup.PageKey, fn func(*backup.Page) error) error {
	job := &w.slice.task.Job
	for group := range slices.Chunk(keys, fetchPages) {
		names := make([]backup.PageName, len(group))
		for i, key := range group {
			names[i] = backup.PageName{Path: path, Key: key}
		}
		listings, err := w.slice.svc.index.Listings(ctx, job.Shard, job.Base, names)
		if err != nil {
			return err
		}
		for i, data := range listings {
			if data == nil {
				continue
			}
			p, err := listing.DecodePage(backup.PageVersion{Path: path, Key: group[i], Listing: data})
			if err != nil {
				return fmt.Errorf("index: shard %d, snapshot %d: %w", job.Shard, job.Base, err)
			}
			if err := fn(&p); err != nil {
				return err
			}
		}
	}
	return nil
}

// carryForward adds what the last snapshot has of entries that could not be
// looked at, flagged.
func (w *visit) carryForward(ctx context.Context) error {
	slices.Sort(w.failed)
	path, keys, err := w.allOldPages(ctx)
	if err != nil {
		return err
	}
	return w.eachOld(ctx, path, keys, func(p *backup.Page) error {
		for i := range p.Entries {
			e := &p.Entries[i]
			if _, failed := slices.BinarySearch(w.failed, e.Name); !failed {
				continue
			}
			switch {
			case e.Kind != backup.Directory:
				e.Flags |= backup.Unreadable
			case path != w.path:
				continue // what was below it is not carried along
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
	by := w.slice.task.Job.Compare
	c := listing.TakeOver(by, p.entries, old)
	w.counts.FilesNew += c.New
	w.counts.FilesChanged += c.Changed
	w.counts.FilesUnchanged += c.Unchanged
	if p.self != nil {
		if oldSelf != nil && listing.Unchanged(by, p.self, oldSelf) {
			p.self.Xattrs, p.self.XattrChunk = oldSelf.Xattrs, oldSelf.XattrChunk
		} else {
			w.readXattrs(ctx, p, p.self)
		}
	}
	for i := range p.entries {
		e := &p.entries[i]
		if _, failed := slices.BinarySearch(w.failed, e.Name); failed && e.Kind != backup.Directory {
			e.Flags = e.Flags&^(backup.Wanted|backup.XattrsWanted) | backup.Unreadable // it is the old one already
		}
		if e.Flags&backup.XattrsWanted != 0 {
			e.Flags &^= backup.XattrsWanted
			w.readXattrs(ctx, p, e)
		}
	}
}

func (w *visit) readXattrs(ctx context.Context, p *page, e *backup.Entry) {
	asked := w.slice.hold.ask()
	xattrs, err := w.dir.Xattrs(ctx, e.Name, e.Kind)
	w.slice.hold.answer(asked)
	if err != nil {
		p.fingerprint = backup.Fingerprint{}
		if !errors.Is(err, fs.ErrNotExist) { // it has just vanished
			w.problem(e.Name, "xattr", err)
		}
		return
	}
	e.Xattrs = xattrs
}

// storePages adds the pages that differ to the result, with everything else
// that is known of the directory.
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
		if wantedFiles == 0 {
			add.pages = append(add.pages, version)
			continue
		}
		add.toRead = append(add.toRead, pageToRead{version, wantedFiles, wantedBytes})
	}
	w.counts.Errors += int64(len(w.problems))
	add.counts, add.problems, add.answers, add.latency = w.counts, w.problems, w.answers, w.latency
	return w.slice.result.add(ctx, add)
}

var errNoRoom = errors.New("more extended attributes than a directory's listing has room for")

// encodePage returns the page's listing. Where extended attributes make it too
// large, those of files are left to the reader, which has another place for them;
// if that is not enough, the others are lost, and it is said.
func (w *visit) encodePage(p *page) ([]byte, error) {
	data, err := w.encode.Encode(nil, &backup.Page{Path: w.path, Key: p.key, Self: p.self, Entries: p.entries})
	if err == nil && len(data) <= maxListingBytes {
		return data, nil
	}
	for _, makeRoom := range []func(e *backup.Entry){
		func(e *backup.Entry) {
			if e.Kind == backup.File {
				e.Flags = e.Flags&^backup.Unreadable | backup.Wanted
				e.Content, e.Xattrs = backup.Content{}, nil
			}
		},
		func(e *backup.Entry) {
			w.problem(e.Name, "xattr", errNoRoom)
			e.Xattrs, p.fingerprint = nil, backup.Fingerprint{}
		},
	} {
		if p.self != nil && len(p.self.Xattrs) > 0 {
			makeRoom(p.self)
		}
		for i := range p.entries {
			if len(p.entries[i].Xattrs) > 0 {
				makeRoom(&p.entries[i])
			}
		}
		data, err = w.encode.Encode(nil, &backup.Page{Path: w.path, Key: p.key, Self: p.self, Entries: p.entries})
		if err == nil && len(data) <= maxListingBytes {
			return data, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("listing of %d bytes: %w", len(data), backup.ErrInvalid), err)
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
