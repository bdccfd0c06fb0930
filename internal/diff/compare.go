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
}

// compare reports the changes of a directory, unless a page of it is damaged. Its subdirectories
// are reported by their own pages.
func (d *differ) compare(ctx context.Context, dir *directory) error {
	old, now := first(dir.ended), first(dir.added)
	before := dir.path // where the newer snapshot's directory was
	if from, ok := d.moved.from[dir.path]; ok {
		before = from
	}
	damaged := len(d.damaged)
	after := side{path: dir.path}
	if err := d.read(&after, dir.added); err != nil || len(d.damaged) > damaged {
		return err
	}
	known := side{path: before}
	switch {
	case before != dir.path:
		if err := d.readWhole(ctx, &known); err != nil || len(d.damaged) > damaged {
			return err
		}
		if old != nil && !d.moved.away[dir.path] { // the one that was here is gone
			return errors.Join(d.removed(ctx, dir), d.compareSides(ctx, &known, &after))
		}
		return d.compareSides(ctx, &known, &after)
	case old != nil && d.moved.away[dir.path]:
		return d.compareSides(ctx, &known, &after) // what is here now is new
	case old != nil && now == nil:
		return d.removed(ctx, dir)
	}
	if err := d.read(&known, dir.ended); err != nil || len(d.damaged) > damaged {
		return err
	}
	return d.compareSides(ctx, &known, &after)
}

// removed reports a directory that the newer snapshot does not have anywhere.
func (d *differ) removed(ctx context.Context, dir *directory) error {
	known := side{path: dir.path}
	if err := d.read(&known, dir.ended); err != nil {
		return err
	}
	return d.compareSides(ctx, &known, &side{path: dir.path})
}

// read adds the entries of some pages. Damaged pages are noted, and left out.
func (d *differ) read(s *side, pages []backup.PageVersion) error {
	for i := range pages {
		if err := d.readPage(s, &pages[i]); err != nil {
			return err
		}
	}
	s.entries = listing.Sort(s.entries)
	return nil
}

func (d *differ) readPage(s *side, v *backup.PageVersion) error {
	page, err := listing.DecodePage(*v)
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		d.damaged = append(d.damaged, fmt.Errorf("directory %q: %w", v.Path, err))
		return nil
	case err != nil:
		return err
	}
	if page.Self != nil {
		s.self = page.Self
	}
	s.entries = append(s.entries, page.Entries...)
	return nil
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
		if err := d.readPage(s, &v); err != nil {
			return err
		}
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
