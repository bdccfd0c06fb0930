package entindex

import (
	"context"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const recoverPack = `
INSERT INTO packs (pack, sealed, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks, noted) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {now})
ON CONFLICT (pack) DO NOTHING RETURNING id`

// RecoverPacks implements index.Recovering.
func (x *Index) RecoverPacks(ctx context.Context, packs []index.RecoveredPack) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		var places []ChunkRow
		for i := range packs {
			p := &packs[i]
			sealed := uuid.NullUUID{UUID: uuid.UUID(p.Sealed), Valid: p.Sealed != backup.PackID{}}
			args := []any{uuid.UUID(p.Pack), sealed, uuid.UUID(p.Snapshot), uuid.UUID(p.Object), p.Offset, p.Bytes, appendFrames(nil, p.FrameBytes), int64(len(p.Chunks))}
			err := tx.Each(ctx, recoverPack, args, func(scan func(...any) error) error {
				var row int64
				err := scan(&row)
				for c := range p.Chunks {
					places = append(places, ChunkRow{p.Chunks[c], row})
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return tx.Hot.PutChunks(ctx, sortPlaces(places))
	})
}
