package listing

import (
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A Comparison counts the results of comparing the entries of some pages.
type Comparison struct {
	New, Changed, Unchanged int64 // entries that are not directories
}

// TakeOver compares a directory's entries with those that an earlier snapshot has of it; both are
// sorted. It gives unchanged entries their old content and xattrs. It marks the others Wanted
// (regular files: content and xattrs) or XattrsWanted (other kinds, and files whose xattrs alone
// could not be read). A marked entry keeps its old xattrs until they are read: they are the last
// good copy if they cannot be read now.
//
// If ctimes are not compared, the content that an entry takes over may belong to an earlier ctime.
// The entry then gets that ctime, so that it never claims more about its content than is known.
//
// An entry is unchanged if kind, size and the attributes in by (mtime, ctime, inode) are equal, and
// the old entry has no Provisional flag and is not Wanted itself. The caller must flag entries that
// are racy in this snapshot before the call. If reread is set, no entry is unchanged.
//
// Changes may be hidden if by omits an attribute. Without ctime: a change of content that restores
// the mtime, and a change of extended attributes or ACLs. Without inode: the replacement of a file
// by another with the same size and times, unless ctime is compared and renames set it. Without
// mtime: none if the filer sets ctime correctly.
//
// shown reports whether the file system shows xattrs. If it did not when they were read
// (XattrsUnshown), and does now, they are read.
//
// A Wanted entry is told what the earlier snapshot has in its place, by the same name: see also
// Rename. An unchanged file keeps its class.
//
// observe, if not nil, is called with each entry that is new or changed.
func TakeOver(by backup.Compare, reread bool, entries, old []backup.Entry, shown func() bool, observe func(e *backup.Entry, isNew bool)) (c Comparison) {
	j := 0
	for i := range entries {
		e := &entries[i]
		if e.Kind == backup.Directory {
			continue // its own first page has the other attributes
		}
		for j < len(old) && strings.Compare(old[j].Name, e.Name) < 0 {
			j++
		}
		known := j < len(old) && old[j].Name == e.Name && old[j].Kind != backup.Directory
		switch {
		case known && !reread && sameState(by, e, &old[j]) && old[j].Flags&contentUnknown == 0:
			e.Content, e.Xattrs, e.XattrChunk = old[j].Content, old[j].Xattrs, old[j].XattrChunk
			e.Ctime = old[j].Ctime // that of the content, if ctimes are not compared
			e.Flags = e.Flags.WithClass(old[j].Flags.Class())
			if old[j].Flags&xattrsUnknown != 0 || old[j].Flags&backup.XattrsUnshown != 0 && shown() {
				e.Flags |= backup.XattrsWanted
			} else {
				e.Flags |= old[j].Flags & backup.XattrsUnshown
			}
			c.Unchanged++
			continue
		case known:
			c.Changed++
			if e.Kind == old[j].Kind { // kept in case they cannot be read now
				e.Xattrs, e.XattrChunk = old[j].Xattrs, old[j].XattrChunk
			}
		default:
			c.New++
		}
		if observe != nil {
			observe(e, !known)
		}
		if e.Kind != backup.File {
			e.Flags |= backup.XattrsWanted
			continue
		}
		e.Flags |= backup.Wanted
		if known && old[j].Kind == backup.File {
			e.Flags = e.Flags.WithEarlier(backup.SameName, old[j].Flags.Class())
		} else {
			e.Flags = e.Flags.WithEarlier(backup.NoneEarlier, backup.Unclassified)
		}
	}
	return c
}

// TakeContent gives Wanted files the content and the xattrs that they have in left, if they are
// unchanged since; both are sorted. left comes from an uncommitted snapshot, and does not show
// which entries exist now. Nobody reads these files again, so TakeContent judges them.
func TakeContent(by backup.Compare, entries, left []backup.Entry, counts *backup.Counts) {
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
			earlier, was := e.Flags.Earlier()
			now := left[j].Flags.Class()
			counts.Judge(earlier, was, now)
			e.Flags = (e.Flags&^backup.Wanted | left[j].Flags&backup.XattrsUnshown).WithClass(now)
		}
	}
}

// Unchanged reports whether the old entry's content and xattrs are also those of e, judged by the
// attributes in by.
func Unchanged(by backup.Compare, e, old *backup.Entry) bool {
	return sameState(by, e, old) && old.Flags&(contentUnknown|xattrsUnknown) == 0
}

// The flags of an old entry whose xattrs, or whose content, do not belong to its state or cannot be
// relied on. Wanted is included although no stored entry should have it: such an entry has no
// content, and must not be taken for an empty file.
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

// IsRacy reports whether a change of e after from may not show in the compared attributes. It uses
// ctime if that is compared, because every change of a file sets its ctime to the present. An mtime
// can be set to the future permanently, and is racy until then. A time without a fraction may come
// from a file system with a granularity of one or two seconds.
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

// coarseSeconds is the coarsest granularity of file systems, that of FAT.
const coarseSeconds = 2

// RemovedDirectories returns the names of directories in old that are no longer directories in
// entries; both are sorted.
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
