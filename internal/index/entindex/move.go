package entindex

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const selectFrames = `SELECT id, frame_bytes, sums, adopted FROM packs ORDER BY id`

// Frames implements index.Pruning.
func (x *Index) Frames(ctx context.Context) iter.Seq2[index.PackFrames, error] {
	return sequence(func(yield func(index.PackFrames) error) error {
		return x.query(ctx, selectFrames, nil, func(scan func(...any) error) error {
			var f index.PackFrames
			var data []byte
			err := scan(&f.Row, &data, &f.Sums, &f.Adopted)
			if err == nil {
				f.Bytes, err = framesOf(f.Row, data)
			}
			if err != nil {
				return err
			}
			return yield(f)
		})
	})
}

// framesOf is the inverse of appendFrames.
func framesOf(row int64, data []byte) (lengths []uint32, err error) {
	for len(data) > 0 {
		length, n := binary.Uvarint(data)
		if n <= 0 || length > 1<<32-1 {
			return nil, fmt.Errorf("the lengths of the frames of pack %d: %w", row, backup.ErrCorrupt)
		}
		lengths, data = append(lengths, uint32(length)), data[n:]
	}
	return lengths, nil
}

const insertPlan = `
INSERT INTO packs (pack, snapshot, object, stored_bytes, frame_bytes, chunks, condemned, condemned_at, deleted) VALUES ($1, $2, $1, 0, $3, 0, true, {now}, {now})
RETURNING id`

// Plan implements index.Pruning. It is durable, because the object is written after it.
func (x *Index) Plan(ctx context.Context, t index.Term, snapshot backup.SnapshotID, object backup.PackID) (row int64, err error) {
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		return tx.Each(ctx, insertPlan, []any{uuid.UUID(object), uuid.UUID(snapshot), []byte{}}, func(scan func(...any) error) error { return scan(&row) })
	})
	return row, err
}

const (
	selectToMove = `SELECT id, condemned, deleted <> 0, pack, sealed, snapshot, object FROM packs WHERE {id in $1} ORDER BY id {for update}`
	insertMoved  = `
INSERT INTO packs (pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks, locked_until, sums, adopted, noted) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, {now})
RETURNING id`
	dropPlan = `DELETE FROM packs WHERE id = $1`
)

// A movable is the row of a pack that is moved, or of a plan.
type movable struct {
	condemned, deleting    bool
	pack, snapshot, object uuid.UUID
	sealed                 uuid.NullUUID
}

// Move implements index.Pruning. It is durable, because objects are deleted after it. It locks
// packs before chunks, as transactions of batches do.
func (x *Index) Move(ctx context.Context, t index.Term, m index.Move) error {
	gone, plans := slices.Clone(m.Dead), []int64{m.Plan}
	for i := range m.Copies {
		gone, plans = append(gone, m.Copies[i].Row), append(plans, cmp.Or(m.Copies[i].Plan, m.Plan))
	}
	slices.Sort(gone)
	slices.Sort(plans)
	gone, plans = slices.Compact(gone), slices.Compact(plans)
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		rows, err := tx.lockMovable(ctx, slices.Concat(gone, plans))
		if err != nil {
			return err
		}
		for _, plan := range plans {
			if at, ok := rows[plan]; !ok || !at.deleting {
				return invalid("object of pack %d is not planned", plan)
			}
		}
		for _, row := range gone {
			if at, ok := rows[row]; !ok || !at.condemned || at.deleting {
				return invalid("pack %d cannot be moved", row)
			}
		}
		if err := tx.execList(ctx, deletePacks, gone); err != nil {
			return err
		}
		// Before the copies are inserted: the first of an object may have the id of its plan.
		for _, plan := range plans {
			if err := tx.exec(ctx, dropPlan, plan); err != nil {
				return err
			}
		}
		for i := range m.Copies {
			c := &m.Copies[i]
			if err := tx.moveTo(ctx, rows[cmp.Or(c.Plan, m.Plan)], rows[c.Row], c); err != nil {
				return err
			}
		}
		for i := range m.New {
			if err := tx.putNew(ctx, rows[m.Plan], &m.New[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// lockMovable locks packs in the order of their ids, in which batches lock them too.
func (tx *Tx) lockMovable(ctx context.Context, rows []int64) (map[int64]movable, error) {
	found := map[int64]movable{}
	slices.Sort(rows)
	err := eachOf(ctx, tx, selectToMove, rows, func(scan func(...any) error) error {
		var row int64
		var m movable
		err := scan(&row, &m.condemned, &m.deleting, &m.pack, &m.sealed, &m.snapshot, &m.object)
		found[row] = m
		return err
	})
	return found, err
}

// moveTo registers the copy of a pack in a planned object, and moves the places of its chunks.
func (tx *Tx) moveTo(ctx context.Context, plan, from movable, c *index.PackCopy) error {
	sealed := from.pack
	if from.sealed.Valid {
		sealed = from.sealed.UUID
	}
	to := plan
	if c.Stays {
		to = from
	}
	ids := sortedIDs(c.Chunks)
	var row int64
	err := tx.Each(ctx, insertMoved,
		[]any{uuid.UUID(c.Pack), sealed, to.snapshot, to.object, c.Offset, c.Bytes, appendFrames(nil, c.FrameBytes), int64(len(ids)), lockedAt(c.LockedUntil), NotNull(c.Sums), c.Adopted},
		func(scan func(...any) error) error { return scan(&row) })
	if err != nil {
		return err
	}
	return tx.Hot.MovePlaces(ctx, c.Row, row, ids)
}

// putNew registers a pack that was sealed anew. Its places are copies of those in dead packs, and
// remain when these are dropped.
func (tx *Tx) putNew(ctx context.Context, plan movable, p *index.NewPack) error {
	var row int64
	err := tx.Each(ctx, insertMoved,
		[]any{uuid.UUID(p.Pack), uuid.UUID(p.Sealed), plan.snapshot, plan.object, p.Offset, p.Bytes, appendFrames(nil, p.FrameBytes), int64(len(p.Chunks)), lockedAt(time.Time{}), NotNull(p.Sums), false},
		func(scan func(...any) error) error { return scan(&row) })
	if err != nil {
		return err
	}
	places := make([]ChunkRow, len(p.Chunks))
	for i := range p.Chunks {
		places[i] = ChunkRow{p.Chunks[i], row}
	}
	return tx.Hot.PutChunks(ctx, sortPlaces(places))
}
