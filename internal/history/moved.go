package history

import (
	"context"
	"errors"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
)

// A mover finds out where an entry came from, and where it went. It compares two successive
// snapshots where the path is new or gone, or is another file than before, and no others: that
// costs as much as has changed between them.
type mover struct {
	*reader
	path string
}

func (m *mover) moves(ctx context.Context, steps []Step) error {
	for i := range steps {
		s := &steps[i]
		var before *backup.Entry // that the version replaces
		if i > 0 && steps[i-1].Last == s.First-1 && !sameInode(steps[i-1].Entry, s.Entry) {
			before = steps[i-1].Entry
		}
		if s.New || before != nil {
			from, to, err := m.between(ctx, s.First-1, before, s.Entry)
			if err != nil {
				return err
			}
			s.From = from
			if before != nil {
				steps[i-1].To = to
			}
		}
		if s.Gone {
			_, to, err := m.between(ctx, s.Last, s.Entry, nil)
			if err != nil {
				return err
			}
			s.To = to
		}
	}
	return nil
}

// sameInode reports whether two versions of a path may be of one file.
func sameInode(a, b *backup.Entry) bool {
	return a.Kind == b.Kind && a.Inode == b.Inode && a.Btime == b.Btime
}

// between returns where the entry at the path is from that the snapshot after the one at a position
// has, and where the one has moved that this one has there. They are "" if it has not moved.
func (m *mover) between(ctx context.Context, at int, before, after *backup.Entry) (from, to string, err error) {
	fromAt, toAt := -1, -1 // lengths of the moved paths: the deepest one decides
	_, err = diff.Between(ctx, m.index, &m.snapshots[at], &m.snapshots[at+1], "", func(c *diff.Change) error {
		other := c.Kind == diff.Changed && c.Path != m.path && c.From == "" && !diff.SameFile(c.Old, c.New)
		switch {
		case c.Kind == diff.Added && c.Path == m.path:
			fromAt, from = len(m.path), ""
		case c.Kind == diff.Removed && c.Path == m.path:
			toAt, to = len(m.path), ""
		case (c.Kind == diff.Added || other) && before != nil && diff.SameFile(before, c.New): // another entry is in its place
			toAt, to = len(m.path), c.Path
		case (c.Kind == diff.Removed || other) && after != nil && diff.SameFile(c.Old, after): // it is in the place of another
			fromAt, from = len(m.path), c.Path
		case c.Kind == diff.Moved:
			if rest, ok := below(m.path, c.Path); ok && len(c.Path) > fromAt {
				fromAt, from = len(c.Path), c.From+rest
			}
			if rest, ok := below(m.path, c.From); ok && len(c.From) > toAt {
				toAt, to = len(c.From), c.Path+rest
			}
		}
		return nil
	})
	if errors.Is(err, backup.ErrCorrupt) {
		m.damage(err)
		err = nil
	}
	if from == m.path {
		from = ""
	}
	if to == m.path {
		to = ""
	}
	return from, to, err
}

// below returns the rest of a path that is dir or below it.
func below(path, dir string) (rest string, ok bool) {
	if dir == "" || !backup.IsAtOrBelow(path, dir) {
		return "", false
	}
	return strings.TrimPrefix(path, dir), true
}
