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
// A file is unchanged when size, mtime, ctime and inode are equal and the old
// entry has no flag: neither racy nor a copy that is not the file's state.
// Entries that are racy in this snapshot must be flagged before.
func TakeOver(entries, old []backup.Entry) (c Comparison) {
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
		case known && Unchanged(e, &old[j]):
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

// Unchanged reports whether the old entry's content and xattrs are those of e.
func Unchanged(e, old *backup.Entry) bool {
	return e.Kind == old.Kind && e.Size == old.Size && e.Mtime == old.Mtime &&
		e.Ctime == old.Ctime && e.Inode == old.Inode && old.Flags == 0
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
