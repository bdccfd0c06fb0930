package read

import "github.com/bctl/bctl/internal/backup"

// A link is a file by what the walker saw of it: two names of one file have
// the same, unless it changed between.
type link struct {
	device, inode uint64
	size          int64
	mtime, ctime  backup.Time
}

func linkOf(e *backup.Entry) link {
	return link{e.Device, e.Inode, e.Size, e.Mtime, e.Ctime}
}

// isRead gives e its content where the batch has read the same file by another
// name, and reports whether it did.
func (b *batch) isRead(e *backup.Entry) bool {
	if e.Nlink < 2 {
		return false
	}
	content, ok := b.links[linkOf(e)]
	if ok {
		e.Content = content
	}
	return ok
}

// noteLink remembers the content of a file that has other names, if it was
// read in the state in which the walker saw it. Files with xattrs are read by
// each name: the listing's room for those is counted as they are read.
func (b *batch) noteLink(seen link, e *backup.Entry) {
	if e.Nlink < 2 || e.Flags&backup.ChangedWhileRead != 0 || linkOf(e) != seen || len(e.Xattrs) > 0 || e.XattrChunk.Length > 0 {
		return
	}
	if b.links == nil {
		b.links = map[link]backup.Content{}
	}
	b.links[seen] = e.Content
}
