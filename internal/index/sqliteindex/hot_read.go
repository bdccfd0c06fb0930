package sqliteindex

import (
	"context"
	"database/sql"
	"iter"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/entindex"
)

// Each query that searches pages names its index: SQLite has no statistics here, for nobody runs ANALYZE, and may take
// pages_first, and read all of a shard for one row. Parameters ?1 and ?2 are the shard and the snapshot's number.
const (
	validIn     = " AND first_snapshot <= ?2 AND (last_snapshot IS NULL OR last_snapshot >= ?2)"
	byPathKey   = " ORDER BY path_key, page"
	pageColumns = "shard, directory, page, path_key, fingerprint, inode"

	selectListing        = "SELECT listing FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?3 AND page = ?4" + validIn
	selectByInode        = "SELECT path_key FROM pages INDEXED BY pages_inode WHERE shard = ?1 AND inode = ?3 AND page = 0 AND inode <> 0" + validIn + " LIMIT 2"
	selectDirectoryMarks = "SELECT page, fingerprint FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?3" + validIn + " ORDER BY page"
)

// prepare returns the query as a statement of readers, who close it when they are closed. It is compiled once for each
// of their connections: that may take longer than to run it.
func (b *backend) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if statement, ok := b.reads.Load(query); ok {
		return statement.(*sql.Stmt), nil
	}
	statement, err := b.readers.PrepareContext(ctx, query)
	if err != nil {
		return nil, b.Wrap(err)
	}
	if first, ok := b.reads.LoadOrStore(query, statement); ok {
		return first.(*sql.Stmt), b.Wrap(statement.Close())
	}
	return statement, nil
}

// each runs a query, and calls scan for each of its rows. The query stays compiled: callers have a fixed number of them.
func (b *backend) each(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	statement, err := b.prepare(ctx, query)
	if err != nil {
		return err
	}
	rows, err := statement.QueryContext(ctx, args...)
	if err != nil {
		return b.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return b.Wrap(rows.Err())
}

func selectMarks(shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, limit int) (string, []any) {
	query := "SELECT directory, page, fingerprint, path_key FROM pages INDEXED BY pages_path WHERE shard = ?1 AND path_key >= ?4" + validIn
	args := []any{int64(shard), int64(at), limit, entindex.NotNull(r.From)}
	if r.To != nil {
		query, args = query+" AND path_key < ?5", append(args, r.To)
	}
	return query + byPathKey + " LIMIT ?3", args
}

// Marks implements entindex.HotReader.
func (b *backend) Marks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, limit int) ([]index.PageMark, [][]byte, error) {
	query, args := selectMarks(shard, at, r, limit)
	var marks []index.PageMark
	var keys [][]byte
	var directory, fingerprint, key sql.RawBytes
	err := b.each(ctx, query, args, func(rows *sql.Rows) error {
		var mark index.PageMark
		if err := rows.Scan(&directory, &mark.Key, &fingerprint, &key); err != nil {
			return err
		}
		copy(mark.Directory[:], directory)
		copy(mark.Fingerprint[:], fingerprint)
		marks = append(marks, mark)
		keys = append(keys, slices.Clone([]byte(key)))
		return nil
	})
	return marks, keys, err
}

func scanPage(rows *sql.Rows, listing bool) (entindex.PageRow, error) {
	var p entindex.PageRow
	var directory, fingerprint []byte
	var inode int64
	targets := []any{&p.Shard, &directory, &p.Key, &p.PathKey, &fingerprint, &inode}
	if listing {
		targets = append(targets, &p.Listing)
	}
	err := rows.Scan(targets...)
	copy(p.Directory[:], directory)
	copy(p.Fingerprint[:], fingerprint)
	p.PathKey, p.Inode = entindex.NotNull(p.PathKey), uint64(inode)
	return p, err
}

func selectPages(shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, after []byte, key backup.PageKey, limit int) (string, []any) {
	query := "SELECT " + pageColumns + ", listing FROM pages INDEXED BY pages_path WHERE shard = ?1" + validIn
	args := []any{int64(shard), int64(at), limit}
	if after != nil {
		query, args = query+" AND (path_key, page) > (?4, ?5)", append(args, after, int64(key))
	} else {
		query, args = query+" AND path_key >= ?4 AND ?5 = 0", append(args, entindex.NotNull(r.From), 0)
	}
	if r.To != nil {
		query, args = query+" AND path_key < ?6", append(args, r.To)
	}
	return query + byPathKey + " LIMIT ?3", args
}

// PagesAfter implements entindex.HotReader.
func (b *backend) PagesAfter(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, after []byte, key backup.PageKey, limit int) ([]entindex.PageRow, error) {
	query, args := selectPages(shard, at, r, after, key, limit)
	var pages []entindex.PageRow
	err := b.each(ctx, query, args, func(rows *sql.Rows) error {
		p, err := scanPage(rows, true)
		pages = append(pages, p)
		return err
	})
	return pages, err
}

// Listings implements entindex.HotReader.
func (b *backend) Listings(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, names []entindex.PageName) ([][]byte, error) {
	statement, err := b.prepare(ctx, selectListing)
	if err != nil {
		return nil, err
	}
	listings := make([][]byte, len(names))
	for i, n := range names {
		err := statement.QueryRowContext(ctx, int64(shard), int64(at), n.Directory[:], int64(n.Key)).Scan(&listings[i])
		switch {
		case err == nil:
			listings[i] = entindex.NotNull(listings[i])
		case err != sql.ErrNoRows:
			return nil, b.Wrap(err)
		}
	}
	return listings, nil
}

// DirectoriesByInode implements entindex.HotReader.
func (b *backend) DirectoriesByInode(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, inode uint64) ([][]byte, error) {
	var keys [][]byte
	err := b.each(ctx, selectByInode, []any{int64(shard), int64(at), int64(inode)}, func(rows *sql.Rows) error {
		var key []byte
		err := rows.Scan(&key)
		keys = append(keys, key)
		return err
	})
	return keys, err
}

// DirectoryMarks implements entindex.HotReader.
func (b *backend) DirectoryMarks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, directory backup.DirectoryID) ([]index.PageMark, error) {
	var marks []index.PageMark
	err := b.each(ctx, selectDirectoryMarks, []any{int64(shard), int64(at), directory[:]}, func(rows *sql.Rows) error {
		mark := index.PageMark{Directory: directory}
		var fingerprint []byte
		err := rows.Scan(&mark.Key, &fingerprint)
		copy(mark.Fingerprint[:], fingerprint)
		marks = append(marks, mark)
		return err
	})
	return marks, err
}

// locateGroups are how many chunks one query looks up; what is left over is
// filled up with the last. Few sizes, so that they are compiled once.
var locateGroups = [...]int{16, 256}

func selectChunks(n int) string {
	return "SELECT id, pack, frame, frame_offset, length FROM chunks WHERE id IN (?" + strings.Repeat(",?", n-1) + ")"
}

// Locate implements entindex.HotReader.
func (b *backend) Locate(ctx context.Context, ids []backup.ChunkID, condemned bool) ([]index.Location, error) {
	var known *filter // restore asks for what must be there
	if !condemned {
		known = b.filter.Load()
	}
	places := make(map[backup.ChunkID][]int)
	var list []backup.ChunkID
	for i, id := range ids {
		if !known.mayHave(id) {
			continue
		}
		if places[id] == nil {
			list = append(list, id)
		}
		places[id] = append(places[id], i)
	}
	slices.SortFunc(list, func(a, b backup.ChunkID) int { return slices.Compare(a[:], b[:]) })
	packs := map[int64]*index.Location{}
	locations := make([]index.Location, len(ids))
	for group := range slices.Chunk(list, locateGroups[1]) {
		size := locateGroups[0]
		if len(group) > size {
			size = locateGroups[1]
		}
		args := make([]any, size)
		for i := range args {
			args[i] = group[min(i, len(group)-1)][:]
		}
		var id sql.RawBytes
		found := map[int64][]int{} // by pack
		err := b.each(ctx, selectChunks(size), args, func(rows *sql.Rows) error {
			var l index.Location
			var pack int64
			if err := rows.Scan(&id, &pack, &l.Frame, &l.Offset, &l.Length); err != nil {
				return err
			}
			for _, i := range places[backup.ChunkID(id)] {
				locations[i] = l
				found[pack] = append(found[pack], i)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if err := b.addPacks(ctx, packs, found, condemned, locations); err != nil {
			return nil, err
		}
	}
	return locations, nil
}

// addPacks completes locations with their packs: many chunks are in few packs,
// which are read once.
func (b *backend) addPacks(ctx context.Context, packs map[int64]*index.Location, found map[int64][]int, condemned bool, locations []index.Location) error {
	for id, places := range found {
		pack := packs[id]
		if pack == nil {
			row, err := b.client.Pack.Get(ctx, id)
			if err != nil && !ent.IsNotFound(err) { // deleted since: then the chunk is nowhere
				return b.Wrap(err)
			}
			pack = &index.Location{}
			if err == nil && (condemned || !row.Condemned) {
				pack.Pack, pack.Snapshot = backup.PackID(row.Pack), backup.SnapshotID(row.Snapshot)
			}
			packs[id] = pack
		}
		for _, i := range places {
			if *pack == (index.Location{}) {
				locations[i] = index.Location{}
				continue
			}
			locations[i].Pack, locations[i].Snapshot = pack.Pack, pack.Snapshot
		}
	}
	return nil
}

// Begun implements entindex.HotReader.
func (b *backend) Begun(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[entindex.PageRow, error] {
	return b.stream(ctx, begun, true, int64(shard), int64(number))
}

// Ended implements entindex.HotReader.
func (b *backend) Ended(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[entindex.PageRow, error] {
	return b.stream(ctx, ended, false, int64(shard), int64(number)-1)
}

const (
	begun = "INDEXED BY pages_first WHERE shard = ? AND first_snapshot = ?"
	ended = "INDEXED BY pages_last WHERE shard = ? AND last_snapshot = ?"
)

// selectChanged selects some pages by path key. Left alone, SQLite walks all pages of the
// shard in their order, or sorts rows with their listings. So the keys are sorted first,
// LIMIT keeps that as it is, and CROSS JOIN keeps the order.
func selectChanged(which string, listing bool) string {
	columns := pageColumns
	if listing {
		columns += ", listing"
	}
	return "SELECT " + columns + " FROM (SELECT rowid AS id FROM pages " + which + byPathKey + " LIMIT -1) AS changed CROSS JOIN pages ON pages.rowid = changed.id"
}

// stream yields some pages by path key, as SQLite finds them.
func (b *backend) stream(ctx context.Context, which string, listing bool, args ...any) iter.Seq2[entindex.PageRow, error] {
	query := selectChanged(which, listing)
	return func(yield func(entindex.PageRow, error) bool) {
		rows, err := b.readers.QueryContext(ctx, query, args...)
		if err != nil {
			yield(entindex.PageRow{}, b.Wrap(err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			p, err := scanPage(rows, listing)
			if !yield(p, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(entindex.PageRow{}, b.Wrap(err))
		}
	}
}
