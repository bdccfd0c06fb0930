package entindex

import (
	"context"
	"fmt"
	"slices"

	"entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// RequestCancel implements index.Catalog. The first reason stays.
func (x *Index) RequestCancel(ctx context.Context, id backup.SnapshotID, reason string) error {
	reason = text(reason, maxErrorBytes)
	if reason == "" {
		reason = "cancelled"
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		row, err := tx.lockSnapshot(ctx, id, true)
		switch {
		case err != nil:
			return err
		case row.State != string(backup.Running):
			return fmt.Errorf("running snapshot %s: %w", id, backup.ErrNotFound)
		case row.Cancel != "":
			return nil
		}
		return tx.Snapshot.UpdateOneID(row.ID).SetCancel(reason).Exec(ctx)
	})
}

// Cancelled implements index.Committing.
func (x *Index) Cancelled(ctx context.Context, only []backup.SnapshotID) ([]backup.Snapshot, error) {
	query := x.Backend.Client().Snapshot.Query().
		Where(func(s *sql.Selector) { s.Where(sql.ExprP(isRunning + " AND cancel <> ''")) }).
		WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).Order(snapshot.ByFilerID(), snapshot.ByID())
	if only != nil {
		query.Where(snapshot.IDIn(uuids(only)...))
	}
	rows, err := query.All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	list := make([]backup.Snapshot, len(rows))
	for i, row := range rows {
		list[i] = toSnapshot(row)
	}
	return list, nil
}

// basesAtOnce keeps a condition below what SQLite takes: a depth of 1,000.
const basesAtOnce = 500

// BaseCounts implements index.Catalog.
func (x *Index) BaseCounts(ctx context.Context, ids []backup.SnapshotID) (map[backup.SnapshotID]backup.Counts, error) {
	counts := make(map[backup.SnapshotID]backup.Counts, len(ids))
	for group := range slices.Chunk(ids, basesAtOnce) {
		if err := x.addBaseCounts(ctx, uuids(group), counts); err != nil {
			return nil, x.Backend.Wrap(err)
		}
	}
	return counts, nil
}

func (x *Index) addBaseCounts(ctx context.Context, ids []uuid.UUID, counts map[backup.SnapshotID]backup.Counts) error {
	client := x.Backend.Client()
	rows, err := client.Snapshot.Query().Where(snapshot.IDIn(ids...), snapshot.BaseGT(0)).
		Select(snapshot.FieldID, snapshot.FieldShardID, snapshot.FieldBase).All(ctx)
	if err != nil || len(rows) == 0 {
		return err
	}
	type key struct{ shard, number int64 }
	based := make(map[key][]uuid.UUID, len(rows))
	var bases []*sql.Predicate
	for _, row := range rows {
		k := key{row.ShardID, row.Base}
		if based[k] == nil {
			bases = append(bases, sql.And(sql.EQ(snapshot.FieldShardID, k.shard), sql.EQ(snapshot.FieldNumber, k.number)))
		}
		based[k] = append(based[k], row.ID)
	}
	found, err := client.Snapshot.Query().Where(func(s *sql.Selector) { s.Where(sql.Or(bases...)) }).All(ctx)
	for _, row := range found {
		for _, id := range based[key{row.ShardID, row.Number}] {
			counts[backup.SnapshotID(id)] = countsOf(row)
		}
	}
	return err
}
