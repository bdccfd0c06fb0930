// Package read is the reader: it takes read batches, reads the files that they
// want, and stores what of their content is not stored yet.
//
// The files follow the data: service.go takes a batch, batch.go goes through its
// pages, file.go opens and reads one file, xattrs.go reads its extended
// attributes, settle.go decides what becomes of what cannot be read, split.go
// cuts large files into chunks, window.go collects chunks, dedup.go finds out
// which of them are new, frame.go compresses those, packer.go seals them into
// packs and uploads these, answer.go reports to the committer when all that the
// batch relies on is durable. Beside them, share.go
// divides the reader among filers, pace.go holds a batch to its filer's bytes a
// second, watched.go times the filer, and watch.go finds batches that it keeps waiting.
//
//	batch goroutine     open, read, cut, hash ──► window ─┐        (Options.Batches)
//	store workers       dedup, compress, seal ◄───────────┘──► pack (Options.Workers)
//	uploads             PUT ──► PackStored ──► BatchStored           (Options.Uploads)
//
// # Many filers
//
// A filer that is slow, or dead, delays no other. Places in hand, batches being
// read and windows are shares: a filer has no more than a limit (Options.InHand,
// Options.Batches), and no more than are free, so that for one that comes there is always something. A
// batch of a filer with too many in hand is handed back.
//
// A batch whose filer has not answered a call for Options.StallAfter is
// stalled: its delivery is ended, its shares are given back, and no pack waits for it. Its
// goroutine goes on waiting, its lease is renewed by reports, and when the
// filer answers it takes part again. No more than 256 are stalled; what stalls beyond that
// keeps what it has, and in the end nothing more is taken.
//
// # Memory
//
// Windows are taken from a fixed set and given back, and who waits for one
// holds none. One pack is being filled for each snapshot; when all of them hold
// more than four full packs would, the fullest is uploaded as it is.
// Of a batch that waits for its packs only the encoded pages are held.
// Nothing grows with the size of a file, a batch or the tree. With B = Batches,
// W = Workers, U = Uploads and H = InHand a reader holds at most
//
//	windows, 1 MiB each       4B + 2W, and 2B in the place of stuck ones: a read that hangs may
//	                          still write to its window, so that one is replaced
//	windows, 4 MiB each       8 + 2W, and 8 in the place of stuck ones
//	carried between them      4 MiB a batch that reads a large file, 4B of them
//	packs, 35 MiB each        4 + U, and U + 1 buffers to be used again; a quarter more in the 4
//	                          where they are many small ones
//	packs asked for           100 bytes each, 16,384 of them
//	ids of list chunks        400 KiB a batch
//	batches, 512 KiB each     2H, and 256 that are stalled
//
// and with one filer, that answers, half of the windows, B batches and H in hand.
//
// # Failure
//
//	a reader dies               another attempt reads the batch again; packs that were uploaded for
//	                            nothing are orphans, and garbage collection takes them
//	a reader is told to stop    it finishes what it has in hand for Options.StopTimeout, with packs that wait for
//	                            nothing more, and hands back the rest, also what hangs in the kernel
//	a filer does not answer     its batches stall, and wait
//	a source snapshot expires   the snapshot fails: what is missing then was not deleted
//	another root is there than  the batch is handed back, for a reader that sees the right one;
//	the walker saw              where none does, the snapshot fails
//	a file changes while read   it is read again, three times; then the last is kept, and flagged
//	a file is gone              it is left out of the listing and counted, once it is known that
//	                            root and mounts are still those that were walked
//	a directory is gone         so are the files that were to be read; the directory is flagged, or the files are
//	a file is stale             it is opened once more, by its path
//	a file cannot be read       it is a problem; the last good copy is carried forward, and flagged
//	xattrs cannot be read       they are a problem; those of the last snapshot stay, flagged
//	this machine is short of    the batch is handed back
//	memory or descriptors
//	the store lacks a pack      what is read of its content is stored again; a warning names the pack
//	the store is away           the store tries for minutes; then the batch is handed back
//	the store takes no writes   all that is in hand is handed back, to another reader (Options.Refused)
package read
