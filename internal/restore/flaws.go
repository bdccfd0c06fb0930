package restore

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
)

// OpBackup is the op of the Problems for entries that the snapshot does not hold as the file server
// had them.
const OpBackup = "backup"

// flawOf describes how a directory differs from what the file server had.
func (d *directory) flawOf() string {
	unread := ""
	if d.r.o.Delete {
		unread = "; nothing in it is deleted"
	}
	return browse.DirectoryFlaw(&d.self, d.stale, unread)
}

// flaw reports a flaw, unless text is empty.
func (r *restorer) flaw(path, text string) {
	if text != "" {
		r.flawed.Add(1)
		r.problem(path, OpBackup, errors.New(text))
	}
}

// flawAbove reports whether what is restored is in a directory that could not be read, and reports
// that directory as a flaw.
func (r *restorer) flawAbove(ctx context.Context) (stale bool, err error) {
	if r.o.Path == "" {
		return false, nil
	}
	parent, _ := backup.Split(r.o.Path)
	dir, stale, err := browse.Unread(ctx, r.cat, r.o.Snapshot, parent)
	switch {
	case err != nil && !errors.Is(err, backup.ErrCorrupt) || err == nil && !stale:
		return false, err
	case !r.reportsPages():
		return true, nil
	case err != nil:
		r.problem("", OpListing, fmt.Errorf("it is not known whether this could be read when the snapshot was taken: %w", err))
		return true, nil
	}
	r.flaw("", fmt.Sprintf("the directory %q could not be read when the snapshot was taken; this is from an earlier snapshot", "/"+dir))
	return true, nil
}
