package entindex

import (
	"context"
	"fmt"
	"time"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/settings"
)

// BeginSnapshot implements index.Catalog.
func (x *Index) BeginSnapshot(ctx context.Context, of backup.ShardID, s backup.Snapshot, now time.Time) (backup.Snapshot, error) {
	return x.begin(ctx, of, s, now, nil)
}

// begin begins a snapshot. by, if not nil, is the due shard for which it begins. The shard's row is
// the lock.
func (x *Index) begin(ctx context.Context, of backup.ShardID, s backup.Snapshot, now time.Time, by *scheduled) (backup.Snapshot, error) {
	if err := validateSelection(s); err != nil {
		return backup.Snapshot{}, err
	}
	if s.ID == (backup.SnapshotID{}) {
		s.ID = backup.NewSnapshotID()
	}
	var begun backup.Snapshot
	var runs bool
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		runs = false
		if by != nil {
			if err := tx.checkTerm(ctx, by.term); err != nil {
				return err
			}
		}
		shard, err := tx.lockShard(ctx, of)
		if err != nil {
			return err
		}
		if shard.Retired || shard.Edges.Filer.Retired {
			return fmt.Errorf("shard %q of filer %q is retired: %w", shard.Name, shard.Edges.Filer.Name, backup.ErrNotFound)
		}
		if by != nil && !by.isPlanOf(shard) {
			return fmt.Errorf("shard %q: %w", shard.Name, index.ErrNotDue)
		}
		row, err := x.snapshotRow(ctx, tx.Client, snapshot.ShardID(int64(of)), running())
		if err == nil {
			runs, begun = true, toSnapshot(row)
			return nil
		}
		if !ent.IsNotFound(err) {
			return err
		}
		if err := tx.insertSnapshot(ctx, shard, s, now); err != nil {
			return err
		}
		if err := tx.tellSnapshot(ctx); err != nil {
			return err
		}
		row, err = x.snapshotRow(ctx, tx.Client, snapshot.ID(uuid.UUID(s.ID)))
		if err != nil {
			return err
		}
		begun = toSnapshot(row)
		return nil
	})
	switch {
	case ent.IsConstraintError(err):
		return backup.Snapshot{}, fmt.Errorf("snapshot %s: %w", s.ID, backup.ErrExists)
	case err != nil:
		return backup.Snapshot{}, err
	case runs:
		return begun, backup.ErrRunning
	}
	return begun, nil
}

func validateSelection(s backup.Snapshot) error {
	if s.Selection.ExcludeLargerBytes < 0 {
		return invalid("selection: files larger than %d bytes", s.Selection.ExcludeLargerBytes)
	}
	for _, list := range [][]string{s.Selection.Exclude, s.Selection.ExcludeIfPresent, s.Tags} {
		for _, text := range list {
			if !settings.IsText(text) {
				return invalid("selection or tag %q is not UTF-8", text)
			}
		}
	}
	return nil
}

const insertRoot = `
INSERT INTO walk_tasks (snapshot_id, filer_id, generation, lease_until, directories)
VALUES ($1, $2, 0, $3, $4)`

// insertSnapshot inserts a running snapshot, based on the shard's newest committed one, and its
// root walk task: the first open work, which a committer claims.
func (tx *Tx) insertSnapshot(ctx context.Context, of *ent.Shard, s backup.Snapshot, now time.Time) error {
	number := of.LastNumber + 1
	base, err := tx.Snapshot.Query().Where(snapshot.ShardID(of.ID), snapshot.State(string(backup.Committed))).
		Order(snapshot.ByNumber(entsql.OrderDesc())).Limit(1).
		Select(snapshot.FieldID, snapshot.FieldNumber, snapshot.FieldRoot, snapshot.FieldFiles, snapshot.FieldDirectories, snapshot.FieldErrors).All(ctx)
	if err != nil {
		return err
	}
	now, err = tx.at(ctx, now)
	if err != nil {
		return err
	}
	sortTime, err := tx.sortTime(ctx, of.ID, now)
	if err != nil {
		return err
	}
	ofPolicy, err := tx.policySelection(ctx, of)
	if err != nil {
		return err
	}
	selection := of.Edges.Filer.Selection.Merge(ofPolicy).Merge(of.Selection).Merge(s.Selection)
	create := tx.Snapshot.Create().SetID(uuid.UUID(s.ID)).SetShardID(of.ID).SetFilerID(of.FilerID).SetNumber(number).SetSource(of.Source).
		SetState(string(backup.Running)).SetStarted(now).SetSortTime(sortTime).SetSelection(selection).SetAllowShrink(s.AllowShrink).SetNewRoot(s.NewRoot).
		SetCompare(of.Edges.Filer.Compare).SetTags(s.Tags).SetTasksAnnounced(1)
	if len(base) > 0 {
		create.SetBase(base[0].Number).SetBaseID(base[0].ID)
		counts := countsOf(base[0])
		if !s.NewRoot && !counts.Empty() {
			create.SetRoot(base[0].Root)
		}
	}
	if err := create.Exec(ctx); err != nil {
		return err
	}
	if err := tx.Shard.UpdateOneID(of.ID).SetLastNumber(number).Exec(ctx); err != nil {
		return err
	}
	root := encodeChild(&backup.Child{Directories: []string{""}})
	return tx.exec(ctx, insertRoot, uuid.UUID(s.ID), of.FilerID, noLease, root)
}

// sortTime returns the sort_time of the next snapshot of a shard, which starts now.
func (tx *Tx) sortTime(ctx context.Context, shard int64, now time.Time) (time.Time, error) {
	last, err := tx.Snapshot.Query().Where(snapshot.ShardID(shard)).Order(snapshot.ByNumber(entsql.OrderDesc())).Limit(1).
		Select(snapshot.FieldSortTime).All(ctx)
	if err != nil || len(last) == 0 || last[0].SortTime.Before(now) {
		return now, err
	}
	return last[0].SortTime, nil
}

// tellSnapshot notifies the listeners when the transaction is committed.
func (tx *Tx) tellSnapshot(ctx context.Context) error {
	if tx.TellSnapshot == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, tx.TellSnapshot)
	return err
}

// ListenSnapshots implements index.Committing.
func (x *Index) ListenSnapshots(ctx context.Context, notify func()) error {
	return x.Backend.ListenSnapshots(ctx, notify)
}

// CompleteSnapshots implements index.Committing.
func (x *Index) CompleteSnapshots(ctx context.Context, only []backup.SnapshotID) ([]backup.SnapshotID, error) {
	query := x.Backend.Client().Snapshot.Query().Where(running(), func(s *entsql.Selector) {
		s.Where(entsql.ColumnsEQ(s.C(snapshot.FieldTasksAnnounced), s.C(snapshot.FieldTasksSettled)))
		s.Where(entsql.ColumnsEQ(s.C(snapshot.FieldBatchesAnnounced), s.C(snapshot.FieldBatchesSettled)))
	})
	if only != nil {
		query.Where(snapshot.IDIn(uuids(only)...))
	}
	found, err := query.Order(snapshot.ByStarted(), snapshot.ByID()).IDs(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	ids := make([]backup.SnapshotID, len(found))
	for i, id := range found {
		ids[i] = backup.SnapshotID(id)
	}
	return ids, nil
}

const claimCommit = `
UPDATE snapshots SET committer = $2, commit_until = {now} + $3
WHERE id = $1 AND ` + isRunning + `
    AND tasks_settled = tasks_announced AND batches_settled = batches_announced
    AND (committer = $2 OR commit_until <= {now} OR commit_until > {now} + $4)`

// ClaimCommit implements index.Committing with one statement, for which the row is the lock.
func (x *Index) ClaimCommit(ctx context.Context, id backup.SnapshotID, holder string, ttl time.Duration) (ok bool, err error) {
	if !isName(holder, maxHolderBytes) || ttl < 0 || ttl > maxTerm {
		return false, invalid("commit of snapshot %s by %q, for %s", id.Short(), holder, ttl)
	}
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		n, err := tx.change(ctx, claimCommit, uuid.UUID(id), holder, ttl.Microseconds(), maxTerm.Microseconds())
		ok = n == 1
		return err
	})
	return ok && err == nil, err
}

func uuids(ids []backup.SnapshotID) []uuid.UUID {
	list := make([]uuid.UUID, len(ids))
	for i, id := range ids {
		list[i] = uuid.UUID(id)
	}
	return list
}

// Commit implements index.Committing.
func (x *Index) Commit(ctx context.Context, id backup.SnapshotID, segment backup.Segment, pages backup.PageSet, now time.Time) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		row, err := tx.lockSnapshot(ctx, id, true)
		if err != nil {
			return err
		}
		s := snapshotState{tasks: row.TasksAnnounced, tasksSettled: row.TasksSettled, batches: row.BatchesAnnounced, batchesSettled: row.BatchesSettled}
		if row.State != string(backup.Running) || !s.complete() {
			return fmt.Errorf("snapshot %s, running and complete: %w", id, backup.ErrNotFound)
		}
		ended, err := tx.at(ctx, now)
		if err != nil {
			return err
		}
		if err := tx.deleteWork(ctx, row.ID); err != nil {
			return err
		}
		if err := tx.Hot.DropInterrupted(ctx, backup.ShardID(row.ShardID)); err != nil {
			return err
		}
		if err := tx.exec(ctx, dropReread, row.ShardID, row.Number); err != nil {
			return err
		}
		if err := tx.noteGood(ctx, row, &segment); err != nil {
			return err
		}
		if err := tx.raiseAlarm(ctx, row); err != nil {
			return err
		}
		if err := tx.tellSnapshot(ctx); err != nil {
			return err
		}
		end := tx.Snapshot.UpdateOneID(row.ID).SetState(string(backup.Committed)).SetCommitted(ended).SetEnded(ended).
			SetSegmentParts(segment.Parts).SetCheckpoint(segment.Checkpoint).SetPages(pages.Pages).SetPagesSum(pages.Sum[:])
		if segment.Parts > 0 {
			end.SetSegment(uuid.UUID(segment.Attempt))
		}
		// The commit point: once this is durable, every reader sees the snapshot.
		return end.Exec(ctx)
	})
}

// noteGood notes in the shard's row that a snapshot of it is committed with this segment.
func (tx *Tx) noteGood(ctx context.Context, row *ent.Snapshot, segment *backup.Segment) error {
	shard := tx.Shard.UpdateOneID(row.ShardID).SetLastGood(row.ID).SetLastGoodNumber(row.Number).SetLastGoodStarted(row.Started).
		SetLastGoodFiles(row.Files).SetLastGoodBytes(row.Bytes).SetInterrupted(false).SetDue(0).SetDeadline(0)
	if segment.Checkpoint {
		shard.SetCheckpointBytes(segment.Bytes).SetSegmentBytes(0)
	} else {
		shard.AddSegmentBytes(segment.Bytes)
	}
	return shard.Exec(ctx)
}

// Fail implements index.Committing. A snapshot that has failed already stays failed.
//
// Versions of pages are undone by number. Those that began with the snapshot have first_snapshot =
// number, and a number is used once. Those that it ended have last_snapshot = number-1, and no
// other snapshot sets that value: snapshot k sets k-1, numbers are not reused, and only the shard's
// one running snapshot ends versions. It does not matter whether snapshot number-1 has failed: it
// set last_snapshot to number-2, and has undone that. So neither set contains a row that is not
// this snapshot's.
func (x *Index) Fail(ctx context.Context, id backup.SnapshotID, reason string, now time.Time) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		row, err := tx.lockSnapshot(ctx, id, true)
		if err != nil {
			return err
		}
		if backup.State(row.State) != backup.Running {
			return fmt.Errorf("running snapshot %s: %w", id, backup.ErrNotFound)
		}
		ended, err := tx.at(ctx, now)
		if err != nil {
			return err
		}
		left, err := tx.Hot.SetAside(ctx, backup.ShardID(row.ShardID), backup.SnapshotNumber(row.Number))
		if err != nil {
			return err
		}
		if err := tx.dropNames(ctx, backup.ShardID(row.ShardID), row.Number, row.Number); err != nil {
			return err
		}
		if err := tx.deleteWork(ctx, row.ID); err != nil {
			return err
		}
		// The shard is planned again from now; its deadline stays.
		shard := tx.Shard.UpdateOneID(row.ShardID).SetDue(0)
		if left > 0 {
			shard.SetInterrupted(true)
		}
		if err := shard.Exec(ctx); err != nil {
			return err
		}
		if err := tx.tellSnapshot(ctx); err != nil {
			return err
		}
		return tx.Snapshot.UpdateOneID(row.ID).SetState(string(backup.Failed)).SetReason(text(reason, maxErrorBytes)).SetEnded(ended).Exec(ctx)
	})
}

func (tx *Tx) deleteWork(ctx context.Context, id uuid.UUID) error {
	for _, statement := range []string{
		`DELETE FROM walk_tasks WHERE snapshot_id = $1`,
		`DELETE FROM read_batches WHERE snapshot_id = $1`,
		`DELETE FROM slice_parts WHERE snapshot_id = $1`,
	} {
		if err := tx.exec(ctx, statement, tx.anew(id)...); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) notFound(err error, id backup.SnapshotID) error {
	return x.Backend.Wrap(orNotFound(err, "snapshot %s", id))
}
