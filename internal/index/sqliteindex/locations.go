package sqliteindex

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// EachLocation implements entindex.HotReader.
func (b *backend) EachLocation(ctx context.Context, packs []int64, do func(index.ChunkLocation) error) error {
	condition, args := "", []any(nil)
	if packs != nil {
		list, err := json.Marshal(packs)
		if err != nil {
			return err
		}
		condition, args = " WHERE pack IN (SELECT value FROM json_each(?1))", []any{string(list)}
	}
	var id sql.RawBytes
	for _, table := range []string{"chunks", "chunk_copies"} {
		err := b.each(ctx, "SELECT id, pack, frame, frame_offset, length FROM "+table+condition, args, func(rows *sql.Rows) error {
			var l index.ChunkLocation
			if err := rows.Scan(&id, &l.Pack, &l.Frame, &l.Start, &l.Length); err != nil {
				return err
			}
			l.Chunk = backup.ChunkID(id)
			return do(l)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
