package entindex

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	// deleteEndedRestore deletes a restore to a target that has ended, with its tasks.
	deleteEndedRestore = `DELETE FROM restores WHERE site = $1 AND target = $2 AND (open = 0 OR failed <> '')`
	insertRestore      = `
INSERT INTO restores (id, snapshot, site, target, request, started, open) VALUES ($1, $2, $3, $4, $5, {now}, $6)
ON CONFLICT (site, target) DO NOTHING`
	insertRestoreTask = `INSERT INTO restore_tasks (restore, kind, from_key, to_key) VALUES ($1, $2, $3, $4)`
	deleteRestore     = `DELETE FROM restores WHERE id = $1`
	endRestoreReading = `DELETE FROM readings WHERE id = $1`

	selectRestores = `
SELECT r.id, r.snapshot, r.site, r.target, r.request, r.started, r.open, r.failed, count(t.id),
    coalesce(CAST(sum(t.files) AS bigint), 0), coalesce(CAST(sum(t.bytes) AS bigint), 0),
    coalesce(sum(CASE WHEN t.lease_until > {now} AND t.worker <> '' AND NOT t.settled THEN 1 ELSE 0 END), 0),
    coalesce(sum(CASE WHEN t.lease_until > {now} AND t.worker <> '' AND NOT t.settled AND t.kind > 0 AND t.keys IS NULL THEN 1 ELSE 0 END), 0),
    count(DISTINCT CASE WHEN t.lease_until > {now} AND t.worker <> '' AND NOT t.settled THEN t.worker END),
    coalesce(max(CASE WHEN t.settled THEN '' ELSE t.reason END), '')
FROM restores r LEFT JOIN restore_tasks t ON t.restore = r.id
GROUP BY r.id, r.snapshot, r.site, r.target, r.request, r.started, r.open, r.failed ORDER BY r.started, r.id`
	restoreTask        = `id, restore, kind, from_key, to_key, attempt, worker, recipient, settled, result, reason`
	selectRestoreTasks = `SELECT ` + restoreTask + ` FROM restore_tasks WHERE restore = $1 AND id > $2 ORDER BY id LIMIT $3`
	selectWithoutKeys  = `
SELECT ` + restoreTask + ` FROM restore_tasks
WHERE restore = $1 AND NOT settled AND kind > 0 AND recipient <> '' AND keys IS NULL AND lease_until > {now} ORDER BY id LIMIT $2`
	giveKeys       = `UPDATE restore_tasks SET keys = $3 WHERE id = $1 AND attempt = $2 AND NOT settled AND keys IS NULL`
	selectRefusals = `SELECT worker, reason FROM restore_refusals WHERE restore = $1 AND paused_until > {now} ORDER BY worker`

	// selectClaimable finds the next task. The row is locked; a task that another claim has locked
	// is passed over.
	selectClaimable = `
SELECT t.id FROM restore_tasks t
WHERE NOT t.settled AND t.lease_until <= {now}
    AND EXISTS (SELECT 1 FROM restores r WHERE r.id = t.restore AND r.site = $1 AND r.failed = ''
        AND (t.kind = 0 OR r.begun) AND (t.kind < 2 OR r.open = 1))
    AND NOT EXISTS (SELECT 1 FROM restore_refusals f WHERE f.restore = t.restore AND f.worker = $2 AND f.paused_until > {now})
ORDER BY t.id LIMIT 1 {skip locked}`
	claimRestoreTask = `
UPDATE restore_tasks SET attempt = attempt + 1, lease_until = {now} + $2, worker = $3, recipient = $4, keys = NULL, files = 0, bytes = 0
WHERE id = $1 RETURNING ` + restoreTask
	selectRestore = `SELECT snapshot, site, target, request, started, open FROM restores WHERE id = $1`
	renewRestore  = `
UPDATE restore_tasks SET lease_until = {now} + $3, files = $4, bytes = $5
WHERE id = $1 AND attempt = $2 AND NOT settled RETURNING keys`
	// keepRestored extends what keeps the snapshot. It does not bring it back.
	keepRestored = `
UPDATE readings SET until = {now} + $2 WHERE id = $1 AND until > {now} AND until < {now} + $2`
	settleRestoreTask = `
UPDATE restore_tasks SET settled = true, result = $3, keys = NULL, recipient = '', reason = ''
WHERE id = $1 AND attempt = $2 AND NOT settled`
	settleRestore   = `UPDATE restores SET open = open - 1, begun = begun OR $2 WHERE id = $1`
	failRestoreTask = `
UPDATE restore_tasks SET lease_until = {now} + $3, failures = failures + CASE WHEN $5 THEN 1 ELSE 0 END, reason = $4, worker = '', recipient = '', keys = NULL
WHERE id = $1 AND attempt = $2 AND NOT settled RETURNING failures`
	failRestore   = `UPDATE restores SET failed = $2 WHERE id = $1 AND failed = ''`
	insertRefusal = `
INSERT INTO restore_refusals (restore, worker, reason, paused_until) VALUES ($1, $2, $3, {now} + $4)
ON CONFLICT (restore, worker) DO UPDATE SET reason = excluded.reason, paused_until = excluded.paused_until`
)

// keepsRestored is how long a restore without an operator's process keeps its snapshot from being
// forgotten, after a restorer has last renewed a task.
const keepsRestored = 10 * time.Minute

// PagesIn implements index.Restoring.
func (x *Index) PagesIn(ctx context.Context, id backup.SnapshotID, from, to []byte) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		s, err := x.committed(ctx, id)
		if err != nil {
			yield(backup.PageVersion{}, err)
			return
		}
		versionsOf(x.pagesIn(ctx, backup.ShardID(s.ShardID), backup.SnapshotNumber(s.Number), Range{NotNull(from), to}))(yield)
	}
}

// BeginRestore implements index.Restoring.
func (x *Index) BeginRestore(ctx context.Context, r index.Restore, tasks []index.RestoreTask) error {
	if len(r.Request) == 0 || len(r.Request) > index.MaxRestoreRequestBytes || r.Target == "" || len(r.Target) > backup.MaxPathBytes || len(tasks) == 0 {
		return invalid("restore to %q with a request of %d bytes and %d tasks", r.Target, len(r.Request), len(tasks))
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		target := []byte(r.Target)
		if err := tx.exec(ctx, deleteEndedRestore, r.Site, target); err != nil {
			return err
		}
		n, err := tx.change(ctx, insertRestore, uuid.UUID(r.ID), uuid.UUID(r.Snapshot), r.Site, target, r.Request, len(tasks))
		if err == nil && n == 0 {
			err = fmt.Errorf("restore to %s at site %s: %w", r.Target, r.Site, backup.ErrExists)
		}
		for i := 0; err == nil && i < len(tasks); i++ {
			err = tx.exec(ctx, insertRestoreTask, uuid.UUID(r.ID), int64(tasks[i].Kind), NotNull(tasks[i].From), tasks[i].To)
		}
		return err
	})
}

// Restores implements index.Restoring.
func (x *Index) Restores(ctx context.Context) ([]index.Restore, error) {
	return listOf(ctx, x.query, x.Backend.Dialect().sql(selectRestores), nil, func(scan func(...any) error) (r index.Restore, err error) {
		var id, snapshot uuid.UUID
		var target []byte
		var started int64
		err = scan(&id, &snapshot, &r.Site, &target, &r.Request, &started, &r.Open, &r.Failed, &r.Tasks, &r.Files, &r.Bytes, &r.Working, &r.Waiting, &r.Restorers, &r.Trouble)
		r.ID, r.Snapshot, r.Target, r.Started = index.RestoreID(id), backup.SnapshotID(snapshot), string(target), fromMicros(started)
		return r, err
	})
}

func readRestoreTask(scan func(...any) error) (t index.RestoreTask, err error) {
	var id uuid.UUID
	err = scan(&t.Row, &id, &t.Kind, &t.From, &t.To, &t.Attempt, &t.Worker, &t.Recipient, &t.Settled, &t.Result, &t.Reason)
	t.Restore = index.RestoreID(id)
	return t, err
}

// RestoreTasks implements index.Restoring.
func (x *Index) RestoreTasks(ctx context.Context, id index.RestoreID, after int64, limit int) ([]index.RestoreTask, error) {
	return listOf(ctx, x.query, selectRestoreTasks, []any{uuid.UUID(id), after, limit}, readRestoreTask)
}

// TasksWithoutKeys implements index.Restoring.
func (x *Index) TasksWithoutKeys(ctx context.Context, id index.RestoreID, limit int) ([]index.RestoreTask, error) {
	return listOf(ctx, x.query, x.Backend.Dialect().sql(selectWithoutKeys), []any{uuid.UUID(id), limit}, readRestoreTask)
}

// GiveKeys implements index.Restoring. It need not be durable: keys that are lost are asked for
// again.
func (x *Index) GiveKeys(ctx context.Context, row int64, attempt int, keys []byte) error {
	if len(keys) == 0 || len(keys) > index.MaxRestoreBlobBytes {
		return invalid("keys of %d bytes", len(keys))
	}
	return x.exec(ctx, Relaxed, giveKeys, row, attempt, keys)
}

// Refusals implements index.Restoring.
func (x *Index) Refusals(ctx context.Context, id index.RestoreID) ([]index.Refusal, error) {
	return listOf(ctx, x.query, x.Backend.Dialect().sql(selectRefusals), []any{uuid.UUID(id)}, func(scan func(...any) error) (r index.Refusal, err error) {
		err = scan(&r.Worker, &r.Reason)
		return r, err
	})
}

// EndRestore implements index.Restoring.
func (x *Index) EndRestore(ctx context.Context, id index.RestoreID) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.exec(ctx, endRestoreReading, uuid.UUID(id)); err != nil {
			return err
		}
		return tx.exec(ctx, deleteRestore, uuid.UUID(id))
	})
}

// ClaimRestoreTask implements index.Restoring.
func (x *Index) ClaimRestoreTask(ctx context.Context, site, worker, recipient string, lease time.Duration) (r index.Restore, t index.RestoreTask, ok bool, err error) {
	if lease <= 0 || lease > maxTerm || worker == "" || recipient == "" {
		return r, t, false, invalid("claim of worker %q with a lease of %s", worker, lease)
	}
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		ok = false
		var row int64
		err := tx.Each(ctx, selectClaimable, []any{site, worker}, func(scan func(...any) error) error {
			ok = true
			return scan(&row)
		})
		if err != nil || !ok {
			return err
		}
		err = tx.Each(ctx, claimRestoreTask, []any{row, lease.Microseconds(), text(worker, maxWorkerBytes), recipient}, func(scan func(...any) error) error {
			t, err = readRestoreTask(scan)
			return err
		})
		if err != nil {
			return err
		}
		r.ID = t.Restore
		return tx.Each(ctx, selectRestore, []any{uuid.UUID(r.ID)}, func(scan func(...any) error) error {
			var snapshot uuid.UUID
			var target []byte
			var started int64
			err := scan(&snapshot, &r.Site, &target, &r.Request, &started, &r.Open)
			r.Snapshot, r.Target, r.Started = backup.SnapshotID(snapshot), string(target), fromMicros(started)
			return err
		})
	})
	return r, t, ok && err == nil, err
}

// RenewRestoreTask implements index.Restoring. It also keeps the snapshot from being forgotten.
func (x *Index) RenewRestoreTask(ctx context.Context, t *index.RestoreTask, lease time.Duration, files, bytes int64) (keys []byte, err error) {
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		found := false
		err := tx.Each(ctx, renewRestore, []any{t.Row, t.Attempt, lease.Microseconds(), files, bytes}, func(scan func(...any) error) error {
			found = true
			return scan(&keys)
		})
		if err == nil && !found {
			err = index.ErrTakenOver
		}
		if err != nil {
			return err
		}
		return tx.exec(ctx, keepRestored, uuid.UUID(t.Restore), keepsRestored.Microseconds())
	})
	return keys, err
}

// SettleRestoreTask implements index.Restoring.
func (x *Index) SettleRestoreTask(ctx context.Context, t *index.RestoreTask, result []byte) error {
	if len(result) > index.MaxRestoreBlobBytes {
		return invalid("result of %d bytes", len(result))
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		n, err := tx.change(ctx, settleRestoreTask, t.Row, t.Attempt, NotNull(result))
		if err == nil && n == 0 {
			err = index.ErrTakenOver
		}
		if err != nil {
			return err
		}
		return tx.exec(ctx, settleRestore, uuid.UUID(t.Restore), t.Kind == index.RestoreBegin)
	})
}

// FailRestoreTask implements index.Restoring.
func (x *Index) FailRestoreTask(ctx context.Context, t *index.RestoreTask, pause time.Duration, counts bool, reason string) error {
	reason = text(strings.TrimSpace(reason), maxErrorBytes)
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		failures, err := tx.endAttempt(ctx, t, pause, reason, counts)
		if err != nil || failures < index.MaxRestoreFailures {
			return err
		}
		return tx.exec(ctx, failRestore, uuid.UUID(t.Restore), reason)
	})
}

// endAttempt makes a task claimable again after a pause, and returns how many attempts have failed.
func (tx *Tx) endAttempt(ctx context.Context, t *index.RestoreTask, pause time.Duration, reason string, counts bool) (failures int, err error) {
	found := false
	err = tx.Each(ctx, failRestoreTask, []any{t.Row, t.Attempt, pause.Microseconds(), reason, counts}, func(scan func(...any) error) error {
		found = true
		return scan(&failures)
	})
	if err == nil && !found {
		err = index.ErrTakenOver
	}
	return failures, err
}

// RefuseRestore implements index.Restoring.
func (x *Index) RefuseRestore(ctx context.Context, t *index.RestoreTask, pause time.Duration, reason string) error {
	reason = text(strings.TrimSpace(reason), maxErrorBytes)
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if _, err := tx.endAttempt(ctx, t, 0, reason, false); err != nil {
			return err
		}
		return tx.exec(ctx, insertRefusal, uuid.UUID(t.Restore), text(t.Worker, maxWorkerBytes), reason, pause.Microseconds())
	})
}
