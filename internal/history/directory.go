package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// maxDamaged is how many pages are named that cannot be read.
const maxDamaged = 10

// A reader reads the history of a shard.
type reader struct {
	index     Index
	shard     backup.ShardID
	snapshots Snapshots
	decoder   listing.Decoder
	damaged   []error
	unread    int // pages
}

// A directory collects the entries of a directory with the names that are looked for.
type directory struct {
	path  string
	spans map[string][]span
}

// add adds the wanted entries of a version of a page. Damaged pages are noted, and left out.
func (r *reader) add(d *directory, v *index.PageSpan, want func(dir, name string) bool) error {
	if !r.snapshots.has(v.First, v.Last) {
		return nil
	}
	page, err := r.decode(v)
	if err != nil || page == nil {
		return err
	}
	for i := range page.Entries {
		e := &page.Entries[i]
		if want(d.path, e.Name) {
			d.add(e.Name, v, e)
		}
	}
	return nil
}

// add adds an entry, or makes the last one last longer if that is the same.
func (d *directory) add(name string, v *index.PageSpan, e *backup.Entry) {
	list := d.spans[name]
	if n := len(list) - 1; n >= 0 && v.First > 1 && list[n].last == v.First-1 && list[n].entry.Kind == e.Kind && same(list[n].entry, e) {
		list[n].last = v.Last
		return
	}
	d.spans[name] = append(list, span{v.First, v.Last, diff.Clone(e)})
}

// decode returns the page of a version, or nil if it is damaged.
func (r *reader) decode(v *index.PageSpan) (*backup.Page, error) {
	page, err := r.decoder.DecodePage(v.PageVersion)
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		r.damage(err)
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &page, nil
}

func (r *reader) damage(err error) {
	if r.unread++; r.unread <= maxDamaged {
		r.damaged = append(r.damaged, err)
	}
}

// err returns what could not be read.
func (r *reader) err() error {
	if r.unread == 0 {
		return nil
	}
	return fmt.Errorf("%d pages could not be read (bctl check finds the cause): %w", r.unread, errors.Join(r.damaged...))
}

// complete replaces the entries that are directories by these with their attributes, which are in
// pages of their own. It reads them all at once.
func (r *reader) complete(ctx context.Context, dirs []*directory) error {
	selves := map[string][]span{}
	var pages []backup.PageName
	for _, d := range dirs {
		for _, name := range slices.Sorted(maps.Keys(d.spans)) {
			if slices.ContainsFunc(d.spans[name], func(s span) bool { return s.entry.Kind == backup.Directory }) {
				pages = append(pages, backup.PageName{Path: backup.Join(d.path, name)})
			}
		}
	}
	err := r.index.VersionsOf(ctx, r.shard, pages, func(v *index.PageSpan) error { return r.addSelf(selves, v) })
	if err != nil {
		return err
	}
	for _, d := range dirs {
		for name, spans := range d.spans {
			d.spans[name] = r.withSelves(backup.Join(d.path, name), spans, selves[backup.Join(d.path, name)])
		}
	}
	return nil
}

// addSelf adds the attributes that a directory's first page has of it.
func (r *reader) addSelf(selves map[string][]span, v *index.PageSpan) error {
	if !r.snapshots.has(v.First, v.Last) {
		return nil
	}
	page, err := r.decode(v)
	if err != nil || page == nil {
		return err
	}
	if page.Self == nil {
		r.damage(fmt.Errorf("first page of %q has no attributes: %w", v.Path, backup.ErrCorrupt))
		return nil
	}
	self := diff.Clone(page.Self)
	_, self.Name = backup.Split(v.Path)
	selves[v.Path] = append(selves[v.Path], span{v.First, v.Last, self})
	return nil
}

// withSelves returns the spans of a path, with the attributes of directories. Where these are not
// known, the entry has only a name.
func (r *reader) withSelves(path string, spans, selves []span) (list []span) {
	for _, s := range spans {
		if s.entry.Kind != backup.Directory {
			list = append(list, s)
			continue
		}
		next := s.first
		gap := func(to backup.SnapshotNumber) {
			if next <= to && r.snapshots.has(next, to) {
				r.damage(fmt.Errorf("directory %q: the index lacks its first page: %w", path, backup.ErrCorrupt))
				list = append(list, span{next, to, &backup.Entry{Name: s.entry.Name, Kind: backup.Directory, Inode: s.entry.Inode, Flags: backup.AttributesUnknown | backup.Unreadable}})
			}
		}
		for _, self := range selves {
			first, last := max(self.first, s.first), min(self.last, s.last)
			if first > last {
				continue
			}
			gap(first - 1)
			list = append(list, span{first, last, self.entry})
			if next = last; next < math.MaxInt64 {
				next++
			}
		}
		if len(selves) == 0 || selves[len(selves)-1].last < s.last {
			gap(s.last)
		}
	}
	return list
}
