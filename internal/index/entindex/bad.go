package entindex

import (
	"context"
	"fmt"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// SetBad implements index.Catalog. It locks the row of the shard. A commit of the shard locks that
// row, too, so one waits for the other.
func (x *Index) SetBad(ctx context.Context, id backup.SnapshotID, by, reason string) error {
	if err := checkReason(by, reason); err != nil {
		return err
	}
	found, err := x.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		of, err := tx.lockShard(ctx, found.Shard.ID)
		if err != nil {
			return err
		}
		n, err := tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(id)), snapshot.State(string(backup.Committed)), snapshot.ForgottenIsNil()).SetBad(reason).Save(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("committed snapshot %s: %w", id, backup.ErrNotFound)
		}
		if err := tx.findLastGood(ctx, of); err != nil {
			return err
		}
		action := actionMarkBad
		if reason == "" {
			action = actionMarkGood
		}
		return tx.writeLog(ctx, by, action, id.String(), reason)
	})
}

// findLastGood makes the newest good snapshot of a shard its last good one. If that changes it, the
// shard is planned again: its deadline was derived from a snapshot that no longer counts.
func (tx *Tx) findLastGood(ctx context.Context, of *ent.Shard) error {
	good, err := tx.Snapshot.Query().Where(snapshot.ShardID(of.ID), snapshot.State(string(backup.Committed)), snapshot.ForgottenIsNil(), snapshot.Bad("")).
		Order(snapshot.ByNumber(entsql.OrderDesc())).Limit(1).
		Select(snapshot.FieldID, snapshot.FieldNumber, snapshot.FieldStarted, snapshot.FieldFiles, snapshot.FieldBytes).All(ctx)
	if err != nil {
		return err
	}
	update := tx.Shard.UpdateOneID(of.ID).SetDue(0).SetDeadline(0)
	switch {
	case len(good) == 0:
		update.ClearLastGood().ClearLastGoodStarted().SetLastGoodNumber(0).SetLastGoodFiles(0).SetLastGoodBytes(0)
	case of.LastGood != nil && *of.LastGood == good[0].ID:
		return nil
	default:
		s := good[0]
		update.SetLastGood(s.ID).SetLastGoodNumber(s.Number).SetLastGoodStarted(s.Started).SetLastGoodFiles(s.Files).SetLastGoodBytes(s.Bytes)
	}
	if err := update.Exec(ctx); err != nil {
		return err
	}
	return tx.tellSnapshot(ctx)
}

// BadSnapshots implements index.Committing.
func (x *Index) BadSnapshots(ctx context.Context) (map[backup.SnapshotID]string, error) {
	rows, err := x.Backend.Client().Snapshot.Query().Where(snapshot.BadNEQ("")).Select(snapshot.FieldID, snapshot.FieldBad).All(ctx)
	bad := make(map[backup.SnapshotID]string, len(rows))
	for _, row := range rows {
		bad[backup.SnapshotID(row.ID)] = row.Bad
	}
	return bad, x.Backend.Wrap(err)
}
