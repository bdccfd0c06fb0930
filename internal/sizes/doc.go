// Package sizes adds up the files of snapshots by directory, owner, extension or size class, or
// lists the largest ones. It reads only the index.
//
// It reads the pages of a snapshot once, in the order of the index. As many goroutines decode them
// as there are processors. Memory is bounded: of all groups, the largest are kept, and the others
// become one sum.
//
// # Files
//
//	sizes.go   options and results
//	read.go    reads and decodes the pages
//	worker.go  adds up the pages that one goroutine decodes
//	groups.go  the groups, and the largest of them
package sizes
