package diff

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"github.com/bctl/bctl/internal/backup"
)

// A directory has the pages of one path that differ: those that only the newer snapshot has, and
// those that only the older one has.
type directory struct {
	path  string
	added []backup.PageVersion
	ended []backup.PageVersion
}

// first returns the first page of a directory, or nil if that is not among the pages. It has the
// directory's own attributes.
func first(pages []backup.PageVersion) *backup.PageVersion {
	if len(pages) > 0 && pages[0].Key == 0 {
		return &pages[0]
	}
	return nil
}

// maxKept is the maximum length of the listings that are kept in memory, so that they are not read
// again.
const maxKept = 64 << 20

// keep reads the directories with pages that differ, and keeps them if they are small.
func (d *differ) keep(ctx context.Context) error {
	bytes, content := 0, d.old.Pages
	for dir, err := range d.stream(ctx) {
		if err != nil {
			return err
		}
		for i := range dir.ended {
			content.Remove(dir.ended[i].Digest)
		}
		for i := range dir.added {
			content.Add(dir.added[i].Digest)
		}
		for _, pages := range [][]backup.PageVersion{dir.added, dir.ended} {
			for i := range pages {
				bytes += len(pages[i].Listing) + len(pages[i].Path)
			}
		}
		if d.many = d.many || bytes > maxKept; d.many {
			d.kept = nil
			continue
		}
		d.kept = append(d.kept, dir)
	}
	if content != d.now.Pages {
		d.damaged = append(d.damaged, fmt.Errorf("the index lacks pages that differ, or has other ones: %w", backup.ErrCorrupt))
	}
	return nil
}

// directories yields the directories with pages that differ, in the order of path keys.
func (d *differ) directories(ctx context.Context) iter.Seq2[directory, error] {
	if d.many {
		return d.stream(ctx)
	}
	return func(yield func(directory, error) bool) {
		for i := range d.kept {
			if !yield(d.kept[i], nil) {
				return
			}
		}
	}
}

// stream reads them from the index.
func (d *differ) stream(ctx context.Context) iter.Seq2[directory, error] {
	return func(yield func(directory, error) bool) {
		added, stopAdded := iter.Pull2(d.index.Added(ctx, d.now.ID, d.old.ID))
		defer stopAdded()
		ended, stopEnded := iter.Pull2(d.index.Ended(ctx, d.now.ID, d.old.ID))
		defer stopEnded()
		a, e := &pages{next: added}, &pages{next: ended}
		for a.advance() && e.advance() && (a.more || e.more) {
			var dir directory
			var order int
			switch {
			case !e.more:
				order = -1
			case !a.more:
				order = 1
			default:
				order = bytes.Compare(backup.PathKey(a.path()), backup.PathKey(e.path()))
			}
			if order <= 0 {
				dir.path = a.path()
				dir.added = a.take()
			}
			if order >= 0 {
				dir.path = e.path()
				dir.ended = e.take()
			}
			if a.err == nil && e.err == nil && !yield(dir, nil) {
				return
			}
		}
		for _, p := range []*pages{a, e} {
			if p.err != nil {
				yield(directory{}, p.err)
				return
			}
		}
	}
}

// pages reads a stream of pages by directory.
type pages struct {
	next func() (backup.PageChange, error, bool)
	head *backup.PageChange // the next one, once it is read
	more bool               // there is a head
	err  error
}

// advance reads the head, and reports false on an error.
func (p *pages) advance() bool {
	if p.head == nil && p.err == nil {
		var c backup.PageChange
		c, p.err, p.more = p.next()
		p.head = &c
	}
	return p.err == nil
}

func (p *pages) path() string { return p.head.Path }

// take returns the pages of the head's directory, and leaves the first one of the next directory as
// the head.
func (p *pages) take() (list []backup.PageVersion) {
	path := p.path()
	for p.more && p.path() == path {
		list = append(list, p.head.PageVersion)
		p.head = nil
		if !p.advance() {
			return nil
		}
	}
	return list
}
