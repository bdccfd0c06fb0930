// Package check finds damage to the index and to the store, and what it costs: which files of which
// snapshots cannot be restored. It changes nothing, and backups, restores and prunes continue
// meanwhile.
//
// # Levels
//
// Each level includes the ones before it.
//
//	Index    every version of a page has its digest; the pages, counts and directories of each
//	         snapshot are complete; every chunk has a place, and every list of chunks is known
//	Objects  every pack is in the store, with its size, its header and its trailer; every commit
//	         record, segment and catalog, and every copy of the index, is signed. Needs no identity
//	Tables   the table of each pack has the frames and chunks that the index places there
//	Content  every frame is read, opened and decompressed, and every chunk has its hash
//
// # Order
//
// Run reads the needed snapshots and all pages (pages.go), then lists the store, which makes the
// cost of the rest known (objects.go, Options.Begin). It then inspects or reads each object
// (journal.go, packs.go). In the end, it finds the files that need what is damaged (lost.go).
//
// The index is not read at one moment, and the store is read after it. So an object that is missing
// may have been deleted because nothing needs it any more. Before anything is reported, it is
// looked for again, first in the store and then in the index: a pruner notes in the index what it
// deletes before it deletes it.
//
// # Memory
//
// Pages are read one at a time in each share of a shard (shares). A snapshot takes about 200 bytes,
// a pack 200, and a chunk 10: if all chunks together need more than Options.MemoryBytes, they are
// divided by their ids, and the pages are read once for each part. Directories are compared as sums
// of hashes (TestSumsOfPages).
package check
