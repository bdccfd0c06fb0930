package browse

import (
	"errors"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// ErrContentMissing is the flaw of a file whose content the snapshot does not have
// (hardlink.Missing).
var ErrContentMissing = errors.New("it could not be read when the snapshot was taken, and there is no earlier copy of it; " +
	"a later snapshot may have it")

// Flaw describes how an entry other than a directory differs from what the file server had. It is
// empty if there is no difference.
func Flaw(e *backup.Entry) string {
	var flaws []string
	if e.Flags&backup.Unreadable != 0 {
		flaws = append(flaws, "it could not be read when the snapshot was taken; this is its last good copy, from an earlier snapshot")
	}
	if e.Flags&backup.ChangedWhileRead != 0 {
		flaws = append(flaws, "it changed each time it was read; its content may mix several states")
	}
	return strings.Join(append(flaws, xattrFlaw(e)...), "; ")
}

// DirectoryFlaw is Flaw for a directory. A flaw that applies to everything below it is left out if
// the directory is stale: it is below one that has that flaw. unread is added to the text of such a
// flaw.
func DirectoryFlaw(self *backup.Entry, stale bool, unread string) string {
	var flaws []string
	switch {
	case self.Flags&backup.AttributesUnknown != 0:
		flaws = append(flaws, "it could not be read when the snapshot was taken, and there is no earlier copy of it; only its name is known")
	case self.Flags&backup.Unreadable != 0 && !stale:
		flaws = append(flaws, "it could not be read when the snapshot was taken; it and everything below it is from an earlier snapshot, or empty if there is none"+unread)
	}
	if self.Flags&backup.ChangedWhileRead != 0 {
		flaws = append(flaws, "it was renamed, replaced or removed during the backup; files that had not been read by then are missing")
	}
	return strings.Join(append(flaws, xattrFlaw(self)...), "; ")
}

func xattrFlaw(e *backup.Entry) []string {
	if AllXattrs(e) {
		return nil
	}
	return []string{"its extended attributes could not be read when the snapshot was taken; they are those of an earlier snapshot, or missing"}
}

// AllXattrs reports whether an entry was backed up with all its extended attributes.
func AllXattrs(e *backup.Entry) bool {
	return e.Flags&(backup.XattrsUnreadable|backup.XattrsWanted) == 0
}
