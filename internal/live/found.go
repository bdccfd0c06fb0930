package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/listing"
)

// Found is what a walk of a source finds that differs from a snapshot, the base. It shows the
// source as a snapshot, Now, and is the diff.Index of both. Only a bounded part of it is in memory.
type Found struct {
	index  diff.Index
	base   backup.Snapshot
	now    backup.Snapshot
	sorter sorter
	added  *pageFile // the pages of Now that the base does not have
	ended  *pageFile // the pages of the base that Now does not have
	lacks  bool      // the index does not have all pages of the base
}

// New returns a Found without anything.
func New(x diff.Index, base *backup.Snapshot) *Found {
	f := &Found{index: x, base: *base, now: *base, sorter: sorter{most: runBytes}}
	f.now.ID = backup.NewSnapshotID()
	return f
}

// Now returns the source as a snapshot. Only its ID and Pages are of the source.
func (f *Found) Now() *backup.Snapshot { return &f.now }

// Add adds a part of what the walk has found.
func (f *Found) Add(m *backup.SliceWalked) error {
	lists := [][]backup.PageVersion{m.Pages}
	for i := range m.Batches {
		lists = append(lists, m.Batches[i].Pages)
	}
	for _, pages := range lists {
		for i := range pages {
			v := pages[i]
			v.Listing = bytes.Clone(v.Listing)
			v.Digest = listing.Digest(&v)
			if err := f.add(v.Path, isPage, v); err != nil {
				return err
			}
		}
	}
	for _, name := range m.Ended {
		if err := f.add(name.Path, isEnded, backup.PageVersion{Key: name.Key}); err != nil {
			return err
		}
	}
	for _, path := range m.Removed {
		if err := f.add(path, isGone, backup.PageVersion{}); err != nil {
			return err
		}
	}
	return nil
}

func (f *Found) add(path string, is what, v backup.PageVersion) error {
	v.Path = ""
	return onDisk(f.sorter.add(record{string(backup.PathKey(path)), is, v}))
}

// onDisk names what has failed.
func onDisk(err error) error {
	if err != nil {
		err = fmt.Errorf("sort what the walk has found, in a temporary file: %w", err)
	}
	return err
}

// Complete ends the collection. It reads all pages of the base once, and finds out whether the
// index has them all.
func (f *Found) Complete(ctx context.Context) (err error) {
	for _, file := range []**pageFile{&f.added, &f.ended} {
		if *file, err = newPageFile(); err != nil {
			return onDisk(err)
		}
	}
	defer func() {
		f.sorter.close()
		f.sorter = sorter{}
	}()
	c := newCursor(f.sorter.all())
	defer c.stop()
	var goneTo string // the end of the directory that is gone
	var had backup.PageSet
	for v, err := range f.index.Pages(ctx, f.base.ID, "") {
		if err != nil {
			return err
		}
		had.Add(v.Digest)
		at := record{string(backup.PathKey(v.Path)), isPage, v}
		for c.ok && c.head.compare(&at) < 0 {
			if err := f.take(c, &goneTo); err != nil {
				return err
			}
		}
		same := c.ok && c.head.compare(&at) == 0
		if same || at.pathKey < goneTo {
			f.now.Pages.Remove(v.Digest)
			if err := onDisk(f.ended.write(&at)); err != nil {
				return err
			}
		}
		if same {
			if err := f.take(c, &goneTo); err != nil {
				return err
			}
		}
	}
	for c.ok {
		if err := f.take(c, &goneTo); err != nil {
			return err
		}
	}
	f.lacks = had != f.base.Pages
	return onDisk(errors.Join(c.err, f.added.flush(), f.ended.flush()))
}

// take takes the next record.
func (f *Found) take(c *cursor, goneTo *string) error {
	r := c.head
	c.advance()
	switch r.what {
	case isPage:
		f.now.Pages.Add(r.page.Digest)
		return onDisk(f.added.write(&r))
	case isGone:
		path, err := backup.PathOfKey([]byte(r.pathKey))
		*goneTo = max(*goneTo, string(backup.PathKeyEnd(path)))
		return err
	}
	return nil
}

// Err returns an error if the index lacks pages of the base: then what it has in them seems to be
// new.
func (f *Found) Err() error {
	if f.lacks {
		return fmt.Errorf("the index lacks pages of snapshot %s, or has other ones: what they list may be reported as added (bctl check finds the cause): %w", f.base.ID.Short(), backup.ErrCorrupt)
	}
	return nil
}

// Added implements diff.Index.
func (f *Found) Added(context.Context, backup.SnapshotID, backup.SnapshotID) iter.Seq2[backup.PageChange, error] {
	return changes(f.added, false)
}

// Ended implements diff.Index.
func (f *Found) Ended(context.Context, backup.SnapshotID, backup.SnapshotID) iter.Seq2[backup.PageChange, error] {
	return changes(f.ended, true)
}

func changes(in *pageFile, ended bool) iter.Seq2[backup.PageChange, error] {
	return func(yield func(backup.PageChange, error) bool) {
		for r, err := range in.from("") {
			var v backup.PageVersion
			if err == nil {
				v, err = r.version()
			}
			if !yield(backup.PageChange{Ended: ended, Digest: v.Digest, PageVersion: v}, err) || err != nil {
				return
			}
		}
	}
}

// Pages implements diff.Index: of Now, it yields the pages of the base, without those that ended,
// and those that were added.
func (f *Found) Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	if id != f.now.ID {
		return f.index.Pages(ctx, id, path)
	}
	return func(yield func(backup.PageVersion, error) bool) {
		from, to := string(backup.PathKey(path)), backup.PathKeyEnd(path)
		within := func(c *cursor) bool { return c.ok && (to == nil || c.head.pathKey < string(to)) }
		ended, added := newCursor(f.ended.from(from)), newCursor(f.added.from(from))
		defer ended.stop()
		defer added.stop()
		before := func(at *record) bool { // yields the added pages before at; nil: all
			for within(added) && (at == nil || added.head.compare(at) < 0) {
				v, err := added.head.version()
				if !yield(v, err) || err != nil {
					return false
				}
				added.advance()
			}
			return true
		}
		for v, err := range f.index.Pages(ctx, f.base.ID, path) {
			if err != nil {
				yield(v, err)
				return
			}
			at := record{string(backup.PathKey(v.Path)), isPage, v}
			if !before(&at) {
				return
			}
			for ended.ok && ended.head.compare(&at) < 0 {
				ended.advance()
			}
			if ended.ok && ended.head.compare(&at) == 0 {
				continue
			}
			if !yield(v, nil) {
				return
			}
		}
		if before(nil) {
			if err := errors.Join(ended.err, added.err); err != nil {
				yield(backup.PageVersion{}, err)
			}
		}
	}
}

// Close removes the temporary files.
func (f *Found) Close() {
	f.sorter.close()
	f.added.close()
	f.ended.close()
}
