package entindex

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// RecoverFiler implements index.Recovering.
func (x *Index) RecoverFiler(ctx context.Context, f backup.Filer) (backup.Filer, error) {
	f.Site = backup.SiteName(f.Site)
	if err := checkFiler(f); err != nil {
		return backup.Filer{}, err
	}
	var row *ent.Filer
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		found, err := locked(tx, tx.Filer.Query().Where(filer.Name(f.Name)), true).Only(ctx)
		if ent.IsNotFound(err) {
			create := tx.Filer.Create().SetName(f.Name).SetRetired(f.Retired)
			setSettings(create.Mutation(), f)
			row, err = create.Save(ctx)
			return err
		}
		if err != nil {
			return err
		}
		update := tx.Filer.UpdateOneID(found.ID).SetRetired(f.Retired)
		setSettings(update.Mutation(), f)
		row, err = update.Save(ctx)
		return err
	})
	if err != nil {
		return backup.Filer{}, err
	}
	return toFiler(row), nil
}

// RecoverShard implements index.Recovering.
func (x *Index) RecoverShard(ctx context.Context, s backup.Shard) (backup.Shard, error) {
	if err := checkShard(s); err != nil {
		return backup.Shard{}, err
	}
	var row *ent.Shard
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		found, err := locked(tx, tx.Shard.Query().Where(shard.ShardKey(uuid.UUID(s.Key))), true).Only(ctx)
		if ent.IsNotFound(err) {
			row, err = tx.Shard.Create().SetShardKey(uuid.UUID(s.Key)).SetFilerID(int64(s.Filer)).SetName(s.Name).
				SetSource(s.Source).SetPattern(s.Snapshots).SetSelection(s.Selection).SetRetired(s.Retired).Save(ctx)
			return err
		}
		if err != nil {
			return err
		}
		row, err = tx.Shard.UpdateOneID(found.ID).SetSource(s.Source).SetPattern(s.Snapshots).SetSelection(s.Selection).SetRetired(s.Retired).Save(ctx)
		return err
	})
	if ent.IsConstraintError(err) {
		err = fmt.Errorf("filer %d has another shard %q: %w", s.Filer, s.Name, backup.ErrExists)
	}
	if err != nil {
		return backup.Shard{}, err
	}
	return toShard(row), nil
}

const recoverHold = `
INSERT INTO holds (id, snapshot, shard, path_key, path_end, parent_key, reason, by, alarm, since, login) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

// The reasons in the log of what a rebuild takes from a catalog.
const (
	asInCatalog    = "index rebuild: it is in the catalog"
	notInCatalog   = "index rebuild: it is not in the catalog"
	forgottenThere = "index rebuild: it was forgotten according to the catalog"
)

// RecoverHolds implements index.Recovering. What it adds and releases is in the log, as it is of
// AddHold and RemoveHold: the database demands that also of the admin.
func (x *Index) RecoverHolds(ctx context.Context, holds []index.Hold, by string) (without []index.Hold, err error) {
	wanted := make(map[int64]index.Hold, len(holds))
	for i := range holds {
		if err := checkHold(&holds[i]); err != nil {
			return nil, err
		}
		wanted[holds[i].ID] = holds[i]
	}
	if err := checkReason(by, ""); err != nil {
		return nil, err
	}
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		without = nil
		present, err := tx.releaseOthers(ctx, wanted, by)
		if err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(wanted)) {
			if h := wanted[id]; present[id] {
				continue
			} else if added, err := tx.recoverHold(ctx, &h, by); err != nil {
				return err
			} else if !added {
				without = append(without, h)
			}
		}
		if tx.NextHold == "" {
			return nil
		}
		return tx.Each(ctx, tx.NextHold, nil, func(func(...any) error) error { return nil })
	})
	return without, err
}

// releaseOthers removes the holds that are not wanted as they are, and returns the rest.
func (tx *Tx) releaseOthers(ctx context.Context, wanted map[int64]index.Hold, by string) (present map[int64]bool, err error) {
	holds, err := listOf(ctx, tx.Each, selectHolds, nil, readHold)
	if err != nil {
		return nil, err
	}
	present = map[int64]bool{}
	for i := range holds {
		h := &holds[i]
		if want, ok := wanted[h.ID]; ok && sameHold(h, &want) {
			present[h.ID] = true
			continue
		}
		if err := tx.exec(ctx, `DELETE FROM holds WHERE id = $1`, h.ID); err != nil {
			return nil, err
		}
		if err := tx.writeLog(ctx, by, actionRelease, holdSubject(h), holdReason(h, notInCatalog)); err != nil {
			return nil, err
		}
	}
	return present, nil
}

func sameHold(a, b *index.Hold) bool {
	x, y := *a, *b
	x.Since, y.Since = time.Time{}, time.Time{}
	return x == y && a.Since.UnixMicro() == b.Since.UnixMicro()
}

// recoverHold adds a hold, unless the index does not have its snapshot.
func (tx *Tx) recoverHold(ctx context.Context, h *index.Hold, by string) (added bool, err error) {
	if h.Shard == 0 {
		known, err := tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(h.Snapshot))).Exist(ctx)
		if err != nil || !known {
			return false, err
		}
	}
	args := append([]any{h.ID}, holdArgs(h)...)
	if err := tx.exec(ctx, recoverHold, append(args, h.Since.UnixMicro(), h.Login)...); err != nil {
		return false, err
	}
	return true, tx.writeLog(ctx, by, actionHold, holdSubject(h), holdReason(h, asInCatalog))
}

// RecoverLists implements index.Recovering.
func (x *Index) RecoverLists(ctx context.Context, lists []backup.ChunkList) error {
	lists = slices.Clone(lists)
	slices.SortFunc(lists, func(a, b backup.ChunkList) int { return slices.Compare(a.List[:], b.List[:]) })
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error { return tx.Hot.PutLists(ctx, lists) })
}

// KnownLists implements index.Recovering.
func (x *Index) KnownLists(ctx context.Context, lists []backup.ChunkID) (known map[backup.ChunkID]bool, err error) {
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		known, err = (&application{tx: tx}).knownLists(ctx, slices.Clone(lists))
		return err
	})
	return known, err
}

// RollBack implements index.Recovering.
func (x *Index) RollBack(ctx context.Context, shard backup.ShardID, to backup.SnapshotNumber) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.Hot.DropInterrupted(ctx, shard); err != nil {
			return err
		}
		if err := tx.Shard.UpdateOneID(int64(shard)).SetInterrupted(false).Exec(ctx); err != nil {
			return err
		}
		if err := tx.dropNames(ctx, shard, int64(to)+1, int64(open)); err != nil {
			return err
		}
		return tx.Hot.RollBack(ctx, shard, to)
	})
}

// SetJournalBytes implements index.Recovering.
func (x *Index) SetJournalBytes(ctx context.Context, shard backup.ShardID, checkpoint, segments int64) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		return tx.Shard.UpdateOneID(int64(shard)).SetCheckpointBytes(checkpoint).SetSegmentBytes(segments).Exec(ctx)
	})
}

// RecoverSnapshot implements index.Recovering.
func (x *Index) RecoverSnapshot(ctx context.Context, s index.RecoveredSnapshot) error {
	if s.State != backup.Committed && s.State != backup.Failed || s.Number < 1 || !validCounts(&s.Counts) {
		return invalid("snapshot %s, number %d, with state %q and counts %+v", s.ID, s.Number, s.State, s.Counts)
	}
	if err := validateSelection(s.Snapshot); err != nil {
		return err
	}
	if err := checkReason(s.By, ""); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		of, err := tx.lockShard(ctx, s.Shard.ID)
		if err != nil {
			return err
		}
		if err := tx.beginRecovered(ctx, of, &s); err != nil {
			return err
		}
		if err := tx.recoverProblems(ctx, &s); err != nil {
			return err
		}
		if err := tx.recoverRow(ctx, &s); err != nil {
			return err
		}
		if err := tx.recoverAmendment(ctx, &s); err != nil {
			return err
		}
		if err := tx.Shard.UpdateOneID(of.ID).SetLastNumber(max(of.LastNumber, int64(s.Number))).Exec(ctx); err != nil {
			return err
		}
		return tx.findLastGood(ctx, of)
	})
}

// beginRecovered inserts the row of a snapshot, unless there is one. What is never changed is set
// here, the rest by recoverRow.
func (tx *Tx) beginRecovered(ctx context.Context, of *ent.Shard, s *index.RecoveredSnapshot) error {
	known, err := tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(s.ID))).Exist(ctx)
	if err != nil {
		return err
	}
	if known {
		return tx.deleteWork(ctx, uuid.UUID(s.ID))
	}
	started := stamp(s.Started)
	sortTime, err := tx.sortTime(ctx, of.ID, started)
	if err != nil {
		return err
	}
	// It may have been removed from the index that this one was.
	if err := tx.exec(ctx, `DELETE FROM removed_snapshots WHERE id = $1`, uuid.UUID(s.ID)); err != nil {
		return err
	}
	create := tx.Snapshot.Create().SetID(uuid.UUID(s.ID)).SetShardID(of.ID).SetFilerID(of.FilerID).SetNumber(int64(s.Number)).SetState(string(s.State)).
		SetStarted(started).SetSortTime(sortTime).SetCompare(uint8(s.Compare)).SetSelection(s.Selection).
		SetAllowShrink(s.AllowShrink).SetNewRoot(s.NewRoot).SetTags(s.Tags)
	if s.Base > 0 {
		create.SetBase(int64(s.Base)).SetBaseID(uuid.UUID(s.BaseID))
	}
	err = create.Exec(ctx)
	if ent.IsConstraintError(err) {
		err = fmt.Errorf("shard %d has another snapshot with number %d: %w", of.ID, s.Number, backup.ErrExists)
	}
	return err
}

func (tx *Tx) recoverRow(ctx context.Context, s *index.RecoveredSnapshot) error {
	ended := stamp(s.Ended)
	update := setCounts(tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(s.ID))), s.Counts).
		SetState(string(s.State)).SetReason(text(s.Reason, maxErrorBytes)).SetBad(s.Bad).SetEnded(ended).SetRecorded(true).
		SetSource(s.Source).SetRoot(s.Root.String()).SetCancel("").SetChurnScore(s.ChurnScore).SetAlarm(text(s.Alarm, maxErrorBytes)).
		SetSegmentParts(s.Segment.Parts).SetCheckpoint(s.Segment.Checkpoint).SetPages(s.Pages.Pages).SetPagesSum(s.Pages.Sum[:])
	if s.State == backup.Committed {
		update.SetCommitted(ended)
	}
	if s.Segment.Parts > 0 {
		update.SetSegment(uuid.UUID(s.Segment.Attempt))
	} else {
		update.ClearSegment()
	}
	if !s.Forgotten {
		update.ClearForgotten()
	}
	if err := update.Exec(ctx); err != nil || !s.Forgotten {
		return err
	}
	return tx.recoverForgotten(ctx, s)
}

// recoverForgotten forgets a snapshot, and adds that to the log, as ForgetRemoved does: the
// database demands it also of the admin.
func (tx *Tx) recoverForgotten(ctx context.Context, s *index.RecoveredSnapshot) error {
	now, err := tx.at(ctx, time.Time{})
	if err != nil {
		return err
	}
	n, err := tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(s.ID)), snapshot.ForgottenIsNil()).SetForgotten(now).Save(ctx)
	if err != nil || n == 0 {
		return err
	}
	return tx.writeLog(ctx, s.By, actionForget, s.ID.String(), forgottenThere)
}

func (tx *Tx) recoverProblems(ctx context.Context, s *index.RecoveredSnapshot) error {
	if err := tx.exec(ctx, `DELETE FROM problems WHERE snapshot_id = $1`, uuid.UUID(s.ID)); err != nil {
		return err
	}
	var problems []newProblem
	stored := int64(0)
	for p, err := range s.Problems {
		if err != nil {
			return err
		}
		problems = append(problems, newProblem{uuid.UUID(s.ID), p})
		stored++
		if len(problems) == insertRows {
			if err := tx.insertProblems(ctx, problems); err != nil {
				return err
			}
			problems = problems[:0]
		}
	}
	if err := tx.insertProblems(ctx, problems); err != nil {
		return err
	}
	return tx.Snapshot.UpdateOneID(uuid.UUID(s.ID)).SetProblemsStored(stored).Exec(ctx)
}

func (tx *Tx) recoverAmendment(ctx context.Context, s *index.RecoveredSnapshot) error {
	if s.Amendment == 0 {
		return tx.exec(ctx, `DELETE FROM amendments WHERE snapshot = $1`, uuid.UUID(s.ID))
	}
	base := uuid.NullUUID{UUID: uuid.UUID(s.AmendedBase), Valid: s.AmendedBase != backup.SnapshotID{}}
	return tx.exec(ctx, putAmendment, uuid.UUID(s.ID), s.Amendment, base)
}
