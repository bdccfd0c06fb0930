// Package chunk determines where the content of a file is cut into chunks, and how chunks are
// named. It is pure: bytes in, lengths and hashes out.
//
// A file of at most WholeFileBytes is one chunk. A Cutter cuts longer files by their content: a
// byte that is inserted near the beginning moves the boundaries with the data, and the chunks
// behind it keep their names.
//
// List chunks and xattr chunks (package listing) contain what does not fit into a page. They are
// named as data chunks are, and are not cut.
//
// Names and boundaries depend on the repository's dedup key. Without it, the owner of the store can
// recognize neither a known chunk by its name nor, unless they break the cutter's key, a file by
// the lengths of its chunks. docs/formats/chunking.md describes how much protection that is.
package chunk
