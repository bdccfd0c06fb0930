// Package read is the reader: it takes read batches, reads the files that they want, and stores the
// part of their content that is not stored yet.
//
// The files follow one file's bytes, from the open file to the durable pack:
//
//	service.go   takes batches, until the reader is stopped
//	batch.go     makes one attempt at a batch, and ends its delivery
//	page.go      reads the wanted files of each page, and encodes the pages that are complete
//	file.go      opens one file, and reads it until nothing changes meanwhile
//	split.go     cuts a large or sparse file into chunks
//	buffer.go    collects chunks, and passes full buffers to the store workers
//	store.go     finds out which chunks are new, and compresses those into frames
//	packer.go    seals frames into packs, uploads the packs, and reports them
//	answer.go    reports the batch when everything that it relies on is durable
//
// What packer.go and answer.go send goes to the committer (admit.go of package commit).
//
// These files support that:
//
//	pace.go      limits a batch to its part of the filer's bytes per second, and follows changes
//	progress.go  reports how far the batch is
//	stall.go     sets a batch apart while its filer does not answer
//	link.go      reads a file that has several names in the batch only once
//	xattrs.go    reads extended attributes
//	settle.go    decides how to record a file that cannot be read
//	last.go      fetches the last snapshot's copy of that file
//	known.go     remembers the chunks that were stored recently
//	lost.go      checks that the store has the packs that the batch is to rely on
//	replaced.go  forgets what it knows of packs when the index was replaced
//	patient.go   repeats queries while the index does not answer
//	refused.go   ends requests to a store that refuses writes
//
// The stages run concurrently:
//
//	batch goroutine     open, read, cut, hash ──► buffer ─┐        (Options.Batches)
//	store workers       dedup, compress, seal ◄───────────┘──► pack (Options.Workers)
//	uploads             PUT ──► PackStored                           (Options.Uploads)
//	batch goroutine     waits for its packs ──► BatchStored
//
// # Many filers
//
// A slow or dead filer delays no other. Batches in progress, batches being read, and buffers are
// limited by slots: a filer has no more than a limit (Options.InHand, Options.Batches), and no
// more than are free, so that some always remain for another filer. A batch of a filer with too
// many in progress is handed back.
//
// A batch whose filer has not answered a call for Options.StallAfter is stalled: its delivery is
// ended, its slots are given back, and no pack waits for it. Its goroutine keeps waiting, and
// reports renew its lease. When the filer answers, it continues. At most 256 batches are stalled;
// further ones keep their slots, and in the end nothing more is taken.
//
// # Memory
//
// Buffers are taken from a fixed set and given back, and a goroutine that waits for one holds none.
// One pack per snapshot is being filled; when these packs together exceed four full packs, the
// fullest is uploaded as it is. A batch that waits for its packs holds only its encoded pages.
// Nothing grows with the size of a file, a batch or the tree. With B = Batches, W = Workers, U =
// Uploads and H = InHand, a reader holds at most
//
//	buffers, 1 MiB each       4B + 2W, and 2B to replace stuck ones: a read that hangs may
//	                          still write to its buffer, so that buffer is replaced
//	buffers, 4 MiB each       8 + 2W, and 8 to replace stuck ones
//	carried between them      4 MiB per batch that reads a large file, 4B of them
//	packs, 35 MiB each        4 + U, and U + 1 buffers for reuse; if many small packs are
//	                          filled, the 4 take a quarter more
//	packs looked up           100 bytes each, 16,384 of them
//	ids of list chunks        400 KiB per batch
//	batches, 512 KiB each     2H, and 256 that are stalled
//
// and with a single, responsive filer half of the buffers, B batches being read and H in progress.
//
// # Failure
//
// "When something fails" in docs/architecture.md describes failures of processes, filers and
// servers. Queries of the index are repeated for minutes before a batch is handed back. In the
// tree,
//
//	a file changes while read   it is read up to three times; then the last content is kept,
//	                            and flagged
//	a file is gone              it is left out of the listing and counted, once it is verified
//	                            that root and mounts are still those that were walked
//	a directory is gone         its files are gone, too; the directory or each file is flagged
//	a file is stale             it is opened once more, by its path
//	a file cannot be read       it is a problem; the last good copy is carried forward, flagged
//	xattrs cannot be read       they are a problem; those of the last snapshot stay, flagged
//	this machine is short of    the batch is handed back
//	memory or descriptors
//	the store refuses writes    all batches are handed back within seconds, and uploads end
//	the store refuses the       the same; no pack counts as lost
//	credentials
//	the store lacks a pack      the part of its content that is read is stored again; a warning
//	                            names the pack
package read
