// Package diff finds what changed between two snapshots of a shard. It reads the versions of pages
// that only one of the two has, so that its cost is in proportion to the change.
//
// # Files
//
//	diff.go        the changes, in order
//	directories.go merges what was added and what was ended, directory by directory
//	moves.go       recognizes moved directories and files
//	compare.go     compares entries
//	content.go     says how two entries differ
package diff
