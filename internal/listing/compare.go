package listing

import (
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A Comparison is what became of the entries of some pages.
type Comparison struct {
	New, Changed, Unchanged int64 // entries that are not directories
	WantedFiles             int   // entries whose content must be read
	WantedBytes             int64
}

// TakeOver compares a directory's entries with those that it had in the
// snapshot before, both sorted. It gives to unchanged entries the content and
// the xattrs that they had, and marks the rest Wanted (regular files: content
// and xattrs) or XattrsWanted (other kinds).
//
// A file is unchanged when kind, size and what by names (mtime, ctime, inode) are
// equal and the old entry has no flag: neither racy nor a copy that is not the
// file's state. Entries that are racy in this snapshot must be flagged before.
//
// What each choice of by does not see: without ctime, a change of content that puts
// the mtime back, or of extended attributes and ACLs; without mtime, nothing that
// an honest file server does; without inode, that a file was replaced by another of the same size
// and times, which ctime shows where a rename sets it.
func TakeOver(by backup.Compare, entries, old []backup.Entry) (c Comparison) {
	j := 0
	for i := range entries {
		e := &entries[i]
		if e.Kind == backup.Directory {
			continue // its own first page has the rest
		}
		for j < len(old) && strings.Compare(old[j].Name, e.Name) < 0 {
			j++
		}
		known := j < len(old) && old[j].Name == e.Name && old[j].Kind != backup.Directory
		switch {
		case known && Unchanged(by, e, &old[j]):
			e.Content, e.Xattrs, e.XattrChunk = old[j].Content, old[j].Xattrs, old[j].XattrChunk
			c.Unchanged++
			continue
		case known:
			c.Changed++
		default:
			c.New++
		}
		if e.Kind != backup.File {
			e.Flags |= backup.XattrsWanted
			continue
		}
		e.Flags |= backup.Wanted
		c.WantedFiles++
		c.WantedBytes += e.Size
	}
	return c
}

// Unchanged reports whether the old entry's content and xattrs are those of e,
// as far as by tells.
func Unchanged(by backup.Compare, e, old *backup.Entry) bool {
	by = by.OrAll()
	return e.Kind == old.Kind && e.Size == old.Size && old.Flags == 0 &&
		(by&backup.CompareMtime == 0 || e.Mtime == old.Mtime) &&
		(by&backup.CompareCtime == 0 || e.Ctime == old.Ctime) &&
		(by&backup.CompareInode == 0 || e.Inode == old.Inode)
}

// IsRacy reports whether a change of e after from may not show in what is compared. It
// goes by ctime where that is, for whatever changes a file sets it to the
// present; an mtime can be set to the future for good, and is racy until then.
func IsRacy(by backup.Compare, e *backup.Entry, from backup.Time) bool {
	if by.OrAll()&backup.CompareCtime != 0 {
		return e.Ctime.Compare(from) >= 0
	}
	return e.Mtime.Compare(from) >= 0
}

// RemovedDirectories returns the names of directories among the old entries
// that are not directories among the entries any more; both are sorted.
func RemovedDirectories(entries, old []backup.Entry) (names []string) {
	i := 0
	for j := range old {
		if old[j].Kind != backup.Directory {
			continue
		}
		for i < len(entries) && strings.Compare(entries[i].Name, old[j].Name) < 0 {
			i++
		}
		if i == len(entries) || entries[i].Name != old[j].Name || entries[i].Kind != backup.Directory {
			names = append(names, old[j].Name)
		}
	}
	return names
}
