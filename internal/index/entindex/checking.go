package entindex

import (
	"context"
	"iter"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Versions implements index.Checking.
func (x *Index) Versions(ctx context.Context, shard backup.ShardID, needed []backup.SnapshotNumber, share index.Share) iter.Seq2[index.Version, error] {
	return sequence(func(yield func(index.Version) error) error {
		return x.Backend.EachVersion(ctx, shard, needed, share, yield)
	})
}

// Locations implements index.Checking.
func (x *Index) Locations(ctx context.Context, rows []int64) iter.Seq2[index.ChunkLocation, error] {
	return sequence(func(yield func(index.ChunkLocation) error) error { return x.Backend.EachLocation(ctx, rows, yield) })
}
