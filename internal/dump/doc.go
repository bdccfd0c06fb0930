// Package dump writes a directory of a snapshot as an archive, or the content of one file, to a
// stream.
//
// The files follow the data:
//
//	dump.go     one dump: plans in one goroutine, writes in another, and sums up
//	plan.go     visits the tree in walk order, and collects entries in batches
//	batch.go    fetches the content of a batch, whose chunks arrive in any order
//	write.go    passes entries and content to the archive, in order
//	tar.go      tar, in the pax format
//	acl.go      ACLs as text, which tar has
//	zip.go      zip
//	content.go  the content of one file, without an archive
//
// # What is written is verified
//
// Package fetch verifies each chunk against its hash before it is written. A file that is damaged
// and fits into one batch is left out, and named. Of a larger file, a part may have been written
// when the damage is found: the stream then ends there, in the middle of the file and without the
// end of the archive, so that no program takes the file for whole. The error is ErrCut.
//
// # Problems
//
// As in a restore, everything that the file server had and the archive has not is a Problem, except
// for what the format has no place for. That is counted (Summary.LeftOut).
//
// # Memory
//
// Memory is bounded by batchBytes, batchEntries, batchesInFlight and maxGroups, and by the Fetcher.
// It does not grow with the tree, a directory or a file (I9).
package dump
