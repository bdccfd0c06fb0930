// Package backup holds the nouns of bctl: what is backed up (filers, shards,
// entries), what a backup is made of (snapshots, pages, chunks, packs), the
// names that these have, and the errors that every part of the system shares.
//
// It imports the standard library only, and everything else may import it. It
// does no I/O. The way of the data through the system is in package flow.
package backup
