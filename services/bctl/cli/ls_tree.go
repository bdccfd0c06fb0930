package cli

import (
	"github.com/bctl/bctl/internal/backup"
)

// A treeLister lists everything below a directory, in the order of a walk. A directory that its
// parent lists but that has no pages is listed by its name, after the rest of its parent, and is
// reported at the end. It implements browse.Visitor.
type treeLister struct {
	*lsCommand
	top string
}

func (l *treeLister) Page(*backup.PageVersion) {}

func (l *treeLister) Directory(path string, self *backup.Entry, _ bool) error {
	if path == l.top {
		return nil
	}
	if self == nil { // its first page is missing or damaged
		_, name := backup.Split(path)
		self = nameOnly(&backup.Entry{Name: name, Kind: backup.Directory})
	}
	return l.entry(path, path, self)
}

func (l *treeLister) Entry(path string, e *backup.Entry) error { return l.entry(path, path, e) }

func (l *treeLister) Absent(path string, e *backup.Entry) error {
	return l.entry(path, path, nameOnly(e))
}

func (l *treeLister) Incomplete(path string, _ error) { l.flaws.addIncomplete(path) }

// nameOnly returns the entry of a directory of which only the name is known.
func nameOnly(e *backup.Entry) *backup.Entry {
	return &backup.Entry{Name: e.Name, Kind: e.Kind, Inode: e.Inode, Flags: backup.Unreadable | backup.AttributesUnknown}
}
