package entindex

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// SetChurn implements index.Committing.
func (x *Index) SetChurn(ctx context.Context, id backup.SnapshotID, score int64, alarm string) error {
	if score < 0 || len(alarm) > maxErrorBytes {
		return invalid("score %d, alarm of %d bytes", score, len(alarm))
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		n, err := tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(id)), running()).SetChurnScore(score).SetAlarm(alarm).Save(ctx)
		if err == nil && n == 0 {
			err = fmt.Errorf("running snapshot %s: %w", id, backup.ErrNotFound)
		}
		return err
	})
}

// Holds of alarms are those of operators, for whom bctl has put the shard on hold.
const (
	alarmBy    = "bctl"
	insertHeld = `
INSERT INTO holds (shard, reason, by, since, alarm)
SELECT $1, $2, $3, {now}, $4 WHERE NOT EXISTS (SELECT 1 FROM holds WHERE shard = $1 AND alarm IS NOT NULL)
RETURNING ` + holdColumns
)

// raiseAlarm puts the shard of a snapshot that has an alarm on hold. While an earlier alarm of the
// shard is open, the shard is on hold already.
func (tx *Tx) raiseAlarm(ctx context.Context, row *ent.Snapshot) error {
	if row.Alarm == "" {
		return nil
	}
	added, err := listOf(ctx, tx.Each, insertHeld, []any{row.ShardID, row.Alarm, alarmBy, row.ID}, readHold)
	if err != nil || len(added) == 0 {
		return err
	}
	return tx.writeLog(ctx, alarmBy, actionHold, holdSubject(&added[0]), row.Alarm)
}
