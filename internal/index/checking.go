package index

import (
	"context"
	"iter"

	"github.com/bctl/bctl/internal/backup"
)

// Checking is the part of the index that is read to find damage.
type Checking interface {
	// Versions yields the versions of a share of the shard's pages that one of the snapshots in
	// needed has, an element of Pruning.Needed, all as of one moment, in no particular order. A
	// version is as its row is, even if that is damaged. Its listing is valid until the next one.
	// Checks are fastest if the versions of a page follow one another, as they do in SQLite.
	Versions(ctx context.Context, shard backup.ShardID, needed []backup.SnapshotNumber, share Share) iter.Seq2[Version, error]
	// Locations is Pruning.Places with the position of each chunk in its frame.
	Locations(ctx context.Context, rows []int64) iter.Seq2[ChunkLocation, error]
}

// A Share is the directories of a shard whose ids are in the range N of Of ranges of the same size,
// of which there are at most 256. So several can read a shard at the same time. The zero Share is
// all directories.
type Share struct{ N, Of int }

// A Version is a version of a page, and the snapshots that have it.
type Version struct {
	Directory   backup.DirectoryID
	PathKey     []byte
	Key         backup.PageKey
	Fingerprint backup.Fingerprint
	Inode       uint64
	Digest      backup.PageDigest
	Listing     []byte
	First, Last backup.SnapshotNumber // Last of an open version: math.MaxInt64
}

// A ChunkLocation is a place of a chunk in a pack.
type ChunkLocation struct {
	PlaceOf
	Start, Length uint32 // as of Location
}
