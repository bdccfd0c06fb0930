package listing

import (
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A Comparison is what became of the entries of some pages.
type Comparison struct {
	New, Changed, Unchanged int64 // entries that are not directories
}

// TakeOver compares a directory's entries with those that an earlier snapshot
// has of it, both sorted. It gives unchanged entries the content and the xattrs
// that they had, and marks the rest Wanted (regular files: content and xattrs)
// or XattrsWanted (other kinds, and files of which only the xattrs could not
// be read). An entry that is marked keeps the xattrs that it had until they are
// read: they are the last good copy where they cannot be read now.
//
// Where ctimes are not compared, the content that an entry takes over may be of
// an earlier ctime. The entry has that ctime then: it never says more of its
// content than is known.
//
// An entry is unchanged when kind, size and what by names (mtime, ctime, inode)
// are equal, and the old entry has no Provisional flag and is not Wanted itself.
// Entries that are racy in this snapshot must be flagged before. With reread no entry
// is unchanged.
//
// What each choice of by does not see: without ctime, a change of content that
// puts the mtime back, or of extended attributes and ACLs; without mtime,
// nothing that an honest file server does; without inode, that a file was
// replaced by another of the same size and times, which ctime shows where a
// rename sets it.
func TakeOver(by backup.Compare, reread bool, entries, old []backup.Entry) (c Comparison) {
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
		case known && !reread && sameState(by, e, &old[j]) && old[j].Flags&contentUnknown == 0:
			e.Content, e.Xattrs, e.XattrChunk = old[j].Content, old[j].Xattrs, old[j].XattrChunk
			if old[j].Flags&xattrsUnknown != 0 {
				e.Flags |= backup.XattrsWanted
			} else {
				e.Ctime = old[j].Ctime // of the state whose content it is, where ctimes are not compared
			}
			c.Unchanged++
			continue
		case known:
			c.Changed++
			if e.Kind == old[j].Kind { // for where they cannot be read now
				e.Xattrs, e.XattrChunk = old[j].Xattrs, old[j].XattrChunk
			}
		default:
			c.New++
		}
		if e.Kind != backup.File {
			e.Flags |= backup.XattrsWanted
			continue
		}
		e.Flags |= backup.Wanted
	}
	return c
}

// TakeContent gives files that are Wanted the content and the xattrs that they
// have in left, where they are unchanged since; both are sorted. left is what a
// snapshot that was not committed has found: it says nothing of what is there.
func TakeContent(by backup.Compare, entries, left []backup.Entry) {
	j := 0
	for i := range entries {
		e := &entries[i]
		if e.Flags&backup.Wanted == 0 {
			continue
		}
		for j < len(left) && strings.Compare(left[j].Name, e.Name) < 0 {
			j++
		}
		if j < len(left) && left[j].Name == e.Name && Unchanged(by, e, &left[j]) {
			e.Content, e.Xattrs, e.XattrChunk = left[j].Content, left[j].Xattrs, left[j].XattrChunk
			e.Flags &^= backup.Wanted
		}
	}
}

// Unchanged reports whether the old entry's content and xattrs are those of e,
// as far as by tells.
func Unchanged(by backup.Compare, e, old *backup.Entry) bool {
	return sameState(by, e, old) && old.Flags&(contentUnknown|xattrsUnknown) == 0
}

// The flags of an old entry whose xattrs, and whose content, are not those of
// its state, or not to be relied on. That no stored entry is wanted is not
// relied on either: such an entry has no content, and is not an empty file.
const (
	xattrsUnknown  = backup.XattrsUnreadable | backup.XattrsWanted
	contentUnknown = backup.Provisional&^backup.XattrsUnreadable | backup.Wanted
)

func sameState(by backup.Compare, e, old *backup.Entry) bool {
	by = by.OrAll()
	return e.Kind == old.Kind && e.Size == old.Size &&
		(by&backup.CompareMtime == 0 || e.Mtime == old.Mtime) &&
		(by&backup.CompareCtime == 0 || e.Ctime == old.Ctime) &&
		(by&backup.CompareInode == 0 || e.Inode == old.Inode)
}

// IsRacy reports whether a change of e after from may not show in what is compared. It
// goes by ctime where that is, for whatever changes a file sets it to the
// present; an mtime can be set to the future for good, and is racy until then.
// A time without a fraction may be of a file system that keeps whole seconds, or
// every other one.
func IsRacy(by backup.Compare, e *backup.Entry, from backup.Time) bool {
	at := e.Mtime
	if by.OrAll()&backup.CompareCtime != 0 {
		at = e.Ctime
	}
	if at.Nsec == 0 {
		at.Sec += coarseSeconds
	}
	return at.Compare(from) >= 0
}

// coarseSeconds is the coarsest grain that file systems have: FAT's.
const coarseSeconds = 2

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
