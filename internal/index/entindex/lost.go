package entindex

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	selectLosing   = `SELECT id, pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, sums FROM packs WHERE {id in $1}`
	insertLostPack = `
INSERT INTO lost_packs (pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, sums, chunks) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (pack) DO NOTHING`
	selectLostPacks   = `SELECT pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, sums, chunks FROM lost_packs ORDER BY object, object_offset`
	selectLostObjects = `SELECT DISTINCT snapshot, object FROM lost_packs`
	selectLostHere    = `SELECT object, snapshot FROM lost_packs WHERE {object in $1}`
	deleteLost        = `DELETE FROM lost_packs WHERE pack = $1`
	// Rows of deleted packs stay until the snapshots have ended that were running then.
	selectDying  = `SELECT pack FROM packs WHERE deleted <> 0`
	setFoundSums = `UPDATE packs SET sums = $2 WHERE pack = $1`
)

const (
	// lostChunkBytes is the length of an encoded place.
	lostChunkBytes = 16 + 3*4
	// lostAtOnce is how many packs NoteLost notes after one scan of all places.
	lostAtOnce = 1000
)

// NoteLost implements index.Repairing.
func (x *Index) NoteLost(ctx context.Context, t index.Term, rows []int64) error {
	for group := range slices.Chunk(rows, lostAtOnce) {
		if err := x.noteLost(ctx, t, group); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) noteLost(ctx context.Context, t index.Term, rows []int64) error {
	chunks := make(map[int64][]byte, len(rows))
	err := x.Backend.EachLocation(ctx, rows, func(c index.ChunkLocation) error {
		b := chunks[c.Pack]
		b = append(b, c.Chunk[:]...)
		for _, n := range []uint32{c.Frame, c.Start, c.Length} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		chunks[c.Pack] = b
		return nil
	})
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		var notes [][]any
		err := eachOf(ctx, tx, selectLosing, rows, func(scan func(...any) error) error {
			var row, offset, bytes int64
			var pack, snapshot, object uuid.UUID
			var sealed uuid.NullUUID
			var frames, sums []byte
			err := scan(&row, &pack, &sealed, &snapshot, &object, &offset, &bytes, &frames, &sums)
			notes = append(notes, []any{pack, sealed, snapshot, object, offset, bytes, NotNull(frames), NotNull(sums), NotNull(chunks[row])})
			return err
		})
		for _, args := range notes {
			if err == nil {
				err = tx.exec(ctx, insertLostPack, args...)
			}
		}
		return err
	})
}

// LostObjects implements index.Pruning.
func (x *Index) LostObjects(ctx context.Context) ([]index.StoredObject, error) {
	return listOf(ctx, x.query, selectLostObjects, nil, func(scan func(...any) error) (o index.StoredObject, err error) {
		var of, object uuid.UUID
		err = scan(&of, &object)
		o.Snapshot, o.ID = backup.SnapshotID(of), backup.PackID(object)
		return o, err
	})
}

// LostPacks implements index.Repairing.
func (x *Index) LostPacks(ctx context.Context) ([]index.RecoveredPack, error) {
	return listOf(ctx, x.query, selectLostPacks, nil, func(scan func(...any) error) (p index.RecoveredPack, err error) {
		var pack, snapshot, object uuid.UUID
		var sealed uuid.NullUUID
		var frames, chunks []byte
		if err := scan(&pack, &sealed, &snapshot, &object, &p.Offset, &p.Bytes, &frames, &p.Sums, &chunks); err != nil {
			return p, err
		}
		p.Pack, p.Sealed, p.Snapshot, p.Object = backup.PackID(pack), backup.PackID(sealed.UUID), backup.SnapshotID(snapshot), backup.PackID(object)
		for len(frames) > 0 {
			n, size := binary.Uvarint(frames)
			if size <= 0 || n > 1<<32-1 {
				return p, fmt.Errorf("frames of lost pack %s in the index: %w", p.Pack, backup.ErrCorrupt)
			}
			p.FrameBytes, frames = append(p.FrameBytes, uint32(n)), frames[size:]
		}
		if len(chunks)%lostChunkBytes != 0 {
			return p, fmt.Errorf("chunks of lost pack %s in the index: %w", p.Pack, backup.ErrCorrupt)
		}
		for ; len(chunks) > 0; chunks = chunks[lostChunkBytes:] {
			number := func(i int) uint32 { return binary.BigEndian.Uint32(chunks[16+4*i:]) }
			p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: backup.ChunkID(chunks[:16]), Frame: number(0), Offset: number(1), Length: number(2)})
		}
		return p, nil
	})
}

// TakeBack implements index.Repairing. The caller leads, so no row begins or ends to be deleted
// meanwhile.
func (x *Index) TakeBack(ctx context.Context, packs []index.RecoveredPack) (taken []index.RecoveredPack, err error) {
	dying := map[backup.PackID]bool{}
	err = x.query(ctx, selectDying, nil, func(scan func(...any) error) error {
		var id uuid.UUID
		err := scan(&id)
		dying[backup.PackID(id)] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	taken = slices.DeleteFunc(slices.Clone(packs), func(p index.RecoveredPack) bool { return dying[p.Pack] })
	if err := x.RecoverPacks(ctx, taken); err != nil {
		return nil, err
	}
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		for i := range taken {
			if err := tx.exec(ctx, setFoundSums, uuid.UUID(taken[i].Pack), NotNull(taken[i].Sums)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return taken, x.ForgetLost(ctx, taken)
}

// ForgetLost implements index.Repairing.
func (x *Index) ForgetLost(ctx context.Context, packs []index.RecoveredPack) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		for i := range packs {
			if err := tx.exec(ctx, deleteLost, uuid.UUID(packs[i].Pack)); err != nil {
				return err
			}
		}
		return nil
	})
}
