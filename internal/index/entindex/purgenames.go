package entindex

import (
	"bytes"
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/names"
)

const (
	selectAllBlocks = `SELECT id, number, block FROM name_blocks WHERE shard = $1 AND id > $2 ORDER BY id LIMIT 64`
	updateBlock     = `UPDATE name_blocks SET block = $2 WHERE id = $1`
	deleteBlock     = `DELETE FROM name_blocks WHERE id = $1`
	takeFromGroup   = `UPDATE name_groups SET blocks = blocks - 1 WHERE shard = $1 AND number = $2`
)

// A storedBlock is a row of name_blocks.
type storedBlock struct {
	id, number int64
	block      []byte
}

// names removes the names of the path and of what is below it, unless earlier snapshots keep the
// path.
func (g *purging) names(ctx context.Context) error {
	if g.rekeyed {
		if err := g.tx.exec(ctx, markNames, g.of.ID); err != nil {
			return err
		}
	}
	if g.from > 1 {
		return nil
	}
	for after := int64(0); ; {
		blocks, err := listOf(ctx, g.tx.Each, selectAllBlocks, []any{g.of.ID, after}, func(scan func(...any) error) (b storedBlock, err error) {
			err = scan(&b.id, &b.number, &b.block)
			return b, err
		})
		if err != nil || len(blocks) == 0 {
			return err
		}
		for i := range blocks {
			if err := g.namesOf(ctx, &blocks[i]); err != nil {
				return err
			}
			after = blocks[i].id
		}
	}
}

// namesOf removes them from one block. One that is damaged may have them, and is deleted: the names
// are collected again.
func (g *purging) namesOf(ctx context.Context, b *storedBlock) error {
	pages, err := names.Decode(g.p.Shard, b.block)
	if err != nil {
		if err := g.tx.exec(ctx, markNames, g.of.ID); err != nil {
			return err
		}
		return g.deleteBlock(ctx, b)
	}
	dir, name := backup.Split(g.p.Path)
	parent, own := backup.PathKey(dir), backup.PathKey(g.p.Path)
	w, changed := names.Writer{Shard: g.p.Shard}, false
	for i := range pages {
		p := &pages[i]
		before := len(p.Names)
		switch {
		case bytes.HasPrefix(p.PathKey, own):
			p.Names = nil
		case bytes.Equal(p.PathKey, parent):
			p.Names = slices.DeleteFunc(p.Names, func(n string) bool { return n == name })
		}
		changed = changed || len(p.Names) < before
		w.Add(p)
	}
	if !changed {
		return nil
	}
	w.Flush()
	if len(w.Blocks) == 0 {
		return g.deleteBlock(ctx, b)
	}
	return g.tx.exec(ctx, updateBlock, b.id, w.Blocks[0]) // it has become shorter
}

func (g *purging) deleteBlock(ctx context.Context, b *storedBlock) error {
	if err := g.tx.exec(ctx, deleteBlock, b.id); err != nil {
		return err
	}
	return g.tx.exec(ctx, takeFromGroup, g.of.ID, b.number)
}
