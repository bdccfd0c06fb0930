package entindex

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// maxWorkerBytes bounds the stored part of a worker's name.
const maxWorkerBytes = 256

// heldRow is a Held as Extend sends it to the database.
type heldRow struct {
	ID       int64     `json:"id"`
	Snapshot uuid.UUID `json:"snapshot"`
	Worker   string    `json:"worker"`
	Path     string    `json:"path"` // hexadecimal, because a path may contain any bytes
	Stalled  bool      `json:"stalled"`
}

// Extend implements index.Committing. Work that is being settled or claimed at this moment is
// skipped.
func (x *Index) Extend(ctx context.Context, held []index.Held, lease time.Duration, now time.Time) error {
	return x.updateHeld(ctx, extendLeases, held, func(ctx context.Context, tx *Tx) ([]any, error) {
		now, err := tx.at(ctx, now)
		return []any{stamp(now.Add(lease)), now}, err
	})
}

// updateHeld runs a statement for each table of open work. Its parameters are those that first
// returns, the rows of the held work as JSON, and their ids.
func (x *Index) updateHeld(ctx context.Context, statement string, held []index.Held, first func(context.Context, *Tx) ([]any, error)) error {
	if len(held) == 0 {
		return nil
	}
	tasks, batches := heldRows(held)
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		args, err := first(ctx, tx)
		if err != nil {
			return err
		}
		if err := tx.updateHeld(ctx, on(walkTasks, statement), args, tasks); err != nil {
			return err
		}
		return tx.updateHeld(ctx, on(readBatches, statement), args, batches)
	})
}

// heldRows returns the rows of tasks and those of batches. If two workers report the same work, one
// report counts, because a row can be updated only once.
func heldRows(held []index.Held) (tasks, batches []heldRow) {
	for _, h := range held {
		row := heldRow{
			ID: int64(h.Batch), Snapshot: uuid.UUID(h.Snapshot), Worker: text(h.Worker, maxWorkerBytes),
			Path: hex.EncodeToString([]byte(h.Path[:min(len(h.Path), backup.MaxPathBytes)])), Stalled: h.Stalled,
		}
		if h.Task != 0 {
			row.ID = int64(h.Task)
			tasks = append(tasks, row)
		} else {
			batches = append(batches, row)
		}
	}
	return once(tasks), once(batches)
}

func once(held []heldRow) []heldRow {
	slices.SortFunc(held, func(a, b heldRow) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), slices.Compare(a.Snapshot[:], b.Snapshot[:]))
	})
	return slices.CompactFunc(held, func(a, b heldRow) bool { return a.ID == b.ID && a.Snapshot == b.Snapshot })
}

func (tx *Tx) updateHeld(ctx context.Context, statement string, first []any, held []heldRow) error {
	for group := range slices.Chunk(held, listLength) {
		rows, err := json.Marshal(group)
		if err != nil {
			return err
		}
		ids := make([]int64, len(group))
		for i := range group {
			ids[i] = group[i].ID
		}
		if err := tx.exec(ctx, statement, tx.anew(append(slices.Clone(first), string(rows), tx.List(ids))...)...); err != nil {
			return err
		}
	}
	return nil
}

// extendLeases sets the end of a lease to now plus lease if that is later. For the first report of
// a worker it also does so if that is earlier: work that waits in a queue has a longer lease than
// work held by a worker, which may die.
const extendLeases = `
WITH mine AS MATERIALIZED (
    SELECT id FROM {work} WHERE {id in $4} {skip locked}
)
UPDATE {work} AS w SET worker = h.worker, path = {unhex h.path},
    lease_until = CASE WHEN w.worker = '' OR w.lease_until < $1 THEN $1 ELSE w.lease_until END,
    stalled = CASE WHEN h.stalled THEN coalesce(w.stalled, $2) END
FROM {rows $3 AS h (id bigint, snapshot uuid, worker text, path text, stalled boolean)}
WHERE w.id = h.id AND w.snapshot_id = h.snapshot AND w.id IN (SELECT id FROM mine)`

const expireFuture = `
UPDATE {work} SET lease_until = $1, worker = '', path = NULL, stalled = NULL
WHERE id IN (SELECT id FROM {work} WHERE lease_until > $2 {skip locked})`

// ExpireFuture implements index.Committing.
func (x *Index) ExpireFuture(ctx context.Context, after time.Duration, now time.Time) (ended int, err error) {
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		ended = 0
		now, err := tx.at(ctx, now)
		if err != nil {
			return err
		}
		for _, table := range []string{walkTasks, readBatches} {
			n, err := tx.change(ctx, on(table, expireFuture), noLease, stamp(now.Add(after)))
			if err != nil {
				return err
			}
			ended += n
		}
		return nil
	})
	return ended, err
}

// GiveBack implements index.Committing. Work that is being settled or claimed at this moment is
// skipped.
func (x *Index) GiveBack(ctx context.Context, held []index.Held) error {
	return x.updateHeld(ctx, giveBack, held, func(context.Context, *Tx) ([]any, error) { return []any{noLease}, nil })
}

const giveBack = `
WITH mine AS MATERIALIZED (
    SELECT id FROM {work} WHERE {id in $3} {skip locked}
)
UPDATE {work} AS w SET lease_until = $1, worker = '', path = NULL, stalled = NULL
FROM {rows $2 AS h (id bigint, snapshot uuid, worker text)}
WHERE w.id = h.id AND w.snapshot_id = h.snapshot AND w.worker IN ('', h.worker)
    AND w.id IN (SELECT id FROM mine)`

const expireLeases = `
UPDATE {work} SET lease_until = $1, worker = '', path = NULL, stalled = NULL
WHERE snapshot_id = $2 AND lease_until <> $1`

// ExpireLeases implements index.Catalog.
func (x *Index) ExpireLeases(ctx context.Context, id backup.SnapshotID) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.exec(ctx, on(walkTasks, expireLeases), tx.anew(noLease, uuid.UUID(id))...); err != nil {
			return err
		}
		return tx.exec(ctx, on(readBatches, expireLeases), tx.anew(noLease, uuid.UUID(id))...)
	})
}

// selectHeld finds the running leases, which are few, and then sorts them: the planner would
// otherwise read all open work, which is in the requested order already.
const selectHeld = `
WITH held AS MATERIALIZED (
    SELECT snapshot_id, id, attempt, lease_until, worker, path, stalled, filer_id FROM {work} WHERE lease_until > $1
)
SELECT h.snapshot_id, h.id, h.attempt, h.lease_until, h.worker, h.path, h.stalled, (SELECT f.site FROM filers f WHERE f.id = h.filer_id)
FROM (SELECT * FROM held ORDER BY snapshot_id, id LIMIT $2) AS h ORDER BY h.snapshot_id, h.id`

// InHand implements index.Catalog.
func (x *Index) InHand(ctx context.Context, now time.Time, limit int) ([]index.Work, error) {
	now, err := x.at(ctx, now)
	if err != nil {
		return nil, err
	}
	var list []index.Work
	for _, table := range []string{walkTasks, readBatches} {
		err := x.query(ctx, on(table, selectHeld), []any{now, limit}, func(scan func(...any) error) error {
			w, id, err := readHeld(scan)
			if table == walkTasks {
				w.Task = backup.TaskID(id)
			} else {
				w.Batch = backup.BatchID(id)
			}
			list = append(list, w)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b index.Work) int { return slices.Compare(a.Snapshot[:], b.Snapshot[:]) })
	return list[:min(len(list), max(limit, 0))], nil
}

func readHeld(scan func(...any) error) (w index.Work, id int64, err error) {
	var of uuid.UUID
	var path []byte
	var stalled *time.Time
	if err := scan(&of, &id, &w.Attempt, &w.Until, &w.Worker, &path, &stalled, &w.Site); err != nil {
		return w, 0, err
	}
	w.Snapshot, w.Until, w.Path = backup.SnapshotID(of), w.Until.UTC(), string(path)
	if stalled != nil {
		w.Stalled = stalled.UTC()
	}
	return w, id, nil
}
