// Package restore writes a snapshot, or a part of one, into a directory.
//
// The files follow the data, from the index to finished files:
//
//	restore.go      opens the target, runs the restore, and sums up what it did
//	destination.go  marks, syncs and finishes the target itself
//	space.go        refuses what an empty target has no room for
//	amount.go       measures what is selected
//	part.go         restores one task of a shared restore
//	plan.go         reads pages of the index in walk order: directories and files
//	flaws.go        reports entries that the snapshot does not hold as the file server had them
//	bundle.go       collects files in bundles of bounded size, and fetches their chunks
//	directory.go    creates a directory, and finishes it after all work below it
//	lettercase.go   refuses names that a target which ignores case takes for the same
//	existing.go     compares a file with what exists: create, replace or keep
//	inplace.go      finds what differs in a file that is updated in place
//	times.go        compares times that the target may store in whole seconds
//	unfinished.go   refuses a target with an unfinished instant restore
//	owners.go       gives owners the numbers that they have at the target
//	xattrs.go       fetches attributes that are stored in chunks
//	file.go         writes chunks, and finishes a file after its last one
//	links.go        links further names of a file after its first name is finished
//	delete.go       removes names that the snapshot does not have, with Delete
//	attributes.go   sets attributes of directories, and puts back those that the work has changed
//
// Package fetch finds the packs of the chunks, and passes each chunk to its file (file.Chunk). The
// planner is one goroutine. Behind it, up to bundlesInFlight bundles are fetched and written
// concurrently. Only package target touches the file system, and it confines every access to the
// target (I10).
//
// # Errors and problems
//
// A restore that reports no Problem has made the target equal to what the file server had.
// Everything else is a Problem:
//
//   - A file or attribute that cannot be restored. The rest of the restore continues.
//   - An entry that the snapshot does not hold as the file server had it (flaws.go). Summary.Flawed
//     counts these as well.
//   - A directory for which the index lacks pages. Three checks find them: the pages of a directory
//     form a chain (browse.Chain), each directory except the top is listed by another, and when a
//     whole shard is restored, its pages are compared with those that the snapshot was committed
//     with (I12).
//
// These end the restore with an error: a full or read-only target, an index or store that does not
// answer, a wrong key, and a canceled context. An attribute that cannot be set never does.
//
// At the end, a restore waits until the file systems that it wrote to have their data on disk. The
// kernel writes data after it has reported success, so an error of a disk that is defective, full
// or over quota may appear only then. If a file system fails, the restore returns a SyncError.
//
// # State after an interruption
//
//	stopped or killed               at the target                       run again (if-changed)
//	before the target is finished   a mark, if the restore created it   finished, with attributes
//	while a file is written         a file under a temporary name, or   written again
//	                                one under its own name whose mtime
//	                                is not the snapshot's
//	while a file is updated in      the file, with old and new content  updated: its mtime is not
//	place                                                               the snapshot's
//	after a file is finished        the file                            kept: size and mtime match
//	after an attribute has failed   the file, without the attribute     set: the attributes of kept
//	                                                                    files are compared
//	before a directory is finished  the directory, mode 0700 if it is   finished
//	                                new; an existing one is put back,
//	                                except after a kill: its mode may
//	                                then grant more rights
//	loss of power before the end    files may lack data that their      --verify finds and rewrites
//	                                size and mtime promise              them
//
// # Memory
//
// Memory is bounded by maxBundleEntries, maxBundleChunks and maxBundleXattrBytes, the fetcher's
// concurrency, maxCachedXattrBytes, maxGroups, maxListedNames and maxRememberedNames. It does not
// grow with the tree, a directory or a file (I9).
package restore
