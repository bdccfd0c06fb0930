// Package source is the port to the trees that are backed up. posix reads any
// mounted path; every adapter passes the suite in sourcetest.
package source

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

var (
	// ErrStale: the file server has forgotten what was opened. It may be there
	// still: open it again.
	ErrStale = errors.New("stale")
	// ErrReplaced: an entry of another kind has taken the place of the file.
	ErrReplaced = errors.New("something else is there by now")
	// ErrExpired: the source snapshot is gone, or another is in its place.
	ErrExpired = errors.New("the source snapshot has expired")
)

// A Source opens the roots of shards.
type Source interface {
	// Open opens the tree at a shard's source URL. Errors wrap
	// backup.ErrNotFound, fs.ErrPermission, backup.ErrInvalid (not a
	// directory) or backup.ErrUnavailable. Of a URL that Resolve returned it
	// opens that source snapshot, or fails with ErrExpired.
	Open(ctx context.Context, url string) (Tree, error)
	// Resolve returns the URL of the newest source snapshot that pattern names
	// in the tree at url: what the system of the filer itself keeps, and does
	// not change. The pattern is relative to the tree's root, and means what
	// Newest and path.Match say, component by component; a component without a
	// special character is opened by its name, for it need not be in a listing
	// (".snapshot", ".zfs"). Only directories count, and no symlink is followed
	// (I10). The URL that is returned tells the snapshot from any other that is
	// at the same path later. Errors are those of Open; they wrap
	// backup.ErrNotFound and name pattern and directory where nothing matches,
	// and backup.ErrInvalid where CheckPattern does.
	Resolve(ctx context.Context, url, pattern string) (resolved string, err error)
}

// A Tree is one shard's tree. Nothing that is opened through it is outside it
// (I10): symlinks are never followed, whatever changes meanwhile. Paths are
// relative to the root, any bytes, of any length; the root is "". All methods
// may be called concurrently.
type Tree interface {
	// OpenDirectory opens a directory. Errors wrap fs.ErrNotExist,
	// fs.ErrPermission, backup.ErrOutside (a component is a symlink),
	// syscall.ENOTDIR (it is no directory any more) or ErrStale. One that may be
	// looked at but not listed opens all the same: then Read fails.
	OpenDirectory(ctx context.Context, path string) (Directory, error)
	// RootDevice is the st_dev of the root, for one-file-system walks.
	RootDevice() uint64
	// Root identifies the root that was opened; of a source snapshot, that of
	// the tree that it was found in.
	Root() backup.Root
	// Clock is the time by the clock that stamps changes in the tree, as far as
	// it is known, and how much earlier it may be: by how coarse the clock is,
	// and by how far it may be from this machine's.
	Clock() (now time.Time, behind time.Duration)
	// Check fails unless the root that was opened is still there, and at the
	// place where it was opened. Until it has returned nil, nothing that was seen
	// in the tree is to be believed: where a file system is unmounted or a source
	// snapshot expires, files vanish as if they had been deleted. What changes in
	// the tree makes no difference. Errors wrap ErrExpired (of a source snapshot)
	// or backup.ErrUnavailable; one is an OtherTreeError where another root is at
	// that place.
	Check(ctx context.Context) error
	// Close gives the root back. A second call does nothing.
	Close() error
}

// A Directory is an open directory. It belongs to one goroutine, except that
// OpenFile may be called concurrently with itself.
type Directory interface {
	// Self returns the directory's own attributes, without xattrs, and the flag
	// Boundary where a file system begins there. It is the one stat of this
	// directory.
	Self() backup.Entry

	// Read appends further entries to dst, in the order in which the file
	// system gives them, as many as it gives at once, and returns io.EOF (and
	// no entries) after the last. Files and special files come with all
	// their attributes but for xattrs and content, from exactly one stat each;
	// subdirectories with Name, Kind and Inode only, from none. An entry whose
	// stat fails is left out and reported to problem; of one that has vanished
	// meanwhile the error wraps fs.ErrNotExist. statCalls is how many stats were
	// made.
	Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) (entries []backup.Entry, statCalls int, err error)

	// Xattrs returns the extended attributes of the directory itself (name
	// "") or of one entry that is not a regular file, sorted by name. None,
	// and a file system that has none, is nil. Attributes whose names and values come to
	// more than MaxXattrBytes are an error.
	Xattrs(ctx context.Context, name string, kind backup.Kind) ([]backup.Xattr, error)

	// OpenFile opens a regular file of this directory for one read from
	// front to back. An entry that is not a regular file any more is ErrReplaced.
	OpenFile(ctx context.Context, name string) (File, error)

	// Close gives the directory back. A second call does nothing.
	Close() error
}

// A File is an open regular file. It belongs to one goroutine.
type File interface {
	// Stat returns the file's attributes now, without Name, xattrs and content.
	Stat() (backup.Entry, error)

	// NextExtent returns the next run of data at or after offset. Where the rest
	// of the file is a hole, and at its end, length is 0. What is between offset and start is a
	// hole. A source that does not know of holes returns offset and a
	// length up to size.
	NextExtent(offset, size int64) (start, length int64, err error)

	// ReadAt is io.ReaderAt; it leaves the page cache as it found it.
	io.ReaderAt

	// Xattrs is as Directory.Xattrs, for this file.
	Xattrs() ([]backup.Xattr, error)

	// Close closes the file, and drops what reading it has left in the page cache.
	Close() error
}

// MaxXattrBytes is the most that the extended attributes of one entry may come to.
const MaxXattrBytes = 1 << 20
