package read

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A link is the identity of an open file. Two names of one file have the same link, unless the file
// changed in between.
type link struct {
	device, inode uint64
	size          int64
	mtime, ctime  backup.Time
}

func linkOf(e *backup.Entry) link {
	return link{e.Device, e.Inode, e.Size, e.Mtime, e.Ctime}
}

// A linkedFile is what was read of a file by one of its names.
type linkedFile struct {
	content backup.Content
	xattrs  []backup.Xattr
	ref     backup.Ref // of the extended attributes, if they are in a chunk
	unshown bool       // the file system shows no extended attributes
	class   backup.Class
}

// takeLinked gives e what the batch has read of the same open file f by another name, and reports
// whether it has. now is the state of the file. Extended attributes that are not shown are not
// taken: this name may have some in the last snapshot. last is as for readFile.
func (b *batch) takeLinked(ctx context.Context, at *pageDir, p *page, e, now *backup.Entry, f source.File, last bool) (bool, error) {
	if now.Nlink < 2 {
		return false, nil
	}
	known, ok := b.links[linkOf(now)]
	if !ok {
		return false, nil
	}
	b.describe(p, e, now)
	e.Content, e.Flags = known.content, e.Flags.WithClass(known.class)
	if known.unshown {
		return true, b.readFileXattrs(ctx, at, p, e, f, last)
	}
	e.Flags &^= backup.XattrsUnreadable
	return true, b.placeXattrs(ctx, e, known.xattrs, known.ref)
}

// noteLink remembers a file that has other names, unless a part of it could not be read, or
// changed.
func (b *batch) noteLink(e *backup.Entry) {
	if e.Nlink < 2 || e.Flags&backup.Flawed != 0 {
		return
	}
	if b.links == nil {
		b.links = map[link]linkedFile{}
	}
	b.links[linkOf(e)] = linkedFile{e.Content, e.Xattrs, e.XattrChunk, e.Flags&backup.XattrsUnshown != 0, e.Flags.Class()}
}
