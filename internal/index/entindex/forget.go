package entindex

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/settings"
)

// The actions in the log.
const (
	actionForget   = "forget"
	actionHold     = "hold"
	actionRelease  = "release"
	actionChecked  = "checked"
	actionRetire   = "retire"
	actionMarkBad  = "mark-bad"
	actionMarkGood = "mark-good"
	actionStop     = "stop"
	actionConfirm  = "confirm"
	actionReject   = "reject"
	actionBrake    = "brake"
	actionPolicy   = "policy"
	actionPurge    = "purge"
	actionPurged   = "purged"
	actionRepair   = "repair"
	actionScrub    = "scrub"
)

// Forget implements index.Forgetting.
func (x *Index) Forget(ctx context.Context, id backup.SnapshotID, by, reason string) error {
	return x.forget(ctx, id, by, reason, func(context.Context, *Tx, *ent.Shard) error { return nil })
}

// ForgetDue implements index.Scheduling. The row of the shard, which is locked, has the binding.
func (x *Index) ForgetDue(ctx context.Context, t index.Term, b index.Binding, id backup.SnapshotID, by, reason string) error {
	return x.forget(ctx, id, by, reason, func(ctx context.Context, tx *Tx, of *ent.Shard) error {
		if bound := toPlan(of).Binding; bound != b {
			return fmt.Errorf("shard %d has policy %d, revision %d: %w", of.ID, bound.Policy, bound.Revision, index.ErrNotDue)
		}
		// The policy may have changed since its shards were bound.
		n, err := tx.count(ctx, `SELECT count(*) FROM policies WHERE id = $1 AND revision = $2`, int64(b.Policy), b.Revision)
		if err == nil && n == 0 {
			err = fmt.Errorf("policy %d has changed: %w", b.Policy, index.ErrNotDue)
		}
		if err != nil {
			return err
		}
		return tx.checkTerm(ctx, t)
	})
}

// forget forgets a snapshot if may returns nil. The row of the shard is the lock.
func (x *Index) forget(ctx context.Context, id backup.SnapshotID, by, reason string, may func(context.Context, *Tx, *ent.Shard) error) error {
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
		if err := may(ctx, tx, of); err != nil {
			return err
		}
		row, err := tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(id)), snapshot.StateNEQ(string(backup.Running)), snapshot.ForgottenIsNil()).Only(ctx)
		if ent.IsNotFound(err) {
			return fmt.Errorf("ended snapshot %s: %w", id, backup.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if err := tx.checkForgettable(ctx, of, row); err != nil {
			return err
		}
		if err := tx.checkPaths(ctx, by, row); err != nil {
			return err
		}
		now, err := tx.at(ctx, time.Time{})
		if err != nil {
			return err
		}
		if err := tx.Snapshot.UpdateOne(row).SetForgotten(now).Exec(ctx); err != nil {
			return err
		}
		if of.LastGood != nil && *of.LastGood == row.ID {
			if err := tx.findLastGood(ctx, of); err != nil {
				return err
			}
		}
		return tx.writeLog(ctx, by, actionForget, id.String(), reason)
	})
}

// ForgetRemoved forgets a snapshot that has no objects in the store any more: the lost index, of
// which this one is an older copy, had forgotten and removed it. No hold or rule keeps it, because
// its content may be gone. ForgetRemoved does nothing if the snapshot is forgotten already.
func (x *Index) ForgetRemoved(ctx context.Context, id backup.SnapshotID, by, reason string) error {
	found, err := x.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		of, err := tx.lockShard(ctx, found.Shard.ID)
		if err != nil {
			return err
		}
		now, err := tx.at(ctx, time.Time{})
		if err != nil {
			return err
		}
		n, err := tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(id)), snapshot.StateNEQ(string(backup.Running)), snapshot.ForgottenIsNil()).SetForgotten(now).Save(ctx)
		if err != nil || n == 0 {
			return err
		}
		if err := tx.findLastGood(ctx, of); err != nil {
			return err
		}
		return tx.writeLog(ctx, by, actionForget, id.String(), reason)
	})
}

const (
	countHolds    = `SELECT count(*) FROM holds WHERE snapshot = $1 OR shard = $2 AND path_key IS NULL`
	countReadings = `SELECT count(*) FROM readings WHERE snapshot = $1 AND until > {now}`
)

// checkForgettable fails with index.ErrKept if something keeps the snapshot.
func (tx *Tx) checkForgettable(ctx context.Context, of *ent.Shard, row *ent.Snapshot) error {
	kept := func(why string) error { return kept(row, why) }
	retired := of.Retired || of.Edges.Filer.Retired
	if !retired && of.LastGood != nil && *of.LastGood == row.ID {
		return kept("is the last good one of its shard")
	}
	if !row.Recorded {
		return kept("has no record in the store yet")
	}
	base, err := tx.Snapshot.Query().Where(snapshot.ShardID(of.ID), running(), snapshot.BaseID(row.ID)).Exist(ctx)
	if err != nil {
		return err
	}
	if base {
		return kept("is the base of a running one")
	}
	held, err := tx.count(ctx, countHolds, row.ID, of.ID)
	if err != nil {
		return err
	}
	if held > 0 {
		return kept("is on hold")
	}
	read, err := tx.count(ctx, countReadings, row.ID)
	if err == nil && read > 0 {
		err = kept("is being restored")
	}
	return err
}

func kept(row *ent.Snapshot, why string) error {
	return fmt.Errorf("snapshot %s %s: %w", backup.SnapshotID(row.ID).Short(), why, index.ErrKept)
}

// count runs a query that returns a number.
func (tx *Tx) count(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = tx.Each(ctx, query, args, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

func checkReason(by, reason string) error {
	if !isName(by, maxHolderBytes) || len(reason) > maxErrorBytes || !settings.IsText(reason) {
		return invalid("by %q, reason of %d bytes", by, len(reason))
	}
	return nil
}

const insertLog = `INSERT INTO log (time, by, action, subject, reason) VALUES ({now}, $1, $2, $3, $4)`

func (tx *Tx) writeLog(ctx context.Context, by, action, subject, reason string) error {
	return tx.exec(ctx, insertLog, by, action, subject, reason)
}

// Log implements index.Forgetting.
func (x *Index) Log(ctx context.Context, since time.Time) iter.Seq2[index.LogEntry, error] {
	const query = `SELECT id, time, by, login, action, subject, reason FROM log WHERE time >= $1 ORDER BY id`
	return sequence(func(yield func(index.LogEntry) error) error {
		return x.query(ctx, query, []any{since.UnixMicro()}, func(scan func(...any) error) error {
			var e index.LogEntry
			var at int64
			if err := scan(&e.ID, &at, &e.By, &e.Login, &e.Action, &e.Subject, &e.Reason); err != nil {
				return err
			}
			e.Time = fromMicros(at)
			return yield(e)
		})
	})
}

const (
	putReading = `
INSERT INTO readings (id, snapshot, until) VALUES ($1, $2, {now} + $3)
ON CONFLICT (id) DO UPDATE SET until = excluded.until`
	deleteReading = `DELETE FROM readings WHERE id = $1 OR until <= {now}`
)

// BeginReading implements index.Forgetting. The row of the shard is the lock, as for Forget.
func (x *Index) BeginReading(ctx context.Context, reading backup.PackID, id backup.SnapshotID, lease time.Duration) error {
	if lease <= 0 || lease > maxTerm {
		return invalid("lease of %s", lease)
	}
	found, err := x.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if _, err := tx.lockShard(ctx, found.Shard.ID); err != nil {
			return err
		}
		n, err := tx.count(ctx, `SELECT count(*) FROM snapshots WHERE id = $1 AND `+isReadable, uuid.UUID(id))
		if err == nil && n == 0 {
			err = fmt.Errorf("committed snapshot %s: %w", id, backup.ErrNotFound)
		}
		if err != nil {
			return err
		}
		return tx.exec(ctx, putReading, uuid.UUID(reading), uuid.UUID(id), lease.Microseconds())
	})
}

// isReadable selects the snapshots whose pages may be read: those that are committed and not
// forgotten, and those that somebody has begun to read before they were forgotten.
const isReadable = `state = 'committed' AND (forgotten IS NULL OR EXISTS (
    SELECT 1 FROM readings r WHERE r.snapshot = snapshots.id AND r.until > {now}))`

// beingRead returns a forgotten snapshot if somebody began to read it before it was forgotten.
func (x *Index) beingRead(ctx context.Context, row *ent.Snapshot) (*ent.Snapshot, error) {
	now, err := x.Backend.Clock(ctx)
	if err != nil {
		return nil, err
	}
	n := 0
	err = x.query(ctx, `SELECT count(*) FROM readings WHERE snapshot = $1 AND until > $2`, []any{row.ID, now.UnixMicro()},
		func(scan func(...any) error) error { return scan(&n) })
	if err == nil && n == 0 {
		err = fmt.Errorf("snapshot %s was forgotten: %w", backup.SnapshotID(row.ID), backup.ErrNotFound)
	}
	return row, err
}

// EndReading implements index.Forgetting.
func (x *Index) EndReading(ctx context.Context, reading backup.PackID) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		return tx.exec(ctx, deleteReading, uuid.UUID(reading))
	})
}
