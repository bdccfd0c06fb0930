// Package listing implements the page format and the computations on pages: the order of entries,
// the division of a directory into pages, the fingerprint that shows whether a page changed, the
// encoding that the index stores, patches from one version of a page to the next, and the
// comparison that takes over the content of unchanged files from the previous snapshot. The package
// does no I/O. docs/formats/listing.md describes the bytes.
package listing
