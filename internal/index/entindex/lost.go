package entindex

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	selectLosing   = `SELECT pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes FROM packs WHERE id = $1`
	insertLostPack = `
INSERT INTO lost_packs (pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (pack) DO NOTHING`
	selectLostPacks = `SELECT pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks FROM lost_packs ORDER BY object, object_offset`
	selectLostHere  = `SELECT object, snapshot FROM lost_packs WHERE {object in $1}`
	deleteLost      = `DELETE FROM lost_packs WHERE pack = $1`
)

// lostChunkBytes is the length of an encoded place.
const lostChunkBytes = 16 + 3*4

// NoteLost implements index.Repairing.
func (x *Index) NoteLost(ctx context.Context, t index.Term, rows []int64) error {
	for _, row := range rows {
		var chunks []byte
		err := x.Backend.EachLocation(ctx, []int64{row}, func(c index.ChunkLocation) error {
			chunks = append(chunks, c.Chunk[:]...)
			for _, n := range []uint32{c.Frame, c.Start, c.Length} {
				chunks = binary.BigEndian.AppendUint32(chunks, n)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
			if err := tx.checkTerm(ctx, t); err != nil {
				return err
			}
			var pack, snapshot, object uuid.UUID
			var sealed uuid.NullUUID
			var offset, bytes int64
			var frames []byte
			found := false
			err := tx.Each(ctx, selectLosing, []any{row}, func(scan func(...any) error) error {
				found = true
				return scan(&pack, &sealed, &snapshot, &object, &offset, &bytes, &frames)
			})
			if err != nil || !found {
				return err
			}
			return tx.exec(ctx, insertLostPack, pack, sealed, snapshot, object, offset, bytes, NotNull(frames), NotNull(chunks))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// LostPacks implements index.Repairing.
func (x *Index) LostPacks(ctx context.Context) ([]index.RecoveredPack, error) {
	return listOf(ctx, x.query, selectLostPacks, nil, func(scan func(...any) error) (p index.RecoveredPack, err error) {
		var pack, snapshot, object uuid.UUID
		var sealed uuid.NullUUID
		var frames, chunks []byte
		if err := scan(&pack, &sealed, &snapshot, &object, &p.Offset, &p.Bytes, &frames, &chunks); err != nil {
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

// TakeBack implements index.Repairing.
func (x *Index) TakeBack(ctx context.Context, packs []index.RecoveredPack) error {
	if err := x.RecoverPacks(ctx, packs); err != nil {
		return err
	}
	return x.ForgetLost(ctx, packs)
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
