// Package chunk says where the content of a file is cut into chunks, and how a
// chunk is named. It is pure: bytes in, lengths and hashes out.
//
// A file of at most WholeFileBytes is one chunk. A longer one is cut by its
// content (a Cutter), so that a byte inserted near its beginning moves the
// boundaries with the data, and the chunks behind it keep their names.
//
// What a page has no room for is chunks too: list chunks and xattr chunks
// (package listing) are named as data is, and are not cut.
//
// Both the names and the boundaries depend on the repository's dedup key: the
// store's owner can neither recognise a chunk that he knows by its name, nor a
// file by the lengths of its chunks without breaking the cutter's key first.
// docs/formats/chunking.md says what that is worth.
package chunk
