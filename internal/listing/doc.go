// Package listing is the page format and what is computed from it: the order
// of entries, the cut of a directory into pages, the fingerprint that tells
// whether a page changed, the encoding that the index stores, and the
// comparison that takes the content of unchanged files over from the snapshot
// before. It does no I/O. docs/formats/listing.md has the bytes.
package listing
