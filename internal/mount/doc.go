// Package mount shows the snapshots of a repository as a read-only file system (FUSE).
//
// The files follow a request of the kernel:
//
//	mount.go      mounts, serves until the end, and unmounts
//	request.go    when a request ends
//	fs.go         the requests about names and attributes
//	readdir.go    lists directories, with attributes
//	top.go        what is above snapshots: filers, shards, and the names of snapshots
//	views.go      the snapshots that are read, which are kept from being forgotten meanwhile
//	nodes.go      the files that the kernel knows
//	attributes.go attributes, inode numbers and extended attributes
//	directories.go reads directories from the index, ahead, and keeps some
//	files.go      reads files: plans chunks, and reads ahead
//	chunks.go     fetches chunks, once for all readers, and keeps the frames that they are in
//
// # Tree
//
//	filers/FILER/SHARD/TIME/…     a snapshot of a shard, by its start in UTC
//	filers/FILER/SHARD/latest     a symlink to the last good snapshot
//	ids/ID/…                      the same snapshots by their ids; ids/PREFIX is a symlink
//
// In the name of a filer or shard, "%" and "/" are written as "%25" and "%2F". The first slash of
// an absolute path is left out, and another name of a shard begins with ".%2F" (ShardDir).
//
// # Nothing is read before it is looked at
//
// Snapshots never change, so that the kernel may keep names and attributes for long (keepFor). What
// is above them is kept for a second. Directories are read from the index in walk order, some pages
// ahead, which is what find and ls -R ask for next. Content is fetched chunk by chunk; a file that
// is read in sequence is read ahead, and so are the small files after one, if two files of a
// directory are read one after another. A frame that was opened is kept whole, because its other
// chunks are mostly those of the next files. When a second chunk of it is used, the next frame is
// read ahead.
//
// # Failures
//
//	index or store does not answer  requests wait, up to Options.Patience; a signal ends the wait
//	content is damaged              EIO, and a line in the log with the path
//	pages of a directory are gone   EIO after the entries that are known, and a line in the log
//	no identity                     EACCES for content; names and attributes are shown
//	a snapshot is forgotten         ESTALE; content that an open file still gets is verified
//
// # Memory
//
// Memory is bounded by maxKnown, maxDirectoryBytes, maxChunkBytes, maxAheadBytes and the Fetcher,
// and does not grow with the tree, a directory or a file (I9). A directory that the kernel knows
// takes about 150 bytes until the kernel forgets it.
package mount
