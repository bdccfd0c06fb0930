// Package live compares a snapshot with its source as it is now. A walk of the source finds the
// pages that differ from the snapshot's, as for a backup, and package diff compares these as if
// they were a snapshot.
//
// # Files
//
//	found.go    collects what the walk finds, and shows it as the pages of a snapshot
//	sorter.go   sorts pages, in a file if there are many
//	pagefile.go sorted pages in a file
//	files.go    reads what a walk does not read, of entries that may differ
//	content.go  names the content of a file as a reader does
package live
