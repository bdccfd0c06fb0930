// Package fetch gets chunks out of packs, many at a time. The files follow the data:
//
//	fetch.go      finds the packs of the requested chunks, and works on several packs at a time
//	readers.go    opens packs, reads their tables, and keeps these for further requests
//	pack.go       reads ranges of frames, decodes them, and passes each chunk to its Sink
//	elsewhere.go  tries further packs for chunks that a pack does not provide
//	refs.go       follows the list chunks of a large file to its chunks
//
// # Path of a chunk
//
// Get locates all requested chunks in one call to the index, sorts them by pack and frame, and
// reads each pack's needed frames in large ranges (adjacent frames, and those with a small gap
// between them, in one read). It opens and decompresses each frame once, no matter how many of its
// chunks are wanted, and passes each chunk to its Sink. Before that, it passes the whole frame to
// Options.Frame, for users that may want its other chunks later.
//
// # Verification
//
// Each frame's AEAD, each chunk's keyed BLAKE3 against the pack's chunk table, and the table's hash
// against the requested id are verified. A Sink never receives a byte that differs from what was
// backed up.
//
// # Failures
//
//   - If a pack is gone or damaged, or a frame or a chunk does not verify, the chunks concerned are
//     taken from other packs that have them.
//   - If no pack provides a chunk, Sink.Fail is called, and the other chunks continue.
//   - If the index or store cannot be reached, the store refuses the credentials, the identity is
//     wrong, or the context has ended, Get returns the error, and calls no more Sinks.
//
// # Memory
//
// A Fetcher holds at most Concurrency ranges, each of at most maxRangeBytes as stored (or one
// frame) and one frame of plaintext, no matter how many Gets run, and the tables of maxReaders
// packs.
package fetch
