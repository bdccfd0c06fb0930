package entindex

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	selectLocks = `SELECT name, locked_until FROM object_locks`
	// A stale record that was never amended has sequence 0, and is omitted: its base is that of the
	// snapshot.
	selectAmendments = `SELECT snapshot, sequence, base FROM amendments WHERE sequence > 0`
	newestCatalog    = `SELECT coalesce(max(sequence), 0) FROM catalogs`
	notePackLock     = `UPDATE packs SET locked_until = $2 WHERE locked_until < $2 AND {id in $1}`
	lockObject       = `
INSERT INTO object_locks (name, locked_until) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET locked_until = excluded.locked_until WHERE object_locks.locked_until < excluded.locked_until`
	dropLock = `DELETE FROM object_locks WHERE name = $1`
)

// Locks implements index.Locking.
func (x *Index) Locks(ctx context.Context) (l index.Locks, err error) {
	if l.Now, err = x.Backend.Clock(ctx); err != nil {
		return l, err
	}
	l.Until = map[string]time.Time{}
	err = x.query(ctx, selectLocks, nil, func(scan func(...any) error) error {
		var name string
		var until int64
		err := scan(&name, &until)
		l.Until[name] = fromMicros(until)
		return err
	})
	if err != nil {
		return l, err
	}
	err = x.query(ctx, newestCatalog, nil, func(scan func(...any) error) error { return scan(&l.Catalog) })
	if err != nil {
		return l, err
	}
	l.Amendments = map[backup.SnapshotID]index.Amendment{}
	err = x.query(ctx, selectAmendments, nil, func(scan func(...any) error) error {
		var id uuid.UUID
		var sequence int
		var base uuid.NullUUID
		err := scan(&id, &sequence, &base)
		l.Amendments[backup.SnapshotID(id)] = index.Amendment{ID: backup.SnapshotID(id), Sequence: sequence, Base: backup.SnapshotID(base.UUID)}
		return err
	})
	return l, err
}

// LockPacks implements index.Locking. It locks rows in the order of their ids, as batches do.
func (x *Index) LockPacks(ctx context.Context, t index.Term, rows []int64, until time.Time) error {
	rows = slices.Sorted(slices.Values(rows))
	for group := range slices.Chunk(rows, listLength) {
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
			if err := tx.checkTerm(ctx, t); err != nil {
				return err
			}
			if err := eachOf(ctx, tx, lockPackRows, group, func(func(...any) error) error { return nil }); err != nil {
				return err
			}
			return tx.execList(ctx, notePackLock, group, until.UnixMicro())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// LockObjects implements index.Locking.
func (x *Index) LockObjects(ctx context.Context, t index.Term, names []string, until time.Time) error {
	if len(names) == 0 {
		return nil
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		for _, name := range names {
			if err := tx.exec(ctx, lockObject, name, until.UnixMicro()); err != nil {
				return err
			}
		}
		return nil
	})
}

// dropLocks deletes what is noted of the locks of a snapshot.
func (tx *Tx) dropLocks(ctx context.Context, id backup.SnapshotID) error {
	for _, name := range []string{index.RecordLock(id), index.ContentLock(id)} {
		if err := tx.exec(ctx, dropLock, name); err != nil {
			return err
		}
	}
	return nil
}

// lockedAt returns a time as the index stores it: 0 if it is zero.
func lockedAt(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
