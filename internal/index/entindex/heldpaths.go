package entindex

import (
	"bytes"
	"context"
	"fmt"
	"math"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/listing"
)

// A PathQueries has the queries of a range of path keys that holds on paths need. Parameter 1 is
// the shard, 2 the number of a snapshot, 3 and 4 are the range, and 5 is the number of a later
// snapshot.
type PathQueries struct {
	Has   string // a row if a version in the range is valid at 2
	Began string // a row if a version in the range is valid at 5 and began after 2
	Ended string // a row if a version in the range is valid at 2 and ended before 5
	Pages string // the stored listings, and those of their bases, of the versions that are valid at 2
}

// A heldPath is a hold on a path, with the ranges of the path keys of its pages and of its
// directory's pages.
type heldPath struct {
	*index.Hold
	name         string
	tree, parent Range
}

func newHeldPath(h *index.Hold) heldPath {
	dir, name := backup.Split(h.Path)
	from := backup.PathKey(dir)
	return heldPath{h, name, Range{backup.PathKey(h.Path), backup.PathKeyEnd(h.Path)}, Range{from, append(bytes.Clone(from), 0)}}
}

// views compares what snapshots of a shard have at a path. The versions that committed snapshots
// need do not change, so it does not matter whether it reads within a transaction.
type views struct {
	each    each
	queries *PathQueries
}

func (tx *Tx) views() views   { return views{tx.Each, &tx.Paths} }
func (x *Index) views() views { return views{x.query, &x.Backend.Dialect().Paths} }

const (
	selectCommitted = `SELECT number FROM snapshots WHERE shard_id = $1 AND state = 'committed' AND forgotten IS NULL ORDER BY number DESC`
	selectIDs       = `SELECT number, id FROM snapshots WHERE shard_id = $1 AND state = 'committed' AND forgotten IS NULL`
	// selectNext returns the next committed snapshot that is left, or the largest number.
	selectNext = `
SELECT coalesce(min(number), 9223372036854775807) FROM snapshots
WHERE shard_id = $1 AND number > $2 AND state = 'committed' AND forgotten IS NULL`
	selectPathHolds = `SELECT ` + holdColumns + ` FROM holds WHERE shard = $1 AND path_key IS NOT NULL ORDER BY id`
)

// none is the number of a next snapshot that does not exist.
const none = backup.SnapshotNumber(math.MaxInt64)

// checkPaths fails with index.ErrKept if a hold on a path keeps the snapshot. The database cannot
// read listings. So if a decision about a hold depends on one, checkPaths notes in the log that it
// was read, as the database requires.
func (tx *Tx) checkPaths(ctx context.Context, by string, row *ent.Snapshot) error {
	if row.State != string(backup.Committed) {
		return nil
	}
	holds, err := listOf(ctx, tx.Each, selectPathHolds, []any{row.ShardID}, readHold)
	if err != nil || len(holds) == 0 {
		return err
	}
	next, err := tx.count(ctx, selectNext, row.ShardID, row.Number)
	if err != nil {
		return err
	}
	for i := range holds {
		p := newHeldPath(&holds[i])
		keeps, read, err := tx.views().keeps(ctx, &p, backup.SnapshotNumber(row.Number), backup.SnapshotNumber(next))
		switch {
		case err != nil:
			return err
		case keeps:
			return kept(row, fmt.Sprintf("is on hold: hold %d keeps each version of %q", p.ID, p.Path))
		case read:
			if err := tx.writeLog(ctx, by, actionChecked, fmt.Sprintf("hold %d snapshot %s", p.ID, backup.SnapshotID(row.ID)), ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// HeldByPaths implements index.Forgetting.
func (x *Index) HeldByPaths(ctx context.Context, shard backup.ShardID) (map[backup.SnapshotID]int64, error) {
	held := map[backup.SnapshotID]int64{}
	holds, err := listOf(ctx, x.query, selectPathHolds, []any{int64(shard)}, readHold)
	if err != nil || len(holds) == 0 {
		return held, err
	}
	numbers, err := listOf(ctx, x.query, selectCommitted, []any{int64(shard)}, oneColumn[backup.SnapshotNumber])
	if err != nil {
		return nil, err
	}
	ids, err := mapOf[backup.SnapshotNumber, uuid.UUID](ctx, x.query, selectIDs, int64(shard))
	if err != nil {
		return nil, err
	}
	for i := range holds {
		p, next := newHeldPath(&holds[i]), none
		for _, n := range numbers {
			keeps, _, err := x.views().keeps(ctx, &p, n, next)
			if err != nil {
				return nil, err
			}
			if id, ok := ids[n]; ok && keeps {
				held[backup.SnapshotID(id)] = p.ID
			}
			next = n
		}
	}
	return held, nil
}

// keeps reports whether a hold keeps the snapshot number n: it has the path, and next, the next
// committed one that is left, does not have the same version of it. read reports that this depends
// on listings of the path's directory. bctl_held_by_path of migrations/grants.sql decides in the
// same way.
func (v views) keeps(ctx context.Context, p *heldPath, n, next backup.SnapshotNumber) (keeps, read bool, err error) {
	directory, err := v.finds(ctx, v.queries.Has, p, n, p.tree)
	if err != nil {
		return false, false, err
	}
	if directory {
		keeps = true
		if next != none {
			keeps, err = v.changed(ctx, p, n, next, p.tree)
		}
		return keeps, false, err
	}
	became := false // a directory
	if next != none {
		if became, err = v.finds(ctx, v.queries.Has, p, next, p.tree); err != nil {
			return false, false, err
		}
		changed, err := v.changed(ctx, p, n, next, p.parent)
		if err != nil || !changed && !became {
			return false, false, err
		}
	}
	entry, read, err := v.entry(ctx, p, n)
	if err != nil || entry == nil || next == none || became {
		return entry != nil, read, err
	}
	later, _, err := v.entry(ctx, p, next)
	return !bytes.Equal(entry, later), read, err
}

// anywhere reports whether any committed snapshot has the path.
func (v views) anywhere(ctx context.Context, p *heldPath) (bool, error) {
	numbers, err := listOf(ctx, v.each, selectCommitted, []any{int64(p.Shard)}, oneColumn[backup.SnapshotNumber])
	if err != nil {
		return false, err
	}
	next := none
	for _, n := range numbers {
		if keeps, _, err := v.keeps(ctx, p, n, next); err != nil || keeps {
			return keeps, err
		}
		next = n
	}
	return false, nil
}

// changed reports whether two snapshots have different versions of pages in a range.
func (v views) changed(ctx context.Context, p *heldPath, n, next backup.SnapshotNumber, r Range) (bool, error) {
	began, err := v.finds(ctx, v.queries.Began, p, n, r, int64(next))
	if err != nil || began {
		return began, err
	}
	return v.finds(ctx, v.queries.Ended, p, n, r, int64(next))
}

// finds reports whether a query has a row.
func (v views) finds(ctx context.Context, query string, p *heldPath, n backup.SnapshotNumber, r Range, more ...any) (found bool, err error) {
	args := append([]any{int64(p.Shard), int64(n), r.From, r.To}, more...)
	err = v.each(ctx, query, args, func(func(...any) error) error {
		found = true
		return nil
	})
	return found, err
}

// entry returns what identifies the entry at the path in a snapshot; nil if there is none. A page
// that cannot be read may have the entry, and counts as different from every other page. read
// reports whether the directory has pages.
func (v views) entry(ctx context.Context, p *heldPath, n backup.SnapshotNumber) (id []byte, read bool, err error) {
	args := []any{int64(p.Shard), int64(n), p.parent.From, p.parent.To}
	err = v.each(ctx, v.queries.Pages, args, func(scan func(...any) error) error {
		var stored, base []byte
		if err := scan(&stored, &base); err != nil {
			return err
		}
		read = true
		page, err := listing.Decode(Whole(stored, base))
		if err != nil && id == nil {
			id = fmt.Appendf(nil, "damaged in %d", n)
		}
		for i := range page.Entries {
			if e := &page.Entries[i]; e.Name == p.name {
				whole, err := listing.Encode(nil, &backup.Page{Path: page.Path, Entries: page.Entries[i : i+1]})
				id = whole
				return err
			}
		}
		return nil
	})
	return id, read, err
}
