package diff

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/listing"
)

// A side is what one snapshot has of a directory: the entries of the pages that differ.
type side struct {
	path    string
	self    *backup.Entry // if the first page is among them
	entries []backup.Entry
	err     error // if a page could not be decoded: the first one's
}

// compare reports the changes of a directory, unless a page of it is damaged. Its subdirectories
// are reported by their own pages.
func (d *differ) compare(ctx context.Context, dir *directory) error {
	old, now := first(dir.ended), first(dir.added)
	before := dir.path // where the newer snapshot's directory was
	if from, ok := d.moved.from[dir.path]; ok {
		before = from
	}
	if sound, err := d.isSound(&dir.now); !sound {
		return err
	}
	nothing := side{path: before}
	switch {
	case before != dir.path:
		known := side{path: before}
		if err := d.readWhole(ctx, &known); err != nil {
			return err
		}
		if sound, err := d.isSound(&known); !sound {
			return err
		}
		if old != nil && !d.moved.away[dir.path] { // the one that was here is gone
			return errors.Join(d.removed(ctx, dir), d.compareSides(ctx, &known, &dir.now))
		}
		return d.compareSides(ctx, &known, &dir.now)
	case old != nil && d.moved.away[dir.path]:
		return d.compareSides(ctx, &nothing, &dir.now) // what is here now is new
	case old != nil && now == nil:
		return d.removed(ctx, dir)
	}
	if sound, err := d.isSound(&dir.old); !sound {
		return err
	}
	return d.compareSides(ctx, &dir.old, &dir.now)
}

// isSound reports whether all pages of a side could be decoded. Damaged ones are noted; another
// error is returned.
func (d *differ) isSound(s *side) (bool, error) {
	if s.err == nil {
		return true, nil
	}
	if !errors.Is(s.err, backup.ErrCorrupt) {
		return false, s.err
	}
	d.damaged = append(d.damaged, fmt.Errorf("directory %q: %w", s.path, s.err))
	return false, nil
}

// removed reports a directory that the newer snapshot does not have anywhere. Of damaged pages
// nothing is known.
func (d *differ) removed(ctx context.Context, dir *directory) error {
	if _, err := d.isSound(&dir.old); err != nil {
		return err
	}
	return d.compareSides(ctx, &dir.old, &side{path: dir.path})
}

// read adds the entries of some pages.
func (s *side) read(pages []backup.PageVersion) {
	for i := range pages {
		s.readPage(&pages[i])
	}
	s.entries = listing.Sort(s.entries)
}

func (s *side) readPage(v *backup.PageVersion) {
	page, err := listing.DecodePage(*v)
	switch {
	case err != nil && s.err == nil:
		s.err = err
		return
	case err != nil:
		return
	case page.Self != nil:
		s.self = page.Self
	}
	if s.entries == nil {
		s.entries = page.Entries
		return
	}
	s.entries = append(s.entries, page.Entries...)
}

// readWhole reads the directory at the path of the older snapshot.
func (d *differ) readWhole(ctx context.Context, s *side) error {
	for v, err := range d.index.Pages(ctx, d.old.ID, s.path) {
		if err != nil {
			return err
		}
		if v.Path != s.path {
			break // pages of a directory come before those below it
		}
		s.readPage(&v)
	}
	s.entries = listing.Sort(s.entries)
	return nil
}

// compareSides reports the changes between two states of a directory. Without a self, a side has no
// such directory, or the directory itself is unchanged.
func (d *differ) compareSides(ctx context.Context, old, now *side) error {
	if err := d.self(ctx, old, now); err != nil {
		return err
	}
	i, j := 0, 0
	for i < len(old.entries) || j < len(now.entries) {
		var o, n *backup.Entry
		if i < len(old.entries) {
			o = &old.entries[i]
		}
		if j < len(now.entries) {
			n = &now.entries[j]
		}
		switch {
		case n == nil || o != nil && o.Name < n.Name:
			n = nil
			i++
		case o == nil || n.Name < o.Name:
			o = nil
			j++
		default:
			i++
			j++
		}
		if err := d.entry(ctx, old.path, now.path, o, n); err != nil {
			return err
		}
		if old.path == now.path {
			continue
		}
		if err := d.stayed(ctx, old.path, o); err != nil {
			return err
		}
		if err := d.stayed(ctx, now.path, n); err != nil {
			return err
		}
	}
	return nil
}

// stayed reports a subdirectory that is at the same path in both snapshots, although the directory
// above it, which lists it as e in one of them, has moved from there or to there.
func (d *differ) stayed(ctx context.Context, above string, e *backup.Entry) error {
	if e == nil || e.Kind != backup.Directory {
		return nil
	}
	path := backup.Join(above, e.Name)
	if _, here := d.moved.from[path]; here || d.moved.away[path] || d.moved.stayed[path] {
		return nil
	}
	d.moved.stayed[path] = true
	var selves [2]*backup.Entry
	for i, s := range []*backup.Snapshot{d.old, d.now} {
		self, err := browse.Directory(ctx, d.index, s.ID, path)
		switch {
		case errors.Is(err, backup.ErrCorrupt):
			d.damaged = append(d.damaged, err)
			return nil
		case err != nil || self == nil:
			return err
		}
		selves[i] = self
	}
	return d.report(ctx, Change{Kind: Moved, Path: path, From: path, Old: selves[0], New: selves[1]})
}

// self reports how a directory itself has changed.
func (d *differ) self(ctx context.Context, old, now *side) error {
	o, n := named(old), named(now)
	switch {
	case o == nil && n == nil:
		return nil
	case o == nil:
		return d.report(ctx, Change{Kind: Added, Path: now.path, New: n})
	case n == nil:
		return d.report(ctx, Change{Kind: Removed, Path: old.path, Old: o})
	}
	c := Change{Kind: Changed, Path: now.path, Old: o, New: n}
	if old.path != now.path {
		c.From = old.path
		if !d.moved.followsParent(now.path) {
			c.Kind = Moved
		}
	}
	if err := d.differs(ctx, &c); err != nil {
		return err
	}
	if c.Kind == Changed && c.Differs == 0 {
		return nil
	}
	return d.report(ctx, c)
}

// named returns the directory's own attributes, with its name.
func named(s *side) *backup.Entry {
	if s.self == nil {
		return nil
	}
	e := *s.self
	_, e.Name = backup.Split(s.path)
	return &e
}

// entry reports how an entry has changed. Directories are reported by self.
func (d *differ) entry(ctx context.Context, before, path string, old, now *backup.Entry) error {
	if old != nil && old.Kind == backup.Directory {
		old = nil
	}
	if now != nil && now.Kind == backup.Directory {
		now = nil
	}
	switch {
	case old == nil && now == nil:
		return nil
	case old == nil:
		return d.report(ctx, Change{Kind: Added, Path: backup.Join(path, now.Name), New: now})
	case now == nil:
		return d.report(ctx, Change{Kind: Removed, Path: backup.Join(before, old.Name), Old: old})
	}
	c := Change{Kind: Changed, Path: backup.Join(path, now.Name), Old: old, New: now}
	if before != path {
		c.From = backup.Join(before, old.Name)
	}
	if err := d.differs(ctx, &c); err != nil || c.Differs == 0 || !d.concerns(&c) {
		return err // what is changed is not part of a move
	}
	return d.report(ctx, c)
}
