package entindex

import (
	"context"
	"fmt"
	"iter"
	"time"

	entsql "entgo.io/ent/dialect/sql"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/listing"
)

// LastCommits implements index.Committing.
func (x *Index) LastCommits(ctx context.Context, id backup.ShardID) (index.LastCommits, error) {
	row, err := x.Backend.Client().Shard.Query().Where(shard.ID(int64(id))).Only(ctx)
	if err != nil {
		return index.LastCommits{}, x.Backend.Wrap(orNotFound(err, "shard %d", id))
	}
	var stale int64
	err = x.query(ctx, countStale, []any{int64(id)}, func(scan func(...any) error) error { return scan(&stale) })
	return index.LastCommits{
		Good: backup.SnapshotNumber(row.LastGoodNumber), Files: row.LastGoodFiles, Bytes: row.LastGoodBytes,
		CheckpointBytes: row.CheckpointBytes, SegmentBytes: row.SegmentBytes, Stale: stale > 0,
	}, err
}

// Changes implements index.Committing.
func (x *Index) Changes(ctx context.Context, id backup.SnapshotID) iter.Seq2[index.Change, error] {
	return func(yield func(index.Change, error) bool) {
		shard, number, err := x.notFailed(ctx, id)
		if err != nil {
			yield(index.Change{}, err)
			return
		}
		if yieldChanges(x.Backend.Begun(ctx, shard, number), false, yield) {
			yieldChanges(x.Backend.Ended(ctx, shard, number), true, yield)
		}
	}
}

// AllPages implements index.Committing.
func (x *Index) AllPages(ctx context.Context, id backup.SnapshotID) iter.Seq2[index.Change, error] {
	return func(yield func(index.Change, error) bool) {
		shard, number, err := x.notFailed(ctx, id)
		if err != nil {
			yield(index.Change{}, err)
			return
		}
		yieldChanges(x.subtree(ctx, shard, number, ""), false, yield)
	}
}

// notFailed returns the shard and the number of a snapshot that has not failed.
func (x *Index) notFailed(ctx context.Context, id backup.SnapshotID) (backup.ShardID, backup.SnapshotNumber, error) {
	s, err := x.Backend.Client().Snapshot.Get(ctx, uuid.UUID(id))
	if err != nil {
		return 0, 0, x.notFound(err, id)
	}
	if s.State == string(backup.Failed) {
		return 0, 0, fmt.Errorf("snapshot %s has failed: %w", id, backup.ErrNotFound)
	}
	return backup.ShardID(s.ShardID), backup.SnapshotNumber(s.Number), nil
}

// yieldChanges yields rows as the changes of a segment, and reports whether the consumer took all
// of them.
func yieldChanges(rows iter.Seq2[PageRow, error], ended bool, yield func(index.Change, error) bool) bool {
	for row, err := range rows {
		c, err := row.change(ended, err)
		if ended {
			c.PageVersion = backup.PageVersion{Path: c.Path, Key: c.Key}
		}
		if !yield(c, err) || err != nil {
			return false
		}
	}
	return true
}

// change returns the row as a change, unless reading it has failed.
func (p *PageRow) change(ended bool, err error) (index.Change, error) {
	c := index.Change{Ended: ended, Digest: p.Digest}
	if err == nil {
		c.PageVersion, err = p.version()
	}
	if err == nil && p.Replaces != nil {
		old := backup.PageVersion{Path: c.Path, Key: c.Key, Fingerprint: p.Replaces.Fingerprint, Inode: p.Replaces.Inode, Listing: p.Replaces.Listing}
		if listing.Digest(&old) == p.Replaces.Digest { // a damaged one differs from the store's
			c.Replaces = old.Listing
		}
	}
	return c, err
}

// isUnrecorded is a literal, so that the planner can use the index of such snapshots.
const isUnrecorded = "ended IS NOT NULL AND NOT recorded"

// Unrecorded implements index.Committing.
func (x *Index) Unrecorded(ctx context.Context, only []backup.SnapshotID, limit int) ([]backup.Snapshot, error) {
	query := x.Backend.Client().Snapshot.Query().Where(func(s *entsql.Selector) { s.Where(entsql.ExprP(isUnrecorded)) }).
		WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).
		Order(snapshot.BySortTime(), snapshot.ByShardID(), snapshot.ByNumber()).Limit(limit)
	if only != nil {
		query.Where(snapshot.IDIn(uuids(only)...))
	}
	return x.allOf(ctx, query)
}

// Recorded implements index.Committing. It need not be durable, because the same record can be put
// again. A running snapshot has no record yet.
func (x *Index) Recorded(ctx context.Context, id backup.SnapshotID) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		return tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(id)), snapshot.StateNEQ(string(backup.Running))).SetRecorded(true).Exec(ctx)
	})
}

// WrittenCatalog implements index.Committing.
func (x *Index) WrittenCatalog(ctx context.Context) (c index.WrittenCatalog, err error) {
	err = x.query(ctx, "SELECT sequence, digest, written, deletions FROM catalogs ORDER BY sequence DESC LIMIT 1", nil, func(scan func(...any) error) error {
		var digest []byte
		var written int64
		err := scan(&c.Sequence, &digest, &written, &c.Deletions)
		copy(c.Digest[:], digest)
		c.Written = time.UnixMicro(written).UTC()
		return err
	})
	return c, err
}

// CatalogWritten implements index.Committing.
func (x *Index) CatalogWritten(ctx context.Context, c index.WrittenCatalog) error {
	return x.exec(ctx, Durable, "INSERT INTO catalogs (sequence, digest, written, deletions) VALUES ($1, $2, $3, $4) ON CONFLICT (sequence) DO NOTHING",
		c.Sequence, c.Digest[:], c.Written.UnixMicro(), c.Deletions)
}

const nextCatalog = `UPDATE catalog_numbers SET last = CASE WHEN last < $1 THEN $1 ELSE last END + 1 RETURNING last`

// NextCatalog implements index.Committing. It is durable, because the object is written after it.
func (x *Index) NextCatalog(ctx context.Context, newest int64) (next int64, err error) {
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		return tx.Each(ctx, nextCatalog, []any{newest}, func(scan func(...any) error) error { return scan(&next) })
	})
	return next, err
}

// Catalogs implements index.Pruning.
func (x *Index) Catalogs(ctx context.Context) (sequences []int64, err error) {
	err = x.query(ctx, "SELECT sequence FROM catalogs ORDER BY sequence", nil, func(scan func(...any) error) error {
		var sequence int64
		err := scan(&sequence)
		sequences = append(sequences, sequence)
		return err
	})
	return sequences, err
}

// DropCatalogs implements index.Pruning.
func (x *Index) DropCatalogs(ctx context.Context, before int64) error {
	return x.exec(ctx, Relaxed, "DELETE FROM catalogs WHERE sequence < $1 AND sequence < (SELECT max(c.sequence) FROM catalogs c)", before)
}
