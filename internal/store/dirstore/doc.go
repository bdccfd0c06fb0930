// Package dirstore is the store.Store that keeps its objects as files below
// one directory of this machine. It is for Linux.
//
// # How an object comes to be
//
//  1. tmp~/RANDOM is created and written (mode 0600), and its pages start on their way to the disk
//  2. fsync of the file; its pages leave the page cache
//  3. the directory of the object's name is made, if it is not there (mode 0700)
//  4. the file is renamed to its name: from here on readers see it, whole
//  5. fsync of that directory: from here on the object is durable, and Put returns
//
// PutNew renames with RENAME_NOREPLACE; where the file system cannot do that
// (NFS), it makes a hard link instead. No object's name can hold a '~', so
// that a temporary file is never taken for an object.
//
// A directory's entry in its parent must be durable too. The first Put of a
// Store into a directory therefore makes the missing directories and syncs
// the parents, also of those that it found: whoever made them may not have
// got that far. Later Puts pay for steps 2 and 5 only.
//
// # What a crash or an error leaves
//
//	after   a crash leaves                       an error leaves
//	1, 2    a temporary file: swept by an Open   nothing: the file is removed
//	        that comes a day later or more
//	3       an empty directory too: harmless     an empty directory
//	4       the object or the temporary file     the object
//	5       the object                           –
//
// An fsync that failed is never tried again on the same file: the kernel may
// have dropped the pages. The Put fails, and the caller puts anew.
//
// Delete is not synced. An object that comes back after a crash is an orphan,
// and will be deleted again.
package dirstore
