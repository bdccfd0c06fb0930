// Package read is the reader: it takes read batches, reads the files that they
// want, and stores what of their content is not stored yet.
//
// The files follow the data: service.go takes a batch, batch.go goes through its
// pages, file.go opens and reads one file, split.go cuts large ones into chunks,
// window.go collects chunks, dedup.go finds out which of them are new, frame.go
// compresses those, packer.go seals them into packs and uploads these, answer.go tells the
// committer when all that the batch relies on is durable.
//
//	batch goroutine     open, read, cut, hash ──► window ─┐        (Options.Batches)
//	store workers       dedup, compress, seal ◄───────────┘──► pack (Options.Workers)
//	uploads             PUT ──► PackStored ──► BatchStored           (Options.Uploads)
//
// # Memory
//
// Windows are taken from a fixed set and given back, and who waits for one
// holds none; packs are at most one being filled for a snapshot, four in all, and those on their way.
// Of a batch that waits for its packs only the encoded pages are held.
// Nothing grows with the size of a file, a batch or the tree.
//
// # Failure
//
//	a reader dies               another attempt reads the batch again; packs that were uploaded for
//	                            nothing are orphans, and garbage collection takes them
//	a file changes while read   it is read again, three times; then the last is kept, and flagged
//	a file is gone              it is left out of the listing
//	a file cannot be read       it is a problem; the last good copy is carried forward, and flagged
//	the store is away           the store tries for minutes; then the batch is handed back
package read
