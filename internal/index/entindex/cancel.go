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

// RequestCancel implements index.Catalog. The first reason is kept.
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
	return x.allOf(ctx, query)
}

// basesAtOnce bounds the list of parameters of one statement.
const basesAtOnce = 1000

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
	for _, row := range rows {
		k := key{row.ShardID, row.Base}
		based[k] = append(based[k], row.ID)
	}
	// With a join, the planner goes from one index to the other. It would evaluate a list of pairs
	// one by one.
	found, err := client.Snapshot.Query().Where(func(s *sql.Selector) {
		of := sql.Table(snapshot.Table).As("of")
		s.Join(of).OnP(sql.And(
			sql.ColumnsEQ(of.C(snapshot.FieldShardID), s.C(snapshot.FieldShardID)),
			sql.ColumnsEQ(of.C(snapshot.FieldBase), s.C(snapshot.FieldNumber)),
		))
		list := make([]any, len(ids))
		for i, id := range ids {
			list[i] = id
		}
		s.Where(sql.In(of.C(snapshot.FieldID), list...))
	}).All(ctx)
	for _, row := range found {
		for _, id := range based[key{row.ShardID, row.Number}] {
			counts[backup.SnapshotID(id)] = countsOf(row)
		}
	}
	return err
}
