package backup

import (
	"cmp"
	"time"
)

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

// KindOfMode returns the kind that the type bits of a POSIX st_mode denote, or 0 for a type that is
// not backed up.
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
	if k < File || k > BlockDev {
		return "unknown"
	}
	return kindNames[k]
}

var kindNames = [...]string{
	File: "file", Directory: "directory", Symlink: "symlink", FIFO: "fifo", Socket: "socket", CharDev: "chardev", BlockDev: "blockdev",
}

// Time is a file system's timestamp. Its range exceeds that of time.Time's nanoseconds since 1970.
// The zero Time means that there is no timestamp.
type Time struct {
	Sec  int64  // since 1970-01-01 00:00:00 UTC
	Nsec uint32 // 0 to 999,999,999
}

// TimeOf returns t as a Time.
func TimeOf(t time.Time) Time { return Time{t.Unix(), uint32(t.Nanosecond())} }

// Time returns t as a time.Time in UTC.
func (t Time) Time() time.Time { return time.Unix(t.Sec, int64(t.Nsec)).UTC() }

// IsZero reports whether there is no timestamp.
func (t Time) IsZero() bool { return t == Time{} }

// Compare returns -1, 0 or 1 if t is before, equal to or after u.
func (t Time) Compare(u Time) int {
	return cmp.Or(cmp.Compare(t.Sec, u.Sec), cmp.Compare(t.Nsec, u.Nsec))
}

// Flags describe the state of an entry in one snapshot. The bits are part of the listing format.
type Flags uint16

const (
	// Racy: a change made after the snapshot may not show in the compared times, because they are
	// too close to the snapshot's start, or after it. The next snapshot reads the entry again.
	Racy Flags = 1 << iota
	// Unreadable: the entry could not be read. A file has the content, size and times of its last
	// good copy, or no content if there is none. A directory, and everything below it, has the
	// entries of the last snapshot that could list it.
	Unreadable
	// ChangedWhileRead: the file changed during each attempt to read it, so its content may mix
	// several states. On the Self of a directory: the directory was renamed, replaced or removed
	// before all of its files could be read, and some of them are missing.
	ChangedWhileRead
	// Wanted: the content of a file is still to be read, and its extended attributes with it. Only
	// a page on its way from a walker to a reader has this flag; no stored listing does.
	Wanted
	// XattrsWanted: only the extended attributes are still to be read.
	XattrsWanted
	// XattrsUnreadable: the extended attributes could not be read. They are those of the last good
	// copy, or none if there is no such copy.
	XattrsUnreadable
	// Boundary: the entry is on a different file system, or a different mount, than its directory.
	// On the Self of a directory it means that a file system begins there. It is never set on the
	// root of a shard.
	Boundary
	// AttributesUnknown: only the existence of the entry is known. An entry that may be a file has
	// the kind File and the flag ContentMissing. A directory that is not also Unreadable vanished
	// before it could be read and has no entries.
	AttributesUnknown
	// ContentMissing: no snapshot has ever read the content of this file, which is also Unreadable.
	// Size is the size that the file system reports.
	ContentMissing
	// XattrsUnshown: the file system showed no extended attributes when they were read. The entry
	// may have some: they are read once the file system shows them.
	XattrsUnshown
)

// Provisional are the flags of an entry that the next snapshot must read again, even if its
// attributes are unchanged.
const Provisional = Racy | Unreadable | ChangedWhileRead | XattrsUnreadable | AttributesUnknown | ContentMissing

// Flawed are the flags of an entry that differs from what the filer had when the snapshot was
// taken.
const Flawed = Provisional &^ Racy

// HadVanished reports whether e, the Self of a directory, stands for a directory that vanished
// before it could be read. Its parent still lists it.
func (e *Entry) HadVanished() bool {
	return e.Kind == Directory && e.Flags&(AttributesUnknown|Unreadable) == AttributesUnknown
}

// An Xattr is one extended attribute. POSIX ACLs are extended attributes too:
// system.posix_acl_access and system.posix_acl_default.
type Xattr struct {
	Name  string
	Value []byte
}

// Major returns the major number of a device, as Linux has it in Rdev.
func (e *Entry) Major() uint64 { return e.Rdev>>8&0xfff | e.Rdev>>32&^0xfff }

// Minor returns the minor number of a device.
func (e *Entry) Minor() uint64 { return e.Rdev&0xff | e.Rdev>>12&0xffffff00 }

// An Entry is one name in a directory or, as a page's Self with an empty Name, the directory
// itself. A subdirectory's entry in its parent has only Name, Kind and Inode; the other attributes
// are in the subdirectory's own first page.
type Entry struct {
	Name   string // any bytes except '/' and NUL
	Kind   Kind
	Flags  Flags
	Mode   uint32 // permission, set-ID and sticky bits: 07777
	UID    uint32
	GID    uint32
	Nlink  uint32
	Size   int64 // bytes, for a File; 0 for other kinds
	Mtime  Time
	Ctime  Time
	Btime  Time   // zero if the file system has none
	Inode  uint64 //
	Device uint64 // st_dev as the walker's machine currently reports it; no listing stores it
	Rdev   uint64 // of a CharDev or BlockDev
	Target string // of a Symlink

	// The extended attributes are inline, sorted by name, or, if the page has no room for them, in
	// a chunk of their own (listing.DecodeXattrs). An XattrChunk of Length 0 means that there is no
	// such chunk.
	Xattrs     []Xattr
	XattrChunk Ref

	Content Content // of a File
}

// Content locates the bytes of a file. A file of Size 0, and a file that is a single hole, have no
// Refs.
type Content struct {
	// At Depth 0 the Refs are the file's data, in order. At Depth n > 0 each Ref names a list chunk
	// that holds further Refs of Depth n-1.
	Depth int
	Refs  []Ref
}

// A Ref is one chunk in a Content.
type Ref struct {
	Chunk  ChunkID
	Hole   int64 // bytes of hole between the end of the previous Ref and this one
	Length int64 // bytes of the chunk's plaintext
	// Span is the number of bytes of the file that this Ref covers, including holes inside; it
	// equals Length at depth 0.
	Span int64
}

// A PageKey distinguishes the pages of one directory: 0 for the first page, otherwise a hash of the
// first name in the page. It does not change as long as that name does not.
type PageKey int64

// A Page is a consecutive part of one directory's listing.
type Page struct {
	// Path is that of the directory within the shard, without leading or trailing slash; "" is the
	// root.
	Path    string
	Key     PageKey
	Next    PageKey // key of the directory's next page; 0: this is the last page
	Self    *Entry  // the directory itself; in page 0 only
	Entries []Entry // sorted by name, bytewise
}
