package entindex

import (
	"context"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
)

const (
	insertDrill = `
INSERT INTO drills (id, shard, snapshot, started, passed, report, signature) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO NOTHING`
	trimDrills = `
DELETE FROM drills WHERE shard = $1
    AND id NOT IN (SELECT id FROM drills WHERE shard = $1 ORDER BY started DESC, id DESC LIMIT $2)
    AND NOT (passed AND started = (SELECT max(started) FROM drills WHERE shard = $1 AND passed))`
	selectDrills = `
SELECT id, shard, snapshot, started, passed, report, signature FROM drills
WHERE $1 = 0 OR shard = $1 ORDER BY started, id`
	selectShardDrills = `
SELECT shard, max(CASE WHEN passed THEN started ELSE 0 END), max(started) FROM drills GROUP BY shard`
)

// AddDrill implements index.Drilling.
func (x *Index) AddDrill(ctx context.Context, d index.Drill) error {
	if len(d.Report) == 0 || len(d.Report) > index.MaxDrillReportBytes || len(d.Signature) != seal.SignatureBytes || d.Started.IsZero() {
		return invalid("drill %s with a report of %d bytes and a signature of %d", d.ID, len(d.Report), len(d.Signature))
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if _, err := tx.lockShard(ctx, d.Shard); err != nil {
			return err
		}
		err := tx.exec(ctx, insertDrill, uuid.UUID(d.ID), int64(d.Shard), uuid.UUID(d.Snapshot), d.Started.UnixMicro(), d.Passed, d.Report, d.Signature)
		if err == nil {
			err = tx.exec(ctx, trimDrills, int64(d.Shard), index.KeptDrills)
		}
		return err
	})
}

// Drills implements index.Drilling.
func (x *Index) Drills(ctx context.Context, of backup.ShardID) ([]index.Drill, error) {
	return listOf(ctx, x.query, selectDrills, []any{int64(of)}, func(scan func(...any) error) (d index.Drill, err error) {
		var id, snapshot uuid.UUID
		var started int64
		err = scan(&id, &d.Shard, &snapshot, &started, &d.Passed, &d.Report, &d.Signature)
		d.ID, d.Snapshot, d.Started = backup.DrillID(id), backup.SnapshotID(snapshot), fromMicros(started)
		return d, err
	})
}

// shardDrills returns the newest drills of each shard.
func (x *Index) shardDrills(ctx context.Context) (map[int64]index.ShardDrills, error) {
	found := map[int64]index.ShardDrills{}
	err := x.query(ctx, selectShardDrills, nil, func(scan func(...any) error) error {
		var shard, passed, newest int64
		err := scan(&shard, &passed, &newest)
		found[shard] = index.ShardDrills{Passed: fromMicros(passed), Newest: fromMicros(newest)}
		return err
	})
	return found, err
}
