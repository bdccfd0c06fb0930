package index

import (
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// DirectoryIDOf returns the name that the index has for the directory of this
// path: the first 128 bits of the path's BLAKE3.
func DirectoryIDOf(path string) backup.DirectoryID {
	sum := blake3.Sum256([]byte(path))
	return backup.DirectoryID(sum[:16])
}

// The most that one thing in a message may come to. What is above is refused
// with backup.ErrInvalid.
const (
	MaxPathBytes    = 64 << 10 // a path within a shard
	MaxListingBytes = 4 << 20  // an encoded page
	MaxParts        = 4096     // parts of a SliceWalked
	MaxReliesOn     = 64 << 10 // packs of a BatchStored
	MaxChunks       = 1 << 20  // chunks of a PackStored
)
