package mount

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// keepFor is how long the kernel may keep what a snapshot has, which never changes.
	keepFor = time.Hour
	// keepAbove is the same for what is above snapshots.
	keepAbove = time.Second
)

const (
	blockBytes = 512
	pageBytes  = 4096
)

// types are the bits of st_mode for each kind.
var types = map[backup.Kind]uint32{
	backup.File: syscall.S_IFREG, backup.Directory: syscall.S_IFDIR, backup.Symlink: syscall.S_IFLNK, backup.FIFO: syscall.S_IFIFO,
	backup.Socket: syscall.S_IFSOCK, backup.CharDev: syscall.S_IFCHR, backup.BlockDev: syscall.S_IFBLK,
}

// fill sets the attributes of an entry.
func (v *view) fill(out *fuse.Attr, e *backup.Entry, inode uint64) {
	*out = fuse.Attr{
		Ino: inode, Size: uint64(e.Size), Blocks: allocated(e), Mode: types[e.Kind] | e.Mode, Nlink: max(e.Nlink, 1), Rdev: rdev(e),
		Owner: fuse.Owner{Uid: e.UID, Gid: e.GID}, Blksize: pageBytes,
		Mtime: uint64(e.Mtime.Sec), Mtimensec: e.Mtime.Nsec, Ctime: uint64(e.Ctime.Sec), Ctimensec: e.Ctime.Nsec,
		Atime: uint64(e.Mtime.Sec), Atimensec: e.Mtime.Nsec,
	}
	if e.Kind == backup.Symlink {
		out.Size = uint64(len(e.Target))
	}
	if e.Kind == backup.Directory && e.Flags&backup.AttributesUnknown != 0 {
		out.Mode |= 0o700
	}
}

// rdev returns the number of a device as the protocol has it.
func rdev(e *backup.Entry) uint32 {
	major, minor := e.Major(), e.Minor()
	return uint32(minor&0xff | major<<8 | minor&^0xff<<12)
}

// allocated returns the blocks of a file's data. Of a large file, the holes in its lists of chunks
// are not known before they are read: it then shows one block less than it may have, so that
// programs that look for holes only where blocks are missing do look.
func allocated(e *backup.Entry) uint64 {
	if e.Kind != backup.File {
		return 0
	}
	var data int64
	for i := range e.Content.Refs {
		data += e.Content.Refs[i].Span
		if e.Content.Depth == 0 {
			data += e.Content.Refs[i].Length - e.Content.Refs[i].Span
		}
	}
	blocks := uint64(max(data, 0)+blockBytes-1) / blockBytes
	if e.Content.Depth > 0 {
		blocks -= min(blocks, 2) // one less, also if the last block is not full
	}
	return blocks
}

// inode returns the inode number of an entry. Names that are one file have the same (I18).
func (v *view) inode(path string, volume uint64, e *backup.Entry) uint64 {
	b := append(make([]byte, 0, 64+len(path)), v.id[:]...)
	if hardlink.HasOthers(e) {
		v.mu.Lock()
		key := v.keyer.Keys(volume, e)[0]
		v.mu.Unlock()
		b = append(append(b, 1), key[:]...)
	} else {
		b = append(append(b, 0), path...)
	}
	return number(b)
}

// number returns a number of 63 bits that identifies bytes.
func number(b []byte) uint64 {
	sum := blake3.Sum256(b)
	return max(binary.LittleEndian.Uint64(sum[:])>>1, fuse.FUSE_ROOT_ID+1)
}

// volumeOf returns the file system of a directory below one on the file system above.
func volumeOf(path string, self *backup.Entry, above uint64) uint64 {
	if self.Flags&(backup.Boundary|backup.AttributesUnknown) != 0 {
		return number([]byte(path))
	}
	return above
}

// xattrs returns the extended attributes of an entry.
func (f *fileSystem) xattrs(ctx context.Context, e *backup.Entry) ([]backup.Xattr, error) {
	ref := e.XattrChunk
	if ref.Length == 0 {
		return e.Xattrs, nil
	}
	if f.chunks == nil {
		return nil, errNoIdentity
	}
	c := f.chunks.get([]backup.Ref{ref})[0]
	data, err := c.wait(ctx)
	if err != nil {
		return nil, err
	}
	return listing.DecodeXattrs(bytes.Clone(data))
}

// compact returns a copy of an entry that keeps nothing of its page in memory.
func compact(e *backup.Entry) *backup.Entry {
	c := *e
	c.Name = ""
	c.Target = strings.Clone(e.Target)
	c.Content.Refs = slices.Clone(e.Content.Refs)
	c.Xattrs = nil
	for _, x := range e.Xattrs {
		c.Xattrs = append(c.Xattrs, backup.Xattr{Name: strings.Clone(x.Name), Value: bytes.Clone(x.Value)})
	}
	return &c
}

// refsOf returns the chunks of a file's content.
func refsOf(e *backup.Entry) fetch.Refs { return fetch.NewRefs(e.Size, e.Content) }
