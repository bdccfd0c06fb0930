// Package restore writes a snapshot, or a part of one, into a directory.
//
// # The way of the data
//
//	plan.go      pages of the index, in walk order  ─► directories, files
//	existing.go  what is at the target already      ─► make, replace, keep
//	window.go    files, as many as fit a window     ─► wanted chunks (lists of lists on the way: refs.go)
//	             package fetch: packs               ─► verified chunks
//	file.go      chunks                             ─► files, finished when their last chunk is there
//	links.go     further names of a file            ─► linked when the first is finished
//	directory.go directories                        ─► attributes, when nothing below them is left to do
//
// The planner is one goroutine; up to windowsInFlight windows are fetched and
// written behind it. Package target is the only one to touch the file system,
// and holds it to the target (I10).
//
// # What is left where it stops
//
//	stopped or killed               at the target                          run again (if-changed)
//	while a file is written         a file under a temporary name, or one  written anew
//	                                under its own whose mtime is not the snapshot's
//	after a file is finished        the file                               left alone: size and mtime are right
//	before a directory is finished  the directory, mode 0700               finished
//	loss of power                   files may lack data that their size    --verify finds and rewrites them
//	                                and mtime promise
//
// # What fails
//
// A file or attribute that cannot be restored is a Problem; the rest goes on.
// A full target, an index or store that does not answer, a wrong key and an
// ended context end the restore with an error.
//
// # Memory
//
// Bounded by maxWindowEntries and maxWindowChunks, the fetcher's concurrency,
// maxGroups and maxListedNames; not by the tree, a directory or a file (I9).
package restore
