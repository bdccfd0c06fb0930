package read

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// A page of a batch while it is being completed.
type page struct {
	backup.Page
	version backup.PageVersion
	revisit bool     // the next snapshot must look at it again
	old     *oldPage // nil until it is needed
}

// read reads all wanted files (readPage, readEntry, readFile), and passes their chunks to the store
// workers.
func (b *batch) read(ctx context.Context) error {
	if err := b.decode(); err != nil {
		return err
	}
	b.expect()
	b.hash = chunk.NewHasher(b.svc.Key.Dedup)
	job := &b.msg.Job
	tree, err := source.OpenRoot(ctx, b.work.Source(b.svc.Source), job.Source, job.Root, job.Compare)
	if err != nil {
		return err
	}
	b.tree = tree
	defer tree.Close()
	defer b.recycleBuffer()
	now, behind := tree.Clock()
	b.racyFrom = backup.TimeOf(now.Add(-behind))
	for i := range b.pages {
		if err := b.readPage(ctx, &b.pages[i]); err != nil {
			return err
		}
	}
	// The data is trusted only if all mounts of the tree are still mounted.
	if err := source.CheckTree(ctx, tree, b.msg.Mounts); err != nil {
		return err
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	return b.encode()
}

func (b *batch) decode() error {
	b.pages = make([]page, len(b.msg.Pages))
	for i, v := range b.msg.Pages {
		p, err := listing.DecodePage(v)
		if err != nil {
			return fmt.Errorf("read batch %d: %w", b.msg.ID, err)
		}
		b.pages[i] = page{Page: p, version: v}
	}
	return nil
}

// A pageDir is the open directory of a page, or the reason why it could not be opened.
type pageDir struct {
	dir    source.Directory // nil if err is not
	err    error
	proven bool // another entry proved that it is of the tree that was walked (confirmGone)

	// gone: the directory is not at its path any more. stays: it was still there after an entry in
	// it had vanished.
	gone, stays bool

	shown source.XattrsShown
}

func (b *batch) openDir(ctx context.Context, path string) (at pageDir) {
	dir, err := b.tree.OpenDirectory(ctx, path)
	if path == "" && source.IsGone(err) {
		// The tree is open, so its root exists, although this call reports that it does not.
		err = fmt.Errorf("the root of %s cannot be opened: %v: %w", b.msg.Job.Source, err, backup.ErrUnavailable) //nolint:errorlint // it must not count as gone
	}
	if err != nil {
		return pageDir{err: err}
	}
	return pageDir{dir: dir}
}

func (at *pageDir) close() {
	if at.dir != nil {
		_ = at.dir.Close() // it was only read
		at.dir = nil
	}
}

func (b *batch) readPage(ctx context.Context, p *page) error {
	at := b.openDir(ctx, p.Path)
	defer func() { at.close() }()
	if p.Self != nil && p.Self.Flags&backup.XattrsWanted != 0 {
		if _, err := b.readOwnXattrs(ctx, &at, p, p.Self); err != nil {
			return err
		}
	}
	kept := p.Entries[:0]
	for i := range p.Entries {
		if err := b.svc.refused(); err != nil {
			return err
		}
		e := &p.Entries[i]
		keep := true
		var err error
		switch {
		case e.Flags&backup.Wanted != 0:
			keep, err = b.readEntry(ctx, &at, p, e)
		case e.Flags&backup.XattrsWanted != 0 && e.Kind == backup.File:
			keep, err = b.readXattrsAlone(ctx, &at, p, e)
		case e.Flags&backup.XattrsWanted != 0:
			keep, err = b.readOwnXattrs(ctx, &at, p, e)
		}
		if err != nil {
			return err
		}
		if keep {
			kept = append(kept, *e)
		}
	}
	clear(p.Entries[len(kept):])
	p.Entries = kept
	b.report(backup.Progress{Path: p.Path})
	return nil
}

// readEntry reads a wanted file, or settles how it is recorded. keep is false if the file no longer
// exists.
func (b *batch) readEntry(ctx context.Context, at *pageDir, p *page, e *backup.Entry) (keep bool, err error) {
	earlier, was := e.Flags.Earlier()
	e.Flags = (e.Flags &^ (backup.Wanted | backup.XattrsWanted)).WithClass(backup.Unclassified)
	size := e.Size
	b.fileBegins(size)
	err = b.retryStale(ctx, at, p, func(last bool) error { return b.readFile(ctx, at, p, e, last) })
	if keep, err = b.settle(ctx, at, p, e, err); err != nil {
		return false, err
	}
	b.fileEnds(keep, e.Size)
	now := backup.Unclassified // nothing was read
	if keep && e.Flags&backup.Unreadable == 0 {
		now = e.Flags.Class()
	}
	b.counts.Judge(earlier, was, now)
	if !keep {
		b.counts.Bytes -= size
		return false, nil
	}
	b.counts.AddBytes(min(e.Size, backup.MaxCount) - min(size, backup.MaxCount))
	return true, nil
}

// retryStale calls read, unless the directory could not be opened. If the file server reports a
// stale handle, the directory is opened once more, by its path, and read is called for the last
// time.
func (b *batch) retryStale(ctx context.Context, at *pageDir, p *page, read func(last bool) error) error {
	err := at.err
	if err == nil {
		err = read(false)
	}
	if !errors.Is(err, source.ErrStale) {
		return err
	}
	at.close()
	if *at = b.openDir(ctx, p.Path); at.err != nil {
		return at.err
	}
	return read(true)
}

// encode makes page versions of the pages that were read, so that a batch takes little memory while
// it waits for its packs.
func (b *batch) encode() error {
	var encode listing.Encoder
	for i := range b.pages {
		p := &b.pages[i]
		v := p.version
		v.Fingerprint = listing.Stored(v.Fingerprint, p.Self, p.Entries)
		if p.revisit {
			v.Fingerprint = backup.Fingerprint{}
		}
		var err error
		if v.Listing, err = encode.Encode(nil, &p.Page); err != nil {
			return fmt.Errorf("read batch %d: %w", b.msg.ID, err)
		}
		b.complete = append(b.complete, v)
	}
	b.pages, b.hash, b.cutter = nil, nil, nil
	return nil
}
