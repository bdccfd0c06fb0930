package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
)

// opBackup is the op of the Problems for entries that the snapshot does not hold as the file server
// had them.
const opBackup = "backup"

// missing are the flags of files whose content the snapshot does not have. A stored listing never
// has Wanted, unless another program wrote it.
const missing = backup.ContentMissing | backup.Wanted

var errContentMissing = errors.New("it could not be read when the snapshot was taken, and there is no earlier copy of it; " +
	"a later snapshot may have it")

// flawOf describes how a restored entry other than a directory differs from what the file server
// had. It is empty if there is no difference.
func flawOf(e *backup.Entry) string {
	var flaws []string
	if e.Flags&backup.Unreadable != 0 {
		flaws = append(flaws, "it could not be read when the snapshot was taken; this is its last good copy, from an earlier snapshot")
	}
	if e.Flags&backup.ChangedWhileRead != 0 {
		flaws = append(flaws, "it changed each time it was read; its content may mix several states")
	}
	return strings.Join(append(flaws, xattrFlaw(e)...), "; ")
}

func xattrFlaw(e *backup.Entry) []string {
	if allXattrs(e) {
		return nil
	}
	return []string{"its extended attributes could not be read when the snapshot was taken; they are those of an earlier snapshot, or missing"}
}

// flawOf is flawOf for a directory. A flaw that applies to everything below it is reported only for
// the top directory.
func (d *directory) flawOf() string {
	var flaws []string
	switch {
	case d.self.Flags&backup.AttributesUnknown != 0:
		flaws = append(flaws, "it could not be read when the snapshot was taken, and there is no earlier copy of it; only its name is known")
	case d.self.Flags&backup.Unreadable != 0 && !d.stale:
		text := "it could not be read when the snapshot was taken; it and everything below it is from an earlier snapshot, or empty if there is none"
		if d.r.o.Delete {
			text += "; nothing in it is deleted"
		}
		flaws = append(flaws, text)
	}
	if d.self.Flags&backup.ChangedWhileRead != 0 {
		flaws = append(flaws, "it was renamed, replaced or removed during the backup; files that had not been read by then are missing")
	}
	return strings.Join(append(flaws, xattrFlaw(&d.self)...), "; ")
}

// flaw reports a flaw, unless text is empty.
func (r *restorer) flaw(path, text string) {
	if text != "" {
		r.flawed.Add(1)
		r.problem(path, opBackup, errors.New(text))
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
	case errors.Is(err, backup.ErrCorrupt):
		r.problem("", OpListing, fmt.Errorf("it is not known whether this could be read when the snapshot was taken: %w", err))
		return true, nil
	case err != nil || !stale:
		return false, err
	}
	r.flaw("", fmt.Sprintf("the directory %q could not be read when the snapshot was taken; this is from an earlier snapshot", "/"+dir))
	return true, nil
}
