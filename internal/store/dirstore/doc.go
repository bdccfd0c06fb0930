// Package dirstore is the store.Store that keeps its objects as files below one directory of this
// machine. It requires Linux.
//
// # Creation of an object
//
//  1. tmp~/RANDOM is created and written (mode 0600), and writeback of its pages starts
//  2. fsync of the file; its pages are dropped from the page cache
//  3. the directory of the object's name is created, if it does not exist (mode 0700)
//  4. the file is renamed to its name: from here on readers see the complete object
//  5. fsync of that directory: from here on the object is durable, and Put returns
//
// PutNew renames with RENAME_NOREPLACE. If the file system does not support that (NFS), it creates
// a hard link instead. No object's name can contain a '~', so a temporary file is never mistaken
// for an object.
//
// A directory's entry in its parent must be durable as well. The first Put of a Store into a
// directory therefore creates the missing directories and syncs the parents, including those of
// existing directories, because the process that created them may have stopped before its own sync.
// Later Puts perform only steps 2 and 5.
//
// # State after a crash or an error
//
//	after   a crash leaves                       an error leaves
//	1, 2    a temporary file: removed by an      nothing: the file is removed
//	        Open at least a day later
//	3       also an empty directory: harmless    an empty directory
//	4       the object or the temporary file     the object
//	5       the object                           –
//
// A failed fsync is never retried on the same file, because the kernel may have dropped the pages.
// The Put fails, and the caller repeats it.
//
// Delete is not synced. An object that reappears after a crash is an orphan, and will be deleted
// again.
package dirstore
