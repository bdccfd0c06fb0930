// Package history finds the versions of files and directories in all snapshots of a shard: those of
// one path, and those of all entries with certain names. A version is what successive snapshots
// have alike. Both read versions of pages, of which one serves all snapshots that share it, so the
// cost does not grow with the snapshots, but with what has changed in the pages that are read.
//
// # Files
//
//	find.go      finds entries by name
//	path.go      the history of one path
//	moved.go     finds out where an entry came from, and where it went
//	directory.go collects the versions of the entries of one directory
//	versions.go  makes versions of them
package history
