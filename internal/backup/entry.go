package backup

import "time"

// A Kind is the type of an entry.
type Kind uint8

// The kinds of entry. The numbers are part of the listing format.
const (
	File      Kind = 1
	Directory Kind = 2
	Symlink   Kind = 3
	FIFO      Kind = 4
	Socket    Kind = 5
	CharDev   Kind = 6
	BlockDev  Kind = 7
)

// KindOfMode returns the kind that the type bits of a POSIX st_mode name; 0 for
// a type that is not backed up.
func KindOfMode(mode uint32) Kind {
	switch mode & 0o170000 { // S_IFMT
	case 0o100000: // S_IFREG
		return File
	case 0o040000: // S_IFDIR
		return Directory
	case 0o120000: // S_IFLNK
		return Symlink
	case 0o010000: // S_IFIFO
		return FIFO
	case 0o140000: // S_IFSOCK
		return Socket
	case 0o020000: // S_IFCHR
		return CharDev
	case 0o060000: // S_IFBLK
		return BlockDev
	}
	return 0
}

// String returns the kind's name in lower case, as the command line prints it.
func (k Kind) String() string {
	switch k {
	case File:
		return "file"
	case Directory:
		return "directory"
	case Symlink:
		return "symlink"
	case FIFO:
		return "fifo"
	case Socket:
		return "socket"
	case CharDev:
		return "chardev"
	case BlockDev:
		return "blockdev"
	}
	return "unknown"
}

// Time is a file system's time stamp: it reaches further than time.Time's
// nanoseconds since 1970 do. The zero Time means that there is none.
type Time struct {
	Sec  int64  // since 1970-01-01 00:00:00 UTC
	Nsec uint32 // 0 to 999,999,999
}

// TimeOf returns t as a Time.
func TimeOf(t time.Time) Time { return Time{t.Unix(), uint32(t.Nanosecond())} }

// Time returns t as a time.Time in UTC.
func (t Time) Time() time.Time { return time.Unix(t.Sec, int64(t.Nsec)).UTC() }

// IsZero reports whether there is no time stamp.
func (t Time) IsZero() bool { return t == Time{} }

// Compare returns -1, 0 or 1 as t is before, at or after u.
func (t Time) Compare(u Time) int {
	switch {
	case t.Sec < u.Sec || t.Sec == u.Sec && t.Nsec < u.Nsec:
		return -1
	case t == u:
		return 0
	}
	return 1
}

// Flags say what is special about an entry in one snapshot. The bits are part
// of the listing format.
type Flags uint16

const (
	// Racy: a change that follows the snapshot may not show in the times that
	// are compared, because they are not older than the snapshot's start by
	// the clock's grain. The next snapshot reads the entry again.
	Racy Flags = 1 << iota
	// Unreadable: the entry could not be read. A file has the content, size and
	// times of its last good copy, or no content where there is none. A
	// directory has the entries of the last snapshot that could list it, and so
	// has everything below it.
	Unreadable
	// ChangedWhileRead: the file changed under the reader each time it was
	// read. Its content may mix several states. On the Self of a directory: it was
	// renamed, replaced or removed before all files in it could be read; some that
	// it had are missing.
	ChangedWhileRead
	// Wanted: the content is still to be read. Only a page on its way from a
	// walker to a reader has this flag; no stored listing does.
	Wanted
	// XattrsWanted: the extended attributes are still to be read, as Wanted.
	XattrsWanted
	// XattrsUnreadable: the extended attributes could not be read. They are
	// those of the last good copy, or none where there is no such copy.
	XattrsUnreadable
	// Boundary: the entry is on another file system, or another mount, than
	// the directory that it is in. On the Self of a directory it means that a
	// file system begins there. It is never set on the root of a shard.
	Boundary
	// AttributesUnknown: nothing is known of the entry but that it exists. One
	// that may be a file, as far as is known, has the kind File and ContentMissing.
	// A directory that is not Unreadable as well had vanished before it could be
	// looked at: nothing was there.
	AttributesUnknown
	// ContentMissing: no snapshot has ever read the content of this file, which
	// is Unreadable as well. Size is what the file system says.
	ContentMissing
)

// Provisional are the flags of an entry that the next snapshot must look at
// again, whatever its attributes are then.
const Provisional = Racy | Unreadable | ChangedWhileRead | XattrsUnreadable | AttributesUnknown | ContentMissing

// Flawed are the flags of an entry that is not what the file server had when
// the snapshot was taken.
const Flawed = Provisional &^ Racy

// HadVanished reports whether e, the Self of a directory, stands for one that was
// gone before it could be looked at: its parent lists it all the same.
func (e *Entry) HadVanished() bool {
	return e.Kind == Directory && e.Flags&(AttributesUnknown|Unreadable) == AttributesUnknown
}

// An Xattr is one extended attribute; POSIX ACLs are among them, as
// system.posix_acl_access and system.posix_acl_default.
type Xattr struct {
	Name  string
	Value []byte
}

// An Entry is one name in a directory, or (as a page's Self, with an empty
// Name) the directory itself. A subdirectory's entry in its parent has Name,
// Kind and Inode only: the rest is in the subdirectory's own first page.
type Entry struct {
	Name   string // any bytes but '/' and NUL
	Kind   Kind
	Flags  Flags
	Mode   uint32 // permission, set-id and sticky bits: 07777
	UID    uint32
	GID    uint32
	Nlink  uint32
	Size   int64 // bytes, of a File; 0 for others
	Mtime  Time
	Ctime  Time
	Btime  Time   // zero where the file system has none
	Inode  uint64 //
	Device uint64 // st_dev, as the machine that walks sees it now; no listing stores it
	Rdev   uint64 // of CharDev and BlockDev
	Target string // of a Symlink

	// The extended attributes are inline, sorted by name, or, where a page has
	// no room for them, in a chunk of their own (listing.DecodeXattrs); an
	// XattrChunk of Length 0 is none.
	Xattrs     []Xattr
	XattrChunk Ref

	Content Content // of a File
}

// Content says where the bytes of a file are. A file of Size 0, and one that
// is a single hole, has no Refs.
type Content struct {
	// Depth 0: the Refs are the file's data, in order. Depth n > 0: each Ref
	// names a list chunk that holds further Refs of Depth n-1.
	Depth int
	Refs  []Ref
}

// A Ref is one chunk in a Content.
type Ref struct {
	Chunk  ChunkID
	Hole   int64 // bytes of hole between the end of the Ref before and this one
	Length int64 // bytes of the chunk's plaintext
	Span   int64 // bytes of the file, holes inside included, that this stands for: Length at depth 0
}

// A PageKey tells the pages of one directory apart: 0 for the first, else a
// hash of the name that the page begins with. It stays while that name does.
type PageKey int64

// A Page is a run of one directory's listing.
type Page struct {
	Path    string  // of the directory within the shard: "" is the root, no leading or trailing slash
	Key     PageKey //
	Next    PageKey // of the directory's page that follows; 0: this is the last
	Self    *Entry  // the directory itself: in page 0, and only there
	Entries []Entry // sorted by name, bytewise
}
