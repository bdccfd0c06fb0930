package walk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// addDifferences adds the differences from the last snapshot to the findings: it completes each
// page that differs (takeOver), and adds them all (addPages). carried reports that the directory
// was carried forward from the last snapshot because its mount is gone: its current content is then
// ignored.
func (w *visit) addDifferences(ctx context.Context, old *oldState, gone []backup.PageKey) (carried bool, err error) {
	if len(w.pages) > 0 || len(gone) > 0 {
		if w.unmounted(old.self) {
			return true, w.slice.carry(ctx, w.path, w.path, errUnmounted, "open")
		}
		for _, name := range old.removed {
			if err := w.slice.findings.removed(ctx, backup.Join(w.path, name)); err != nil {
				return false, err
			}
		}
		for i := range w.pages {
			if err := w.takeOver(ctx, &w.pages[i], old); err != nil {
				return false, err
			}
		}
		for _, key := range gone {
			if err := w.slice.findings.ended(ctx, backup.PageName{Path: w.path, Key: key}); err != nil {
				return false, err
			}
		}
	}
	return false, w.addPages(ctx)
}

// takeOver decides what is read again. It copies what is known of unchanged entries into a page,
// and flags changed files as wanted (listing.TakeOver). It reads the extended attributes of changed
// entries that are not regular files.
func (w *visit) takeOver(ctx context.Context, p *page, old *oldState) error {
	c := listing.TakeOver(w.slice.task.Job.Compare, w.slice.svc.opts.Reread, p.entries, old.entries, func() bool { return w.shown.In(ctx, w.dir) }, w.observer())
	w.counts.FilesNew += c.New
	w.counts.FilesChanged += c.Changed
	w.counts.FilesUnchanged += c.Unchanged
	if c.New > 0 && len(old.gone) > 0 {
		old.gone = listing.Rename(p.entries, old.gone)
	}
	if err := w.settleSelf(ctx, p, old.self); err != nil {
		return err
	}
	if err := w.settleEntries(ctx, p); err != nil {
		return err
	}
	// The reader judges the files that it is to read. Nothing is to be judged of the rest.
	files, _ := wanted(p.entries)
	w.counts.FilesJudged += c.New + c.Changed - int64(files)
	return w.takeInterrupted(ctx, p)
}

// settleSelf reads the extended attributes of the directory, on page 0, unless it is unchanged.
func (w *visit) settleSelf(ctx context.Context, p *page, old *backup.Entry) error {
	if p.self == nil {
		return nil
	}
	if old != nil {
		p.self.Xattrs, p.self.XattrChunk = old.Xattrs, old.XattrChunk
	}
	switch {
	case old == nil || w.slice.svc.opts.Reread || !listing.Unchanged(w.slice.task.Job.Compare, p.self, old),
		old.Flags&backup.XattrsUnshown != 0 && w.shown.In(ctx, w.dir):
		p.self.Flags |= backup.XattrsWanted
	default:
		p.self.Flags |= old.Flags & backup.XattrsUnshown
	}
	_, err := w.settleXattrs(ctx, p, p.self)
	return err
}

// observer returns a function that passes changes to Options.OnChange; nil if there is none. It
// is not called for an entry whose stat failed: the entry may be unchanged, and its problem is
// reported instead.
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
			_, class := e.Flags.Earlier()
			e.Flags = (e.Flags&^(backup.Wanted|backup.XattrsWanted) | backup.Unreadable).WithClass(class)
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

// settleXattrs reads the extended attributes of an entry that wants them. gone reports that the
// entry no longer exists. An error ends the attempt.
func (w *visit) settleXattrs(ctx context.Context, p *page, e *backup.Entry) (gone bool, _ error) {
	if e.Flags&backup.XattrsWanted == 0 {
		return false, nil
	}
	e.Flags &^= backup.XattrsWanted | backup.XattrsUnshown
	s := w.slice
	xattrs, err := w.dir.Xattrs(ctx, e.Name, e.Kind)
	if errors.Is(err, source.ErrNoXattrs) {
		switch {
		case w.shown.In(ctx, w.dir): // of other kinds of entries
			err = nil
		case len(e.Xattrs) == 0 && e.XattrChunk.Length == 0:
			e.Flags |= backup.XattrsUnshown
			err = nil
		}
	}
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

// takeInterrupted looks up the files that would have to be read in an uncommitted snapshot. If they
// have not changed since, they get the content that this snapshot has stored.
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
	listing.TakeContent(job.Compare, p.entries, left.Entries, &w.counts)
	return nil
}

// addPages adds the pages that differ to the findings, with everything else that is known of the
// directory.
func (w *visit) addPages(ctx context.Context) error {
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
			version.Fingerprint = listing.Stored(p.fingerprint, p.self, p.entries)
			add.pages = append(add.pages, version)
			continue
		}
		add.toRead = append(add.toRead, pageToRead{version, wantedFiles, wantedBytes})
	}
	w.counts.Errors += int64(len(w.problems))
	add.counts, add.problems, add.answers, add.latency = w.counts, w.problems, w.answers, w.latency
	return w.slice.findings.add(ctx, add)
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
				e.Flags |= backup.XattrsWanted | backup.XattrsUnreadable // until they are read
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
