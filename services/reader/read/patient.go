package read

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
)

// indexRetryFor is how long a query is repeated while the index does not answer, before the batch
// fails. It equals the default time for which the store's client retries.
const indexRetryFor = 10 * time.Minute

// A patient index repeats queries while the index does not answer. A batch may have been read for
// minutes when it asks the index where its chunks are: an outage that is over when the batch is
// complete must not cost what was read.
type patient struct {
	Index
	svc *Service
}

// patiently calls ask until the index answers. Errors of an index that answers are returned at
// once.
func patiently[T any](ctx context.Context, s *Service, ask func() (T, error)) (T, error) {
	began := time.Now()
	for {
		answer, err := ask()
		switch {
		case !errors.Is(err, backup.IndexAway) || time.Since(began) >= indexRetryFor:
			return answer, err
		case ctx.Err() != nil: // the cause of the failure
			return answer, ctx.Err()
		}
		s.waits(err)
		loop.Pause(ctx, retryDelay)
	}
}

// waits reports that batches wait for the index.
func (s *Service) waits(err error) {
	if s.opts.OnRetry != nil {
		s.opts.OnRetry(err)
		return
	}
	s.opts.Log.Warn("the index does not answer; read batches wait for it", "error", err)
}

// Locate implements index.Dedup.
func (p patient) Locate(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	return patiently(ctx, p.svc, func() ([]index.Location, error) { return p.Index.Locate(ctx, ids) })
}

// LocateCopies implements index.Dedup.
func (p patient) LocateCopies(ctx context.Context, ids []backup.ChunkID) ([][]index.Location, error) {
	return patiently(ctx, p.svc, func() ([][]index.Location, error) { return p.Index.LocateCopies(ctx, ids) })
}

// Listings implements index.Walking.
func (p patient) Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error) {
	return patiently(ctx, p.svc, func() ([][]byte, error) { return p.Index.Listings(ctx, shard, base, pages) })
}

// PageKeys implements index.Walking.
func (p patient) PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error) {
	return patiently(ctx, p.svc, func() ([]backup.PageKey, error) { return p.Index.PageKeys(ctx, shard, base, path) })
}

// DirectoryByInode implements index.Walking.
func (p patient) DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (path string, ok bool, err error) {
	path, err = patiently(ctx, p.svc, func() (path string, err error) {
		path, ok, err = p.Index.DirectoryByInode(ctx, shard, base, inode)
		return path, err
	})
	return path, ok, err
}
