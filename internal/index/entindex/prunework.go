package entindex

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Removing a forgotten snapshot changes nothing here, as it leaves nothing to delete.
const (
	selectPruneWork = `
SELECT coalesce(CAST(max(forgotten) AS text), ''), coalesce(CAST(max(ended) AS text), '') FROM snapshots`
	selectConfirmed = `SELECT CAST(coalesce(max(time), 0) AS text) FROM confirmations`
	// A pack that is locked waits for that, and not for a pruner.
	oldestDeleting = `
SELECT coalesce(min(CASE WHEN deleted > locked_until THEN deleted ELSE locked_until END), 0) FROM packs
WHERE deleted <> 0 AND locked_until < $1`
)

// PruneWork implements index.Pruning.
func (x *Index) PruneWork(ctx context.Context) (w index.PruneWork, err error) {
	if w.Now, err = x.Backend.Clock(ctx); err != nil {
		return w, err
	}
	err = x.query(ctx, selectPruneWork, nil, func(scan func(...any) error) error { return scan(&w.Forgotten, &w.Ended) })
	if err != nil {
		return w, err
	}
	err = x.query(ctx, selectConfirmed, nil, func(scan func(...any) error) error { return scan(&w.Confirmed) })
	if err != nil {
		return w, err
	}
	err = x.query(ctx, oldestDeleting, []any{w.Now.UnixMicro()}, func(scan func(...any) error) error {
		var at int64
		err := scan(&at)
		if at != 0 {
			w.Deleting = fromMicros(at)
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
INSERT INTO prunes (ended, took, packs, deleted_bytes, freed_bytes, copied_bytes, snapshots) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	selectPrunes = `SELECT ended, took, packs, deleted_bytes, freed_bytes, copied_bytes, snapshots FROM prunes ORDER BY id`
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
		return tx.exec(ctx, insertPrune, now.UnixMicro(), p.Took.Microseconds(), p.Packs, p.Bytes, p.Freed, p.Copied, p.Snapshots)
	})
}

// Prunes implements index.Pruning.
func (x *Index) Prunes(ctx context.Context) (prunes []index.Prune, err error) {
	err = x.query(ctx, selectPrunes, nil, func(scan func(...any) error) error {
		var p index.Prune
		var ended, took int64
		err := scan(&ended, &took, &p.Packs, &p.Bytes, &p.Freed, &p.Copied, &p.Snapshots)
		p.Ended, p.Took = fromMicros(ended), time.Duration(took)*time.Microsecond
		prunes = append(prunes, p)
		return err
	})
	return prunes, err
}
