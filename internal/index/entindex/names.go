package entindex

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/names"
)

// A group are the names of a shard that one snapshot brought, or were collected.
type group struct {
	shard  backup.ShardID
	number int64
}

const (
	collected  = 0  // the number of names that were collected from the pages
	collecting = -1 // while that lasts
)

// A namer finds out which names pages bring. Each version of a page has its names in the groups of
// its own snapshot and of earlier ones, unless its shard is in names_incomplete.
type namer struct {
	of         preparation // of the row
	decoder    listing.Decoder
	incomplete map[backup.ShardID]bool
	pages      map[group][]names.Page
}

func (tx *Tx) newNamer(ctx context.Context) (*namer, error) {
	n := &namer{incomplete: map[backup.ShardID]bool{}, pages: map[group][]names.Page{}}
	err := tx.Each(ctx, `SELECT shard FROM names_incomplete`, nil, func(scan func(...any) error) error {
		var shard backup.ShardID
		err := scan(&shard)
		n.incomplete[shard] = true
		return err
	})
	return n, err
}

// add notes the names of a page that the open version does not have. If not all names of the shard
// are known, that version's may not be: all are noted. plain is the row's plain listing, if it is
// known. Mostly, it has the names of the base with which it was compared.
func (n *namer) add(row *PageRow, plain []byte, open *OpenPage) {
	known := open.First != 0 && !n.incomplete[row.Shard]
	if known && n.of.compared != nil && listing.SameNames(plain, n.of.compared) {
		return
	}
	now, err := n.decoder.Names(row.Listing)
	if err != nil {
		return // it is stored as it is, and refused by those who read it
	}
	if known {
		if old, err := n.decoder.Names(Whole(open.Listing, open.BaseListing)); err == nil {
			now = without(now, old)
		}
	}
	if len(now) > 0 {
		of := group{row.Shard, int64(row.Number)}
		n.pages[of] = append(n.pages[of], names.Page{PathKey: row.PathKey, Key: row.Key, Names: now})
	}
}

// without returns the names that are not in old. Both are sorted.
func without(list, old []string) []string {
	return slices.DeleteFunc(list, func(name string) bool {
		for len(old) > 0 && old[0] < name {
			old = old[1:]
		}
		return len(old) > 0 && old[0] == name
	})
}

// put stores the names that were noted.
func (n *namer) put(ctx context.Context, tx *Tx) error {
	groups := make([]group, 0, len(n.pages))
	for of := range n.pages {
		groups = append(groups, of)
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.number, b.number)) })
	for _, of := range groups {
		pages := n.pages[of]
		slices.SortFunc(pages, func(a, b names.Page) int {
			return cmp.Or(bytes.Compare(a.PathKey, b.PathKey), cmp.Compare(a.Key, b.Key))
		})
		w := names.Writer{Shard: of.shard}
		for i := range pages {
			w.Add(&pages[i])
		}
		if err := tx.putNames(ctx, of, &w); err != nil {
			return err
		}
	}
	return nil
}

const (
	insertBlocks = `INSERT INTO name_blocks (shard, number, block) VALUES `
	addToGroup   = `
INSERT INTO name_groups AS g (shard, number, blocks, names) VALUES ($1, $2, $3, $4)
ON CONFLICT (shard, number) DO UPDATE SET blocks = g.blocks + excluded.blocks, names = g.names + excluded.names`
	markNames = `
INSERT INTO names_incomplete AS i (shard, marks) VALUES ($1, 1)
ON CONFLICT (shard) DO UPDATE SET marks = i.marks + 1`

	dropBlocks     = `DELETE FROM name_blocks WHERE shard = $1 AND number >= $2 AND number <= $3`
	dropGroups     = `DELETE FROM name_groups WHERE shard = $1 AND number >= $2 AND number <= $3`
	selectGroups   = `SELECT number, blocks, names FROM name_groups WHERE shard = $1 AND number >= 0 ORDER BY number`
	selectBlocks   = `SELECT id, number, block FROM name_blocks WHERE shard = $1 AND number = $2 AND id > $3 ORDER BY id LIMIT 64`
	countUngrouped = `
SELECT count(*) FROM name_blocks b WHERE shard = $1 AND number >= 0
AND NOT EXISTS (SELECT 1 FROM name_groups g WHERE g.shard = b.shard AND g.number = b.number)`
	countIncomplete = `SELECT coalesce(max(marks), 0) FROM names_incomplete WHERE shard = $1`
)

// putNames stores the blocks of a writer, which is empty then.
func (tx *Tx) putNames(ctx context.Context, of group, w *names.Writer) error {
	w.Flush()
	if len(w.Blocks) == 0 {
		return nil
	}
	if err := tx.exec(ctx, addToGroup, int64(of.shard), of.number, len(w.Blocks), w.Names); err != nil {
		return err
	}
	err := insertAll(ctx, tx, insertBlocks, w.Blocks, func(block *[]byte) []any { return []any{int64(of.shard), of.number, *block} })
	w.Blocks, w.Names = nil, 0
	return err
}

// dropNames deletes the names of a shard that snapshots from the first to the last number brought.
func (tx *Tx) dropNames(ctx context.Context, shard backup.ShardID, from, to int64) error {
	if err := tx.exec(ctx, dropBlocks, int64(shard), from, to); err != nil {
		return err
	}
	return tx.exec(ctx, dropGroups, int64(shard), from, to)
}

// A nameGroup is a row of name_groups.
type nameGroup struct{ number, blocks, names int64 }

func nameGroups(ctx context.Context, each each, shard backup.ShardID) ([]nameGroup, error) {
	return listOf(ctx, each, selectGroups, []any{int64(shard)}, func(scan func(...any) error) (g nameGroup, err error) {
		err = scan(&g.number, &g.blocks, &g.names)
		return g, err
	})
}

// namesAttempts is how often names are read if they are collected meanwhile.
const namesAttempts = 3

// EachName implements index.Naming. It compares the number of blocks with what name_groups says, so
// that a block that is missing is noticed, too.
func (x *Index) EachName(ctx context.Context, shard backup.ShardID, do func(page backup.PageName, names []string) error) error {
	marks := int64(0)
	err := x.query(ctx, countIncomplete, []any{int64(shard)}, func(scan func(...any) error) error { return scan(&marks) })
	if err == nil && marks > 0 {
		err = fmt.Errorf("shard %d has pages of which the names are not collected: %w", shard, index.ErrNamesIncomplete)
	}
	if err != nil {
		return err
	}
	groups, err := nameGroups(ctx, x.query, shard)
	for attempt := 1; err == nil; attempt++ {
		failed := error(nil)
		for _, g := range groups {
			if failed = x.eachNameOf(ctx, group{shard, g.number}, g.blocks, do); failed != nil {
				break
			}
		}
		if failed == nil {
			failed = x.eachIsGrouped(ctx, shard)
		}
		if failed == nil || ctx.Err() != nil {
			return failed
		}
		again, err := nameGroups(ctx, x.query, shard)
		if err != nil || slices.Equal(again, groups) || attempt == namesAttempts {
			return cmp.Or(err, failed)
		}
		groups = again
	}
	return err
}

// eachNameOf calls do for the names of a group, which has at least so many blocks.
func (x *Index) eachNameOf(ctx context.Context, of group, blocks int64, do func(page backup.PageName, names []string) error) error {
	found, after := int64(0), int64(0)
	for more := true; more; {
		var some [][]byte
		err := x.query(ctx, selectBlocks, []any{int64(of.shard), of.number, after}, func(scan func(...any) error) error {
			var number int64
			var block []byte
			err := scan(&after, &number, &block)
			some = append(some, block)
			return err
		})
		if err != nil {
			return err
		}
		found += int64(len(some))
		more = len(some) > 0
		for group := range slices.Chunk(some, runtime.GOMAXPROCS(0)) {
			if err := eachNameIn(of.shard, group, do); err != nil {
				return err
			}
		}
	}
	if found < blocks {
		return fmt.Errorf("shard %d has %d of %d blocks of names of snapshot %d: %w", of.shard, found, blocks, of.number, index.ErrNamesIncomplete)
	}
	return nil
}

// eachIsGrouped reports blocks of names of which the row in name_groups is missing.
func (x *Index) eachIsGrouped(ctx context.Context, shard backup.ShardID) error {
	blocks := int64(0)
	err := x.query(ctx, countUngrouped, []any{int64(shard)}, func(scan func(...any) error) error { return scan(&blocks) })
	if err == nil && blocks > 0 {
		err = fmt.Errorf("shard %d has %d blocks of names that are in no group: %w", shard, blocks, index.ErrNamesIncomplete)
	}
	return err
}

// eachNameIn decodes some blocks at once, and calls do for the names in them, one after another.
func eachNameIn(shard backup.ShardID, blocks [][]byte, do func(page backup.PageName, names []string) error) error {
	decoded, failed := make([][]names.Page, len(blocks)), make([]error, len(blocks))
	var running sync.WaitGroup
	for i := range blocks {
		running.Go(func() { decoded[i], failed[i] = names.Decode(shard, blocks[i]) })
	}
	running.Wait()
	for i, pages := range decoded {
		if failed[i] != nil {
			return fmt.Errorf("%w: %w", index.ErrNamesIncomplete, failed[i])
		}
		for n := range pages {
			path, err := backup.PathOfKey(pages[n].PathKey)
			if err == nil {
				err = do(backup.PageName{Path: path, Key: pages[n].Key}, pages[n].Names)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// VersionsOf implements index.Naming.
func (x *Index) VersionsOf(ctx context.Context, shard backup.ShardID, pages []backup.PageName, do func(*index.PageSpan) error) error {
	return x.Backend.VersionsOf(ctx, shard, rowNames(shard, pages), func(v *Version) error { return v.span(do) })
}

// VersionsBelow implements index.Naming.
func (x *Index) VersionsBelow(ctx context.Context, shard backup.ShardID, path string, only bool, do func(*index.PageSpan) error) error {
	if err := backup.CheckPath(path); err != nil {
		return err
	}
	r := Range{backup.PathKey(path), backup.PathKeyEnd(path)}
	if only {
		r = onlyOf(path)
	}
	var after *Version
	for {
		versions, err := x.Backend.VersionsAfter(ctx, shard, r, after, pagesLimit)
		if err != nil {
			return err
		}
		for i := range versions {
			if err := versions[i].span(do); err != nil {
				return err
			}
		}
		if len(versions) < pagesLimit {
			return nil
		}
		after = &versions[len(versions)-1]
	}
}

func (v *Version) span(do func(*index.PageSpan) error) error {
	page, err := v.version()
	if err != nil {
		return err
	}
	return do(&index.PageSpan{PageVersion: page, First: v.First, Last: v.Last})
}
