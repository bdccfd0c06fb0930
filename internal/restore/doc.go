// Package restore writes a snapshot, or a part of one, into a directory.
//
// # The way of the data
//
//	plan.go        pages of the index, in walk order  ─► directories, files
//	links.go       further names of a file            ─► wait for the first
//	window.go      files, as many as fit a window
//	xattrs.go      attributes that are in chunks      ─► entries
//	existing.go    what is at the target already      ─► make, replace, keep
//	window.go      wanted chunks (lists of lists on the way: refs.go)
//	               package fetch: packs               ─► verified chunks
//	file.go        chunks                             ─► files, finished when their last chunk is there
//	links.go       further names                      ─► linked when the first is finished
//	delete.go      what the snapshot does not have    ─► gone, with Delete
//	directory.go   directories                        ─► attributes, when nothing below them is left to do
//	destination.go the target itself                  ─► attributes, at the end
//
// The planner is one goroutine; up to windowsInFlight windows are fetched and
// written behind it. Package target is the only one to touch the file system,
// and holds it to the target (I10).
//
// # What is reported
//
// A restore without a Problem has made the target what the file server had.
// Everything else is a Problem:
//
//   - A file or attribute that cannot be restored; the rest goes on.
//   - What the snapshot itself does not have as the file server had it
//     (flaws.go): counted as Summary.Flawed, too.
//   - A directory of which the index lacks pages. The pages of a directory form
//     a chain (browse.Chain), each directory but the top is listed by another,
//     and where all of a shard is restored the pages are compared with those
//     that the snapshot was committed with (I12).
//
// A full or read-only target, an index or store that does not answer, a wrong
// key and an ended context end the restore with an error. An attribute that
// cannot be set never does.
//
// At the end, a restore waits until the file systems that it has written to have
// their data on disk. Until then a disk that is full, over its quota or defective
// may not show: the kernel writes later than it says. Where one of them fails, the
// restore ends with a SyncError.
//
// # What is left where it stops
//
//	stopped or killed               at the target                          run again (if-changed)
//	before the target is finished   a mark, if the restore made it         finished, with its attributes
//	while a file is written         a file under a temporary name, or one  written anew
//	                                under its own whose mtime is not the snapshot's
//	after a file is finished        the file                               left alone: size and mtime are right
//	after an attribute has failed   the file, without the attribute        the attribute is set: those of files
//	                                                                       that are left alone are compared
//	before a directory is finished  the directory, mode 0700 if it is new; finished
//	                                one that was there is put back, but
//	                                for a kill: it may have more rights
//	loss of power before the end    files may lack data that their size    --verify finds and rewrites them
//	                                and mtime promise
//
// # Memory
//
// Bounded by maxWindowEntries, maxWindowChunks and maxWindowXattrBytes, the
// fetcher's concurrency, maxCachedXattrBytes, maxGroups, maxListedNames and
// maxRememberedNames; not by the tree, a directory or a file (I9).
package restore
