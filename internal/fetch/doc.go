// Package fetch gets chunks out of packs, many at a time.
//
// # The way of a chunk
//
// Get locates all the chunks it is asked for in one call to the index, sorts
// them by pack and frame, reads each pack's needed frames in large ranges
// (neighbours, and those with a small gap between them, in one read), opens
// and decompresses each frame once however many chunks of it are wanted, and
// hands every chunk to its Sink.
//
// # What is verified
//
// Each frame's AEAD, each chunk's keyed BLAKE3 against the pack's chunk table,
// and the table's hash against the id that was asked for. A Sink never sees a
// byte that is not what was backed up.
//
// # What fails
//
//   - A pack that is gone or damaged, a frame or a chunk that does not verify:
//     the chunks concerned are taken from other packs that have them.
//   - A chunk that no pack serves: Sink.Fail, and the rest goes on.
//   - An index or store that cannot be reached, a wrong identity, an ended
//     context: Get returns the error. Sinks that were told nothing get nothing more.
//
// # Memory
//
// A Fetcher has at most Concurrency ranges in hand, each of at most
// maxRangeBytes as stored (or one frame) and one frame of plaintext, however
// many Gets run; and the tables of maxReaders packs.
package fetch
