package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/churn"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
)

const (
	churnDirectories = 1024 // that are told apart; deeper ones count with those above them
	churnListed      = 20   // directories, and owners, that are listed
)

// partJSON is a line of churn SNAPSHOT. The names are fixed.
type partJSON struct {
	Directory *string `json:"directory"` // within the shard, with what is below it that has no line; null: of an owner
	Owner     *uint32 `json:"owner"`     // a user id; null: of a directory
	New       int64   `json:"files_new"`
	Changed   int64   `json:"files_changed"`
	Moved     int64   `json:"files_moved"`
	Removed   int64   `json:"files_removed"`
	TypesLost int64   `json:"types_lost"`
	Opaque    int64   `json:"files_opaque"`
}

// parts lists the changes of a snapshot by directory and by owner. It compares the snapshot with
// the one before, so that its cost is in proportion to the change.
func (c *churnLs) parts(ctx context.Context, i index.Index, given string) error {
	now, err := c.which.readable(ctx, c.app, i, given)
	if err != nil {
		return err
	}
	if now.Base == 0 {
		return absent("snapshot %s is the first one of its shard: all of its files are new", now.ID.Short())
	}
	old, err := i.Snapshot(ctx, now.BaseID)
	if errors.Is(err, backup.ErrNotFound) || err == nil && old.State != backup.Committed {
		return absent("the snapshot before %s, number %d, was forgotten: its changes cannot be listed any more", now.ID.Short(), now.Base)
	}
	if err != nil {
		return err
	}
	tally := churn.NewTally(churnDirectories)
	_, err = diff.Between(ctx, i, &old, &now, "", func(ch *diff.Change) error {
		e := ch.New
		if e == nil {
			e = ch.Old
		}
		if e.Kind != backup.Directory {
			dir, _ := backup.Split(ch.Path)
			tally.Add(dir, e.UID, countOf(ch))
		}
		return nil
	})
	if err != nil && !errors.Is(err, backup.ErrCorrupt) {
		return err
	}
	var list []partJSON
	for _, d := range tally.Directories() {
		line := newPartJSON(&d.Count)
		line.Directory = &d.Of
		list = append(list, line)
	}
	directories := len(list)
	for _, o := range tally.Owners() {
		line := newPartJSON(&o.Count)
		line.Owner = &o.Of
		list = append(list, line)
	}
	return errors.Join(c.printParts(list, directories), err)
}

// countOf counts a change. Without an earlier version, a file that is opaque counts as such.
func countOf(ch *diff.Change) (n churn.Count) {
	was, is := backup.Unclassified, backup.Unclassified
	if ch.Old != nil {
		was = ch.Old.Flags.Class()
	}
	if ch.New != nil {
		is = ch.New.Flags.Class()
	}
	switch ch.Kind {
	case diff.Added:
		n.New = 1
	case diff.Removed:
		n.Removed = 1
		return n
	case diff.Moved:
		n.Renamed = 1
	default:
		n.Changed = 1
	}
	if was == backup.Typed && is != backup.Typed && is != backup.Unclassified {
		n.TypesLost = 1
	}
	if was != backup.Opaque && is == backup.Opaque {
		n.Opaque = 1
	}
	return n
}

func newPartJSON(c *churn.Count) partJSON {
	return partJSON{New: c.New, Changed: c.Changed, Moved: c.Renamed, Removed: c.Removed, TypesLost: c.TypesLost, Opaque: c.Opaque}
}

func (c *churnLs) printParts(list []partJSON, directories int) error {
	if c.app.json {
		return printList(c.app, list, nil, func(p partJSON) partJSON { return p })
	}
	part := func(name string, list []partJSON, what string) error {
		if len(list) > churnListed {
			defer c.app.note("%d more %s have changes; --json lists them", len(list)-churnListed, what)
			list = list[:churnListed]
		}
		return printList(c.app, list, partTable(name), func(p partJSON) partJSON { return p })
	}
	if err := part("DIRECTORY", list[:directories], "directories"); err != nil || directories == 0 {
		return err
	}
	if _, err := fmt.Fprintln(c.app.out); err != nil {
		return err
	}
	return part("OWNER", list[directories:], "owners")
}

func partTable(name string) table[partJSON] {
	number := func(name string, leave int, of func(*partJSON) int64) column[partJSON] {
		return column[partJSON]{name: name, right: true, leave: leave, text: func(p partJSON) string { return humanize.Comma(of(&p)) }}
	}
	return table[partJSON]{
		number("NEW", 3, func(p *partJSON) int64 { return p.New }),
		number("CHANGED", 4, func(p *partJSON) int64 { return p.Changed }),
		number("MOVED", 1, func(p *partJSON) int64 { return p.Moved }),
		number("REMOVED", 2, func(p *partJSON) int64 { return p.Removed }),
		number("TYPES LOST", 5, func(p *partJSON) int64 { return p.TypesLost }),
		number("OPAQUE", 0, func(p *partJSON) int64 { return p.Opaque }),
		{name: name, text: func(p partJSON) string {
			if p.Directory == nil {
				return fmt.Sprint(*p.Owner)
			}
			return display("/" + *p.Directory)
		}, cut: tail, useful: usefulPath},
	}
}
