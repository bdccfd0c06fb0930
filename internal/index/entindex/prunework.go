package entindex

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Each number comes from a short table or an index. A plan has no bytes: nothing was condemned for
// it. A pack that is locked waits for that, and not for a pruner.
const selectPruneWork = `
SELECT
    CAST((SELECT coalesce(sum(last_number), 0) FROM shards) AS bigint) - (SELECT count(*) FROM snapshots WHERE state = 'running'),
    (SELECT count(*) FROM snapshots WHERE forgotten IS NOT NULL),
    (SELECT coalesce(max(time), 0) FROM confirmations),
    (SELECT count(*) FROM readings r JOIN snapshots s ON s.id = r.snapshot WHERE r.until > $1 AND s.forgotten IS NOT NULL),
    CAST((SELECT coalesce(sum(id), 0) FROM shards WHERE retired) AS bigint) + CAST((SELECT coalesce(sum(id), 0) FROM filers WHERE retired) AS bigint),
    (SELECT count(*) FROM shards WHERE interrupted),
    coalesce((SELECT state FROM prunes ORDER BY id DESC LIMIT 1), ''),
    coalesce((SELECT kept_bytes FROM prunes ORDER BY id DESC LIMIT 1), 0),
    coalesce((SELECT unused_bytes FROM prunes ORDER BY id DESC LIMIT 1), 0),
    (SELECT count(*) FROM packs WHERE condemned AND NOT gone),
    (SELECT coalesce(min(CASE WHEN locked_until > condemned_at AND locked_until > deleted THEN locked_until WHEN condemned_at = 0 THEN deleted ELSE condemned_at END), 0)
     FROM packs WHERE condemned AND NOT gone AND stored_bytes > 0 AND locked_until < $1),
    (SELECT count(*) FROM packs WHERE condemned AND gone),
    (SELECT coalesce(min(deleted), 0) FROM packs WHERE condemned AND gone)`

// PruneWork implements index.PruneReports.
func (x *Index) PruneWork(ctx context.Context) (w index.PruneWork, err error) {
	if w.Now, err = x.Backend.Clock(ctx); err != nil {
		return w, err
	}
	err = x.query(ctx, selectPruneWork, []any{w.Now.UnixMicro()}, func(scan func(...any) error) error {
		var condemned, rows int64
		err := scan(&w.State.Ended, &w.State.Forgotten, &w.State.Confirmed, &w.State.Readings, &w.State.Retired, &w.State.Interrupted,
			&w.Done, &w.Kept, &w.Unused, &w.Condemned, &condemned, &w.Rows, &rows)
		if condemned != 0 {
			w.CondemnedSince = fromMicros(condemned)
		}
		if rows != 0 {
			w.RowsSince = fromMicros(rows)
		}
		return err
	})
	return w, err
}

// ForgottenIDs implements index.Committing.
func (x *Index) ForgottenIDs(ctx context.Context) (ids []backup.SnapshotID, err error) {
	err = x.query(ctx, `SELECT id FROM snapshots WHERE forgotten IS NOT NULL ORDER BY id`, nil, func(scan func(...any) error) error {
		var id uuid.UUID
		err := scan(&id)
		ids = append(ids, backup.SnapshotID(id))
		return err
	})
	return ids, err
}

// prunesLast is how long prunes that freed something are listed.
const prunesLast = 400 * 24 * time.Hour

const (
	dropOldPrunes = `DELETE FROM prunes WHERE ended < $1 OR packs = 0 AND freed_bytes = 0 AND snapshots = 0`
	insertPrune   = `
INSERT INTO prunes (ended, took, packs, deleted_bytes, freed_bytes, copied_bytes, snapshots, state, kept_bytes, unused_bytes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	selectPrunes = `
SELECT ended, took, packs, deleted_bytes, freed_bytes, copied_bytes, snapshots, state, kept_bytes, unused_bytes FROM prunes ORDER BY id`
)

// NotePrune implements index.Pruning.
func (x *Index) NotePrune(ctx context.Context, t index.Term, p index.Prune) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		now, err := tx.at(ctx, time.Time{})
		if err != nil {
			return err
		}
		if err := tx.exec(ctx, dropOldPrunes, now.Add(-prunesLast).UnixMicro()); err != nil {
			return err
		}
		return tx.exec(ctx, insertPrune, now.UnixMicro(), p.Took.Microseconds(), p.Packs, p.Bytes, p.Freed, p.Copied, p.Snapshots,
			p.State, p.Kept, p.Unused)
	})
}

// Prunes implements index.PruneReports.
func (x *Index) Prunes(ctx context.Context) (prunes []index.Prune, err error) {
	err = x.query(ctx, selectPrunes, nil, func(scan func(...any) error) error {
		var p index.Prune
		var ended, took int64
		err := scan(&ended, &took, &p.Packs, &p.Bytes, &p.Freed, &p.Copied, &p.Snapshots, &p.State, &p.Kept, &p.Unused)
		p.Ended, p.Took = fromMicros(ended), time.Duration(took)*time.Microsecond
		prunes = append(prunes, p)
		return err
	})
	return prunes, err
}
