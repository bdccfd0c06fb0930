// Package source is the port to the trees that are backed up. Package posix reads any mounted path,
// and package stdin wraps it for a stream. Adapters of file servers pass the suite in sourcetest.
package source

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

var (
	// ErrStale reports that the file server has forgotten the open file or directory. It may still
	// exist: open it again.
	ErrStale = errors.New("stale")
	// ErrReplaced reports that an entry of another kind has taken the place of the file.
	ErrReplaced = errors.New("something else is there by now")
	// ErrExpired reports that the source snapshot no longer exists, or that another has taken its
	// place.
	ErrExpired = errors.New("the source snapshot has expired")
	// ErrNoXattrs reports that the file system shows no extended attributes, as it is mounted here.
	// Through another mount, the entries may have some.
	ErrNoXattrs = errors.New("the file system, as it is mounted here, shows no extended attributes")
)

// A Source opens the roots of shards.
type Source interface {
	// Open opens the tree at a shard's source URL. Errors wrap backup.ErrNotFound,
	// fs.ErrPermission, backup.ErrInvalid (not a directory) or backup.ErrUnavailable. For a URL
	// that Resolve returned, Open opens that source snapshot, or fails with ErrExpired.
	Open(ctx context.Context, url string) (Tree, error)
	// Resolve returns the URL of the newest source snapshot that matches pattern in the tree at
	// url. A source snapshot is one that the system of the filer itself keeps, and does not change.
	// The pattern is relative to the tree's root and is matched component by component, as Newest
	// and path.Match define. A component without a special character is opened by its name, because
	// a listing need not contain it (".snapshot", ".zfs"). Only directories match, and no symlink
	// is followed (I10). The returned URL distinguishes the snapshot from any other that is later
	// at the same path. Errors are those of Open. If nothing matches, the error wraps
	// backup.ErrNotFound and names pattern and directory; for an invalid pattern, it wraps
	// backup.ErrInvalid as CheckPattern does.
	Resolve(ctx context.Context, url, pattern string) (resolved string, err error)
}

// A Tree is the tree of one shard. Everything opened through it is inside it (I10): symlinks are
// never followed, even if the tree changes meanwhile. Paths are relative to the root and consist of
// any bytes, of any length; the root is "". All methods may be called concurrently.
type Tree interface {
	// OpenDirectory opens a directory. Errors wrap fs.ErrNotExist, fs.ErrPermission,
	// backup.ErrOutside (a component is a symlink), syscall.ENOTDIR (it is no longer a directory)
	// or ErrStale. A directory that permits stat but not listing opens without an error; then Read
	// fails.
	OpenDirectory(ctx context.Context, path string) (Directory, error)
	// RootDevice is the st_dev of the root, for one-file-system walks.
	RootDevice() uint64
	// Root identifies the root that was opened. For a source snapshot, that is the root of the tree
	// in which it was found.
	Root() backup.Root
	// Clock returns the time of the clock that stamps changes in the tree, as far as it is known,
	// and by how much that clock may be behind: its granularity, and its possible offset from this
	// machine's clock.
	Clock() (now time.Time, behind time.Duration)
	// Check fails unless the root that was opened still exists at the place at which it was opened.
	// Until Check has returned nil, nothing that was read from the tree may be believed: if a file
	// system is unmounted or a source snapshot expires, files vanish as if they had been deleted.
	// Changes inside the tree do not matter. Errors wrap ErrExpired (of a source snapshot) or
	// backup.ErrUnavailable; if another root is at that place, the error is an OtherTreeError.
	Check(ctx context.Context) error
	// Close releases the root. A second call does nothing.
	Close() error
}

// A Directory is an open directory. It belongs to one goroutine, except that OpenFile may be called
// concurrently with itself.
type Directory interface {
	// Self returns the directory's own attributes, without xattrs, and the flag Boundary if a file
	// system begins there. They come from the only stat of this directory.
	Self() backup.Entry

	// Read appends further entries to dst, in the order of the file system and as many as it
	// returns at once. After the last entry it returns io.EOF and no entries. Files and special
	// files have all their attributes except xattrs and content, from exactly one stat each;
	// subdirectories have only Name, Kind and Inode, from none. An entry whose stat fails is left
	// out and reported to problem; if the entry has vanished meanwhile, the error wraps
	// fs.ErrNotExist. statCalls is the number of stats.
	Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) (entries []backup.Entry, statCalls int, err error)

	// Xattrs returns the extended attributes of the directory itself (name "") or of one entry that
	// is not a regular file, sorted by name. It returns nil if there are none, and ErrNoXattrs if
	// the file system shows none of this kind of entry. If names and values together exceed
	// MaxXattrBytes, it returns another error.
	Xattrs(ctx context.Context, name string, kind backup.Kind) ([]backup.Xattr, error)

	// OpenFile opens a regular file of this directory for one read from front to back. If the entry
	// is no longer a regular file, the error is ErrReplaced.
	OpenFile(ctx context.Context, name string) (File, error)

	// Close releases the directory. A second call does nothing.
	Close() error
}

// XattrsShown remembers whether the file system of one directory shows extended attributes.
type XattrsShown struct{ known, shown bool }

// In reports whether the file system of d shows extended attributes. It does not if that cannot be
// found out, and then the next call asks again.
func (x *XattrsShown) In(ctx context.Context, d Directory) bool {
	if !x.known {
		_, err := d.Xattrs(ctx, "", backup.Directory)
		x.known, x.shown = err == nil || errors.Is(err, ErrNoXattrs), err == nil
	}
	return x.shown
}

// A File is an open regular file. It belongs to one goroutine.
type File interface {
	// Stat returns the file's current attributes, without Name, xattrs and content.
	Stat() (backup.Entry, error)

	// NextExtent returns the next run of data at or after offset. At the end of the file, and if
	// the rest is a hole, length is 0. The range between offset and start is a hole. A source that
	// does not detect holes returns offset and a length up to size.
	NextExtent(offset, size int64) (start, length int64, err error)

	// ReadAt is io.ReaderAt. It leaves the page cache as it was.
	io.ReaderAt

	// Xattrs is as Directory.Xattrs, for this file.
	Xattrs() ([]backup.Xattr, error)

	// Close closes the file, and drops the pages that reading it has left in the page cache.
	Close() error
}

// MaxXattrBytes is the maximum total size of the extended attributes of one entry.
const MaxXattrBytes = 1 << 20
