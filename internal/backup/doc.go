// Package backup defines the nouns of bctl: what is backed up (filers, shards, entries), what a
// backup consists of (snapshots, pages, chunks, packs), the identifiers of these, and the errors
// that all parts of the system share.
//
// It imports only the standard library, and every other package may import it. It does no I/O.
// Package flow describes how data moves through the system.
package backup
