package diff

import (
	"bytes"
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// Attributes are the ways in which two entries differ.
type Attributes uint16

// The attributes that are compared. Times of access and of the last change of the inode are not:
// every change sets the latter.
const (
	Type Attributes = 1 << iota
	Content
	Target // of a symlink
	Rdev   // of a device
	Mode
	Owner
	Group
	Mtime // of a directory, it only says that an entry was added or removed, and is not compared
	Xattrs
	// Of an entry of a source, it is not known whether these differ: a backup would read the file.
	ContentUnread
	XattrsUnread
)

// names are in the order of the bits.
var names = [...]string{"type", "content", "target", "rdev", "mode", "owner", "group", "mtime", "xattrs", "content?", "xattrs?"}

// Names returns the names of the attributes.
func (a Attributes) Names() []string {
	var list []string
	for i, name := range names {
		if a&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// Differences returns how an entry of the newer snapshot differs from one of the older.
func Differences(old, now *backup.Entry) Attributes { return differences(old, now) }

// differences returns how an entry of the newer snapshot differs from one of the older. A source
// may have entries that are not read, which are flagged as a walker flags them.
func differences(old, now *backup.Entry) (a Attributes) {
	if old.Kind != now.Kind {
		return Type
	}
	set := func(differs bool, attribute Attributes) {
		if differs {
			a |= attribute
		}
	}
	unread := now.Flags&backup.Wanted != 0
	switch {
	case now.Kind != backup.File:
	case old.Size != now.Size, !unread && !sameContent(old, now):
		a |= Content
	case unread && now.Size > 0:
		a |= ContentUnread
	}
	set(old.Target != now.Target, Target)
	set(old.Rdev != now.Rdev, Rdev)
	set(old.Mode != now.Mode, Mode)
	set(old.UID != now.UID, Owner)
	set(old.GID != now.GID, Group)
	set(now.Kind != backup.Directory && old.Mtime != now.Mtime, Mtime)
	if now.Flags&(backup.Wanted|backup.XattrsWanted) != 0 {
		a |= XattrsUnread
	} else {
		set(!sameXattrs(old, now), Xattrs)
	}
	return a
}

// sameContent compares chunks, not bytes: a file that was given holes, or lost them, differs.
func sameContent(old, now *backup.Entry) bool {
	return old.Size == now.Size && old.Content.Depth == now.Content.Depth && slices.Equal(old.Content.Refs, now.Content.Refs)
}

// sameXattrs compares extended attributes. Those in a chunk of their own and those in the page are
// only comparable by the time at which they were set.
func sameXattrs(old, now *backup.Entry) bool {
	if (old.XattrChunk.Length == 0) != (now.XattrChunk.Length == 0) {
		return old.Ctime == now.Ctime
	}
	return old.XattrChunk == now.XattrChunk && slices.EqualFunc(old.Xattrs, now.Xattrs, func(a, b backup.Xattr) bool {
		return a.Name == b.Name && bytes.Equal(a.Value, b.Value)
	})
}
