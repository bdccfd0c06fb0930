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

// flaws are what a list of a snapshot does not have, or not as the file server
// had it. A list says so at its end, unless each line says so itself.
type flaws struct {
	listed  int
	flawed  []string // entries that could not be read: the first few
	lacking []string // directories whose pages are not all in the index, and whole: the first few
}

// lists notes that an entry is listed; marked says that its line shows its flags.
func (f *flaws) lists(path string, e *backup.Entry, marked bool) {
	f.listed++
	if !marked && e.Flags&backup.Flawed != 0 && !e.HadVanished() {
		f.flawed = addHint(f.flawed, path)
	}
}

// lacks notes a directory whose pages are not all in the index.
func (f *flaws) lacks(path string) { f.lacking = addHint(f.lacking, path) }

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

// conclude says what is not as the file server had it in the list of what is at
// path, of which self is known. It is an error if the list is not complete.
func (f *flaws) conclude(ctx context.Context, a *app, i index.Catalog, id backup.SnapshotID, path string, self *backup.Entry) error {
	if self.Kind == backup.Directory && f.listed == 0 && self.Flags&(backup.Unreadable|backup.AttributesUnknown) != 0 {
		return absent("directory %q could not be read when it was backed up, and nothing is known of what was in it", path)
	}
	dir := path
	if self.Kind != backup.Directory {
		dir, _ = backup.Split(path)
	}
	above, stale, err := browse.Unread(ctx, i, id, dir)
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		f.lacks(above)
	case err != nil:
		return err
	case stale:
		a.note("directory %q could not be read when it was backed up; this is as an earlier snapshot had it", "/"+above)
	}
	if len(f.flawed) > 0 {
		a.note("not as the file server had it (bctl ls -l says why): %s", some(f.flawed, ", "))
	}
	if len(f.lacking) > 0 {
		return fmt.Errorf("the list is not complete: the index lacks pages of %s, or has damaged ones; another snapshot may have them: %w", some(f.lacking, ", "), backup.ErrCorrupt)
	}
	return nil
}

// some is the first of a list, and whether there is more.
func some(list []string, between string) string {
	text := strings.Join(list[:min(len(list), maxHints)], between)
	if len(list) > maxHints {
		text += between + "…"
	}
	return text
}
