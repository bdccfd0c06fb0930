package entindex

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// errStopped reports that the consumer of a sequence wants no more.
var errStopped = errors.New("stopped")

// sequence returns the elements for which each calls its argument. each returns the errors of its
// argument.
func sequence[T any](each func(func(T) error) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := each(func(v T) error {
			if !yield(v, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			var none T
			yield(none, err)
		}
	}
}

// isNeeded selects the snapshots that need their versions of pages: those that are committed and
// not forgotten, those that are running, those that are being restored, and the newest committed
// one, which is the base of the running snapshot or of the next one.
const isNeeded = `(s.state = 'running' OR s.state = 'committed' AND (s.forgotten IS NULL
    OR EXISTS (SELECT 1 FROM readings r WHERE r.snapshot = s.id AND r.until > $1)
    OR s.number = (SELECT max(n.number) FROM snapshots n WHERE n.shard_id = s.shard_id AND n.state = 'committed')))`

const (
	selectNeeded = `
SELECT s.shard_id, s.number, s.id, s.state = 'committed' AND s.number < (SELECT max(n.number) FROM snapshots n WHERE n.shard_id = s.shard_id AND n.state = 'committed')
FROM snapshots s WHERE ` + isNeeded + ` ORDER BY s.shard_id, s.number`
	neededNumbers = `SELECT s.number FROM snapshots s WHERE s.shard_id = $2 AND ` + isNeeded + ` ORDER BY s.number`
	// A shard without such a snapshot has only forgotten and failed ones.
	countReadable = `
SELECT count(*) FROM snapshots s
WHERE s.shard_id = $2 AND (s.state = 'running' OR s.state = 'committed' AND (s.forgotten IS NULL
    OR EXISTS (SELECT 1 FROM readings r WHERE r.snapshot = s.id AND r.until > $1)))`
	closeShard = `UPDATE snapshots SET state = 'deleting' WHERE shard_id = $1 AND state = 'committed' AND forgotten IS NOT NULL`
)

// Needed implements index.Pruning.
func (x *Index) Needed(ctx context.Context, without []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error) {
	now, err := x.Backend.Clock(ctx)
	if err != nil {
		return nil, err
	}
	left := make(map[uuid.UUID]bool, len(without))
	for _, id := range without {
		left[uuid.UUID(id)] = true
	}
	needed := map[backup.ShardID][]backup.SnapshotNumber{}
	err = x.query(ctx, selectNeeded, []any{now.UnixMicro()}, func(scan func(...any) error) error {
		var shard backup.ShardID
		var number backup.SnapshotNumber
		var id uuid.UUID
		var past bool // not the newest committed one, and not running
		err := scan(&shard, &number, &id, &past)
		if !past || !left[id] {
			needed[shard] = append(needed[shard], number)
		}
		return err
	})
	return needed, err
}

// neededOf returns the numbers of the snapshots of a shard that need their versions of pages; if
// there are none, the number of the next one.
func (tx *Tx) neededOf(ctx context.Context, of *ent.Shard) (numbers []backup.SnapshotNumber, err error) {
	now, err := tx.at(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	err = tx.Each(ctx, neededNumbers, []any{now.UnixMicro(), of.ID}, func(scan func(...any) error) error {
		var n backup.SnapshotNumber
		err := scan(&n)
		numbers = append(numbers, n)
		return err
	})
	if len(numbers) == 0 {
		numbers = append(numbers, backup.SnapshotNumber(of.LastNumber)+1)
	}
	return numbers, err
}

const selectFence = `
SELECT h.id, coalesce((SELECT s.number FROM snapshots s WHERE s.shard_id = h.id AND s.state = 'running'), h.last_number + 1)
FROM shards h`

// Fence implements index.Pruning.
func (x *Index) Fence(ctx context.Context) (map[backup.ShardID]backup.SnapshotNumber, error) {
	fence := map[backup.ShardID]backup.SnapshotNumber{}
	err := x.query(ctx, selectFence, nil, func(scan func(...any) error) error {
		var shard backup.ShardID
		var number backup.SnapshotNumber
		err := scan(&shard, &number)
		fence[shard] = number
		return err
	})
	return fence, err
}

// References implements index.Pruning.
func (x *Index) References(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed []backup.SnapshotNumber) iter.Seq2[[]byte, error] {
	return sequence(func(yield func([]byte) error) error { return x.Backend.EachListing(ctx, shard, from, needed, yield) })
}

// HasLists implements index.Pruning.
func (x *Index) HasLists(ctx context.Context, lists []backup.ChunkID) (bool, error) {
	for group := range slices.Chunk(lists, listLength) {
		if ok, err := x.Backend.HasLists(ctx, group); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// ChunkLists implements index.Pruning.
func (x *Index) ChunkLists(ctx context.Context) iter.Seq2[backup.ChunkList, error] {
	return sequence(func(yield func(backup.ChunkList) error) error { return x.Backend.EachList(ctx, yield) })
}

// Places implements index.Pruning.
func (x *Index) Places(ctx context.Context, rows []int64) iter.Seq2[index.PlaceOf, error] {
	return sequence(func(yield func(index.PlaceOf) error) error {
		return x.Backend.EachPlace(ctx, rows, yield)
	})
}

const selectAllPacks = `
SELECT p.id, p.pack, p.snapshot, p.object, p.object_offset, p.stored_bytes, p.sealed, p.chunks, p.condemned, p.deleted <> 0, p.gone, p.locked_until, coalesce(s.state = 'running', false)
FROM packs p LEFT JOIN snapshots s ON s.id = p.snapshot
ORDER BY p.id`

// Packs implements index.Pruning.
func (x *Index) Packs(ctx context.Context) iter.Seq2[index.Pack, error] {
	return sequence(func(yield func(index.Pack) error) error {
		return x.query(ctx, selectAllPacks, nil, func(scan func(...any) error) error {
			var p index.Pack
			var pack, snapshot, object uuid.UUID
			var sealed uuid.NullUUID
			var locked int64
			if err := scan(&p.Row, &pack, &snapshot, &object, &p.Offset, &p.Bytes, &sealed, &p.Chunks, &p.Condemned, &p.Deleting, &p.Gone, &locked, &p.Running); err != nil {
				return err
			}
			p.Pack, p.Snapshot, p.Object = backup.PackID(pack), backup.SnapshotID(snapshot), backup.PackID(object)
			p.Sealed, p.LockedUntil = backup.PackID(sealed.UUID), fromMicros(locked)
			return yield(p)
		})
	})
}

const (
	lockPackRows = `SELECT id FROM packs WHERE {id in $1} ORDER BY id {for update}`
	condemnNow   = `UPDATE packs SET condemned = true, condemned_at = CASE WHEN condemned THEN condemned_at ELSE {now} END WHERE {id in $1}`
	acquitPacks  = `UPDATE packs SET condemned = false, condemned_at = 0 WHERE deleted = 0 AND {id in $1}`
	deletePacks  = `UPDATE packs SET deleted = {now} WHERE condemned AND deleted = 0 AND {id in $1}`
	notePacks    = `UPDATE packs SET gone = true WHERE deleted <> 0 AND {id in $1}`
	dropPacks    = `DELETE FROM packs WHERE deleted <> 0 AND deleted < $2 AND {id in $1}`
)

// Condemn implements index.Pruning. It is durable, because objects are deleted after it.
func (x *Index) Condemn(ctx context.Context, t index.Term, rows []int64) error {
	return x.changePacks(ctx, t, condemnNow, rows)
}

// Acquit implements index.Pruning.
func (x *Index) Acquit(ctx context.Context, t index.Term, rows []int64) error {
	return x.changePacks(ctx, t, acquitPacks, rows)
}

// Deleting implements index.Pruning.
func (x *Index) Deleting(ctx context.Context, t index.Term, rows []int64) error {
	return x.changePacks(ctx, t, deletePacks, rows)
}

// changePacks locks packs in the order of their ids, in which batches lock them too, and changes
// them.
func (x *Index) changePacks(ctx context.Context, t index.Term, statement string, rows []int64) error {
	for group := range slices.Chunk(rows, listLength) {
		err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
			if err := tx.checkTerm(ctx, t); err != nil {
				return err
			}
			if err := eachOf(ctx, tx, lockPackRows, group, func(func(...any) error) error { return nil }); err != nil {
				return err
			}
			return tx.execList(ctx, statement, group)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DropPlaces implements index.Pruning.
func (x *Index) DropPlaces(ctx context.Context, rows []int64, digit byte) error {
	if len(rows) == 0 {
		return nil
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error { return tx.Hot.DropPlaces(ctx, rows, digit) })
}

// DropLists implements index.Pruning. A list of lists may become incomplete when another one is
// deleted.
func (x *Index) DropLists(ctx context.Context) error {
	for {
		var dropped int64
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) (err error) {
			dropped, err = tx.Hot.DropLists(ctx)
			return err
		})
		if err != nil || dropped == 0 {
			return err
		}
	}
}

// Gone implements index.Pruning. It needs no term: what is deleted stays deleted.
func (x *Index) Gone(ctx context.Context, rows []int64) error {
	for group := range slices.Chunk(rows, listLength) {
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
			if err := eachOf(ctx, tx, lockPackRows, group, func(func(...any) error) error { return nil }); err != nil {
				return err
			}
			return tx.execList(ctx, notePacks, group)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DropPacks implements index.Pruning. Only a snapshot that began before a pack was Deleting can
// have a batch that relies on it.
func (x *Index) DropPacks(ctx context.Context, rows []int64) (dropped int, err error) {
	for group := range slices.Chunk(rows, listLength) {
		n := 0
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) (err error) {
			before := int64(math.MaxInt64)
			oldest, err := tx.Snapshot.Query().Where(running()).Order(snapshot.ByStarted()).Limit(1).Select(snapshot.FieldStarted).All(ctx)
			if err != nil {
				return err
			}
			if len(oldest) > 0 {
				before = oldest[0].Started.UnixMicro()
			}
			n, err = tx.change(ctx, dropPacks, tx.anew(tx.List(group), before)...)
			return err
		})
		if err != nil {
			return dropped, err
		}
		dropped += n
	}
	return dropped, nil
}

// Forgotten implements index.Pruning. Besides the result, it has the snapshots of one shard at a
// time in memory.
func (x *Index) Forgotten(ctx context.Context) ([]index.Forgotten, error) {
	shards, err := x.Backend.Client().Snapshot.Query().Where(snapshot.ForgottenNotNil()).Unique(true).Select(snapshot.FieldShardID).Ints(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	slices.Sort(shards)
	var forgotten []index.Forgotten
	for _, shard := range slices.Compact(shards) {
		rows, err := x.Backend.Client().Snapshot.Query().Where(snapshot.ShardID(int64(shard))).Order(snapshot.ByNumber()).
			Select(snapshot.FieldID, snapshot.FieldShardID, snapshot.FieldNumber, snapshot.FieldBaseID, snapshot.FieldState, snapshot.FieldForgotten,
				snapshot.FieldSegment, snapshot.FieldSegmentParts, snapshot.FieldCheckpoint).All(ctx)
		if err != nil {
			return nil, x.Backend.Wrap(err)
		}
		amended, err := x.journalBases(ctx, backup.ShardID(shard))
		if err != nil {
			return nil, err
		}
		needed := chains(rows, amended)
		for _, row := range rows {
			if row.Forgotten == nil {
				continue
			}
			f := index.Forgotten{
				ID: backup.SnapshotID(row.ID), Shard: backup.ShardID(row.ShardID), Number: backup.SnapshotNumber(row.Number), Needed: needed[row.ID],
				Segment: backup.Segment{Parts: row.SegmentParts, Checkpoint: row.Checkpoint},
			}
			f.Amendment = amended[row.ID].sequence
			if row.Segment != nil {
				f.Segment.Attempt = backup.PackID(*row.Segment)
			}
			forgotten = append(forgotten, f)
		}
	}
	return forgotten, nil
}

// chains returns the snapshots of a shard that are in the chain of segments of a needed snapshot. A
// snapshot is needed if it is running, if it is the newest committed one, or if it is committed and
// not forgotten. rows are in the order of their numbers. A segment of an amended record is based on
// the snapshot that the amendment names.
func chains(rows []*ent.Snapshot, amended map[uuid.UUID]journalBase) map[uuid.UUID]bool {
	byID := make(map[uuid.UUID]*ent.Snapshot, len(rows))
	newest := uuid.UUID{}
	for _, row := range rows {
		byID[row.ID] = row
		if row.State == string(backup.Committed) {
			newest = row.ID
		}
	}
	needed := map[uuid.UUID]bool{}
	for _, row := range rows {
		switch backup.State(row.State) {
		case backup.Running:
		case backup.Committed:
			if row.Forgotten != nil && row.ID != newest {
				continue
			}
		default:
			continue
		}
		for at := row; at != nil && !needed[at.ID]; {
			needed[at.ID] = true
			base := uuid.NullUUID{}
			if at.BaseID != nil {
				base = uuid.NullUUID{UUID: *at.BaseID, Valid: true}
			}
			if a := amended[at.ID]; a.sequence > 0 {
				base = a.base
			}
			if at.Checkpoint && at.SegmentParts > 0 || !base.Valid {
				break
			}
			at = byID[base.UUID]
		}
	}
	return needed
}

const (
	deleteProblems  = `DELETE FROM problems WHERE snapshot_id = $1`
	deleteOfRemoved = `DELETE FROM readings WHERE snapshot = $1`
	deleteAmendment = `DELETE FROM amendments WHERE snapshot = $1`
	noteRemoved     = `INSERT INTO removed_snapshots (id) VALUES ($1) ON CONFLICT DO NOTHING`
	stillNeeded     = `SELECT count(*) FROM snapshots s WHERE s.id = $2 AND (s.forgotten IS NULL OR ` + isNeeded + `)`
)

// Remove implements index.Pruning.
func (x *Index) Remove(ctx context.Context, id backup.SnapshotID) error {
	found, err := x.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if _, err := tx.lockShard(ctx, found.Shard.ID); err != nil {
			return err
		}
		now, err := tx.at(ctx, time.Time{})
		if err != nil {
			return err
		}
		needed, err := tx.count(ctx, stillNeeded, now.UnixMicro(), uuid.UUID(id))
		if err == nil && needed > 0 {
			err = fmt.Errorf("snapshot %s: %w", id.Short(), index.ErrKept)
		}
		if err != nil {
			return err
		}
		return tx.removeRow(ctx, uuid.UUID(id))
	})
}

// removeRow deletes the row of a snapshot and those that belong to it, and notes that the index had
// the snapshot.
func (tx *Tx) removeRow(ctx context.Context, id uuid.UUID) error {
	for _, statement := range []string{deleteProblems, deleteOfRemoved, deleteAmendment, noteRemoved} {
		if err := tx.exec(ctx, statement, id); err != nil {
			return err
		}
	}
	if err := tx.dropLocks(ctx, backup.SnapshotID(id)); err != nil {
		return err
	}
	return tx.Snapshot.DeleteOneID(id).Exec(ctx)
}
