package sqliteindex

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
)

// Each query that searches pages names its index. SQLite has no statistics here, because nothing
// runs ANALYZE, and might choose pages_first and read a whole shard for one row. Parameters ?1 and
// ?2 are the shard and the snapshot's number.
const (
	validIn     = " AND first_snapshot <= ?2 AND (last_snapshot IS NULL OR last_snapshot >= ?2)"
	byPathKey   = " ORDER BY path_key, page"
	pageColumns = "shard, directory, page, path_key, fingerprint, digest, inode"

	// ofBase is the stored listing of which a page's is a patch, or NULL.
	ofBase            = "(SELECT b.listing FROM pages b INDEXED BY pages_key WHERE b.shard = pages.shard AND b.directory = pages.directory AND b.page = pages.page AND b.first_snapshot = pages.base)"
	ofReplacedBase    = "(SELECT b.listing FROM pages b INDEXED BY pages_key WHERE b.shard = o.shard AND b.directory = o.directory AND b.page = o.page AND b.first_snapshot = o.base)"
	ofInterruptedBase = "(SELECT b.listing FROM pages b INDEXED BY pages_key WHERE b.shard = interrupted_pages.shard AND b.directory = interrupted_pages.directory AND b.page = interrupted_pages.page AND b.first_snapshot = interrupted_pages.base)"

	selectListing        = "SELECT listing, " + ofBase + ", fingerprint, digest, inode FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?3 AND page = ?4" + validIn + " ORDER BY first_snapshot DESC LIMIT 1"
	selectInterrupted    = "SELECT listing, " + ofInterruptedBase + ", x'', x'', 0 FROM interrupted_pages INDEXED BY interrupted_pages_key WHERE shard = ?1 AND directory = ?2 AND page = ?3"
	selectByInode        = "SELECT path_key FROM pages INDEXED BY pages_inode WHERE shard = ?1 AND inode = ?3 AND page = 0 AND inode <> 0" + validIn + " LIMIT 2"
	selectDirectoryMarks = "SELECT page, fingerprint FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?3" + validIn + " ORDER BY page"
)

// prepare returns the query as a statement on the readers, which is closed with them. It is
// compiled once per connection, because compiling it may take longer than running it.
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

// each runs a query, and calls scan for each of its rows. The query stays compiled, so callers must
// use a fixed number of queries.
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
			return b.wrapScan(err)
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

// scanPage reads a row: the columns of before, the page columns, with listing also the listing and
// ofBase, and the columns of after.
func scanPage(rows *sql.Rows, listing bool, before, after []any) (entindex.PageRow, error) {
	var p entindex.PageRow
	var directory, fingerprint, digest []byte
	var inode int64
	targets := slices.Concat(before, []any{&p.Shard, &directory, &p.Key, &p.PathKey, &fingerprint, &digest, &inode})
	var base sql.RawBytes
	if listing {
		targets = append(targets, &p.Listing, &base)
	}
	targets = append(targets, after...)
	err := rows.Scan(targets...)
	if err == nil && listing {
		p.Listing = entindex.Whole(p.Listing, base)
	}
	copy(p.Directory[:], directory)
	copy(p.Fingerprint[:], fingerprint)
	copy(p.Digest[:], digest)
	p.PathKey, p.Inode = entindex.NotNull(p.PathKey), uint64(inode)
	return p, err
}

func selectPages(shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, after []byte, key backup.PageKey, limit int) (string, []any) {
	query := "SELECT " + pageColumns + ", listing, " + ofBase + " FROM pages INDEXED BY pages_path WHERE shard = ?1" + validIn
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
		p, err := scanPage(rows, true, nil, nil)
		pages = append(pages, p)
		return err
	})
	return pages, err
}

// Listings implements entindex.HotReader.
func (b *backend) Listings(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, names []entindex.PageID) ([]entindex.PageRow, error) {
	return b.listings(ctx, selectListing, names, func(n *entindex.PageID) []any {
		return []any{int64(shard), int64(at), n.Directory[:], int64(n.Key)}
	})
}

// InterruptedListings implements entindex.HotReader.
func (b *backend) InterruptedListings(ctx context.Context, shard backup.ShardID, names []entindex.PageID) ([][]byte, error) {
	rows, err := b.listings(ctx, selectInterrupted, names, func(n *entindex.PageID) []any {
		return []any{int64(shard), n.Directory[:], int64(n.Key)}
	})
	listings := make([][]byte, len(rows))
	for i := range rows {
		listings[i] = rows[i].Listing
	}
	return listings, err
}

// listings runs a query for each name. The query finds at most one listing.
func (b *backend) listings(ctx context.Context, query string, names []entindex.PageID, args func(*entindex.PageID) []any) ([]entindex.PageRow, error) {
	statement, err := b.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	found := make([]entindex.PageRow, len(names))
	for i := range names {
		p := &found[i]
		var base, fingerprint, digest []byte
		var inode int64
		err := statement.QueryRowContext(ctx, args(&names[i])...).Scan(&p.Listing, &base, &fingerprint, &digest, &inode)
		switch {
		case err == nil:
			p.Listing = entindex.Whole(p.Listing, base)
			copy(p.Fingerprint[:], fingerprint)
			copy(p.Digest[:], digest)
			p.Listing, p.Inode = entindex.NotNull(p.Listing), uint64(inode)
		case !errors.Is(err, sql.ErrNoRows):
			return nil, b.Wrap(err)
		}
	}
	return found, nil
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

// locateGroups are the numbers of chunks per query. The last group is padded with its last chunk.
// There are few sizes, so that each query is compiled once.
var locateGroups = [...]int{16, 256}

func selectChunks(n int) string {
	return "SELECT id, pack, frame, frame_offset, length FROM chunks WHERE id IN (?" + strings.Repeat(",?", n-1) + ")"
}

// Places implements entindex.HotReader.
func (b *backend) Places(ctx context.Context, ids []backup.ChunkID, exact bool) ([]entindex.ChunkRow, error) {
	if known := b.filter.Load(); known != nil && !exact {
		wanted := make([]backup.ChunkID, 0, len(ids))
		for _, id := range ids {
			if known.mayHave(id) {
				wanted = append(wanted, id)
			}
		}
		ids = wanted
	}
	var rows []entindex.ChunkRow
	for group := range slices.Chunk(ids, locateGroups[1]) {
		size := locateGroups[0]
		if len(group) > size {
			size = locateGroups[1]
		}
		args := make([]any, size)
		for i := range args {
			args[i] = group[min(i, len(group)-1)][:]
		}
		var err error
		if rows, err = b.appendPlaces(ctx, rows, selectChunks(size), args); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

const selectCopies = "SELECT id, pack, frame, frame_offset, length FROM chunk_copies WHERE id = ?"

// Copies implements entindex.HotReader with one query per chunk, because there are few.
func (b *backend) Copies(ctx context.Context, ids []backup.ChunkID) (rows []entindex.ChunkRow, err error) {
	for _, id := range ids {
		if rows, err = b.appendPlaces(ctx, rows, selectCopies, []any{id[:]}); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (b *backend) appendPlaces(ctx context.Context, places []entindex.ChunkRow, query string, args []any) ([]entindex.ChunkRow, error) {
	var id sql.RawBytes
	err := b.each(ctx, query, args, func(rows *sql.Rows) error {
		var p entindex.ChunkRow
		err := rows.Scan(&id, &p.Pack, &p.Frame, &p.Offset, &p.Length)
		copy(p.ID[:], id)
		places = append(places, p)
		return err
	})
	return places, err
}

const selectPack = "SELECT condemned, pack, snapshot, object, object_offset, stored_bytes, sealed FROM packs WHERE id = ?"

// Packs implements entindex.HotReader.
func (b *backend) Packs(ctx context.Context, ids []int64) (packs []entindex.PackRow, err error) {
	for _, id := range ids {
		p := entindex.PackRow{ID: id}
		err := b.each(ctx, selectPack, []any{id}, func(rows *sql.Rows) error {
			var pack, snapshot, object uuid.UUID
			var sealed uuid.NullUUID
			err := rows.Scan(&p.Condemned, &pack, &snapshot, &object, &p.Offset, &p.Bytes, &sealed)
			p.Sealed = backup.PackID(sealed.UUID)
			p.Pack, p.Snapshot, p.Object = backup.PackID(pack), backup.SnapshotID(snapshot), backup.PackID(object)
			packs = append(packs, p)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return packs, nil
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

// columnsWithListing are those of a row of pages, with its listing.
var columnsWithListing = "pages." + strings.ReplaceAll(pageColumns, ", ", ", pages.") + ", pages.listing, " + ofBase

// selectChanged selects some pages by path key. With listing, the columns end with those of the
// version that a patch replaces.
func selectChanged(which string, listing bool) string {
	if !listing {
		return selectInOrder(which, pageColumns, "")
	}
	return selectInOrder(which, columnsWithListing+", o.listing, "+ofReplacedBase+", o.fingerprint, o.digest, o.inode",
		" LEFT JOIN pages o INDEXED BY pages_key ON o.shard = pages.shard AND o.directory = pages.directory AND o.page = pages.page"+
			" AND o.first_snapshot < pages.first_snapshot AND o.last_snapshot = pages.first_snapshot - 1 AND substr(pages.listing, 1, 1) = x'02'")
}

// selectInOrder selects columns of some pages by path key. Left to itself, SQLite reads all pages
// of the shard in their order, or sorts rows with their listings. Here the keys are sorted first:
// LIMIT keeps SQLite from changing that, and CROSS JOIN keeps the order.
func selectInOrder(which, columns, join string) string {
	return "SELECT " + columns + " FROM (SELECT rowid AS id FROM pages " + which + byPathKey + " LIMIT -1) AS changed CROSS JOIN pages ON pages.rowid = changed.id" + join
}

// stream yields the selected pages by path key, as SQLite finds them.
func (b *backend) stream(ctx context.Context, which string, listing bool, args ...any) iter.Seq2[entindex.PageRow, error] {
	return b.streamQuery(ctx, selectChanged(which, listing), listing, args...)
}

// streamQuery is stream for a query like those of selectChanged.
func (b *backend) streamQuery(ctx context.Context, query string, listing bool, args ...any) iter.Seq2[entindex.PageRow, error] {
	return func(yield func(entindex.PageRow, error) bool) {
		rows, err := b.readers.QueryContext(ctx, query, args...)
		if err != nil {
			yield(entindex.PageRow{}, b.Wrap(err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			var replaced, base, fingerprint, digest []byte
			var inode sql.NullInt64
			var after []any
			if listing {
				after = []any{&replaced, &base, &fingerprint, &digest, &inode}
			}
			p, err := scanPage(rows, listing, nil, after)
			if err == nil && digest != nil {
				p.Replaces = &entindex.PageRow{Listing: entindex.Whole(replaced, base), Inode: uint64(inode.Int64)}
				copy(p.Replaces.Fingerprint[:], fingerprint)
				copy(p.Replaces.Digest[:], digest)
			}
			if !yield(p, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(entindex.PageRow{}, b.Wrap(err))
		}
	}
}
