// Package sizes adds up what is in snapshots: by directory, owner, extension or size class, or
// file by file. It reads only the index.
//
// The pages of a snapshot are read once, in the order of the index, and decoded by as many
// goroutines as there are processors. Memory is bounded: of all groups, the largest are kept, and
// the others are one sum.
//
// # Files
//
//	sizes.go   the sums and what they are asked for
//	read.go    reads and decodes the pages
//	worker.go  adds up the pages that one goroutine decodes
//	groups.go  the groups, and the largest of them
package sizes
