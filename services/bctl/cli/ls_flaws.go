package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
)

// flaws are the differences between a list of a snapshot and the filer's state. They are printed
// after the list, unless each line shows its own.
type flaws struct {
	listed  int
	flawed  []string // entries that could not be read: the first few
	lacking []string // directories with pages missing from the index, or damaged there: the first few
}

// lists records that an entry is listed. marked means that its line shows its flags.
func (f *flaws) lists(path string, e *backup.Entry, marked bool) {
	f.listed++
	if !marked && e.Flags&backup.Flawed != 0 && !e.HadVanished() {
		f.flawed = addHint(f.flawed, path)
	}
}

// addIncomplete records a directory whose pages are not all in the index.
func (f *flaws) addIncomplete(path string) { f.lacking = addHint(f.lacking, path) }

func addHint(list []string, path string) []string {
	if path == "" {
		path = "."
	}
	path = display(path)
	if len(list) > maxHints || len(list) > 0 && list[len(list)-1] == path {
		return list
	}
	return append(list, path)
}

// conclude reports the flaws of the list of the tree at path. self is the entry at path, if known.
// It returns an error if the list is not complete.
func (f *flaws) conclude(ctx context.Context, a *app, i index.Catalog, id backup.SnapshotID, path string, self *backup.Entry) error {
	if self.Kind == backup.Directory && f.listed == 0 && self.Flags&(backup.Unreadable|backup.AttributesUnknown) != 0 {
		return absent("directory %q could not be read when it was backed up, so its contents are not known", path)
	}
	dir := path
	if self.Kind != backup.Directory {
		dir, _ = backup.Split(path)
	}
	above, stale, err := browse.Unread(ctx, i, id, dir)
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		f.addIncomplete(above)
	case err != nil:
		return err
	case stale:
		a.note("directory %q could not be read during the backup; its entries are those of an earlier snapshot", "/"+above)
	}
	if len(f.flawed) > 0 {
		a.note("differs from the file server (bctl ls -l shows the reason): %s", some(f.flawed, ", "))
	}
	if len(f.lacking) > 0 {
		return fmt.Errorf("the list is incomplete: pages of %s are missing from the index or damaged; try another snapshot: %w", some(f.lacking, ", "), backup.ErrCorrupt)
	}
	return nil
}

// some returns the first elements of a list, and "…" or the like if there are more.
func some(list []string, between string) string {
	text := strings.Join(list[:min(len(list), maxHints)], between)
	if len(list) > maxHints {
		text += between + "…"
	}
	return text
}
