package pgindex

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
)

// These modes determine whether a statement is planned once per connection, or for each execution.
// A plan that was made for a small table stays until Postgres has analyzed the table again, some
// minutes after it has grown. Until then it would read the whole table. Statements on tables that
// are small for long and then suddenly large (interrupted_pages, chunk_copies, chunk_lists, and the
// tables of open work) are therefore planned for each execution.
const (
	keepPlan = pgx.QueryExecModeCacheStatement
	planAnew = pgx.QueryExecModeCacheDescribe
)

// keyPrefixBytes is the length of the path key prefix in the index pages_path.
const keyPrefixBytes = 1024

const keyPrefix = "substring(path_key FROM 1 FOR 1024)"

// rangeCondition returns r as a condition. It compares the prefixes of path keys, which the index
// contains, and the whole keys, because several keys may have the same prefix.
func rangeCondition(r entindex.Range, args pgx.NamedArgs) string {
	condition := ""
	if len(r.From) > 0 {
		condition = " AND " + keyPrefix + " >= @from_prefix AND path_key >= @from"
		args["from"], args["from_prefix"] = r.From, prefix(r.From)
	}
	if r.To != nil {
		condition += " AND " + keyPrefix + " <= @to_prefix AND path_key < @to"
		args["to"], args["to_prefix"] = r.To, prefix(r.To)
	}
	return condition
}

func prefix(key []byte) []byte { return key[:min(len(key), keyPrefixBytes)] }

const (
	validIn   = " AND first_snapshot <= @at AND (last_snapshot IS NULL OR last_snapshot >= @at)"
	byPathKey = " ORDER BY " + keyPrefix + ", path_key, page"
)

func selectMarks(shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, limit int) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"shard": int64(shard), "at": int64(at), "limit": limit}
	return "SELECT directory, page, fingerprint, path_key FROM pages WHERE shard = @shard" +
		rangeCondition(r, args) + validIn + byPathKey + " LIMIT @limit", args
}

// Marks implements entindex.HotReader.
func (b *backend) Marks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, limit int) ([]index.PageMark, [][]byte, error) {
	query, args := selectMarks(shard, at, r, limit)
	var marks []index.PageMark
	var keys [][]byte
	err := b.eachInOrder(ctx, query, args, func(rows pgx.Rows) {
		// Binary values, without pgx's scanning: an unchanged tree costs hardly more than this
		// loop.
		raw := rows.RawValues()
		marks = append(marks, index.PageMark{
			Directory: backup.DirectoryID(raw[0]), Key: backup.PageKey(binary.BigEndian.Uint64(raw[1])), Fingerprint: backup.Fingerprint(raw[2]),
		})
		keys = append(keys, bytes.Clone(raw[3]))
	})
	return marks, keys, err
}

// inOrder makes the queries of its transaction read the first pages of a range from pages_path.
// With outdated statistics, the planner estimates a range at a few rows, and would read and sort
// all of it for each of its parts.
const inOrder = "SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)"

// eachInOrder calls scan for each row of a query of pages that is sorted by path key. The batch is
// one transaction, so the settings of inOrder end with it. Postgres plans the second query when the
// first has run.
func (b *backend) eachInOrder(ctx context.Context, query string, args pgx.NamedArgs, scan func(pgx.Rows)) error {
	batch := &pgx.Batch{}
	batch.Queue(inOrder)
	batch.Queue(query, args).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			scan(rows)
		}
		return rows.Err()
	})
	return b.Wrap(b.pool.SendBatch(ctx, batch).Close())
}

const (
	pageColumns    = "shard, directory, page, path_key, fingerprint, inode, digest"
	columnsOfPages = "pages.shard, pages.directory, pages.page, pages.path_key, pages.fingerprint, pages.inode, pages.digest"

	// ofBase is the stored listing of which a page's is a patch, or NULL.
	ofBase            = "(SELECT b.listing FROM pages b WHERE b.shard = pages.shard AND b.directory = pages.directory AND b.page = pages.page AND b.first_snapshot = pages.base)"
	ofReplacedBase    = "(SELECT b.listing FROM pages b WHERE b.shard = o.shard AND b.directory = o.directory AND b.page = o.page AND b.first_snapshot = o.base)"
	ofInterruptedBase = "(SELECT b.listing FROM pages b WHERE b.shard = p.shard AND b.directory = p.directory AND b.page = p.page AND b.first_snapshot = p.base)"

	selectByInode   = "SELECT path_key FROM pages WHERE shard = @shard AND inode = @inode AND page = 0 AND inode <> 0" + validIn + " LIMIT 2"
	selectDirectory = "SELECT page, fingerprint FROM pages WHERE shard = @shard AND directory = @directory" + validIn + " ORDER BY page"
	// The version that a patch replaces follows the row's own columns. A page has at most one
	// version that ends with a given snapshot.
	selectBegun = "SELECT " + columnsOfPages + ", pages.listing, " + ofBase + ", o.listing, " + ofReplacedBase + ", o.fingerprint, o.digest, o.inode FROM pages" +
		" LEFT JOIN pages o ON o.shard = pages.shard AND o.directory = pages.directory AND o.page = pages.page AND o.first_snapshot < pages.first_snapshot" +
		" AND o.last_snapshot = pages.first_snapshot - 1 AND substr(pages.listing, 1, 1) = '\\x02'" +
		" WHERE pages.shard = $1 AND pages.first_snapshot = $2 ORDER BY substring(pages.path_key FROM 1 FOR 1024), pages.path_key, pages.page"
	selectEnded = "SELECT " + pageColumns + " FROM pages WHERE shard = $1 AND last_snapshot = $2" + byPathKey
)

// whole returns the listing of a row, given the values of listing and ofBase. It shares no memory
// with them.
func whole(stored, base []byte) []byte { return entindex.Whole(append([]byte{}, stored...), base) }

// scanPage reads a row of the page columns. These may be followed by the listing and ofBase, and
// then by those of the version that is replaced.
func scanPage(rows pgx.Rows) entindex.PageRow {
	raw := rows.RawValues()
	p := entindex.PageRow{
		Shard: backup.ShardID(binary.BigEndian.Uint64(raw[0])), Directory: backup.DirectoryID(raw[1]),
		Key: backup.PageKey(binary.BigEndian.Uint64(raw[2])), PathKey: bytes.Clone(raw[3]),
		Fingerprint: backup.Fingerprint(raw[4]), Inode: binary.BigEndian.Uint64(raw[5]),
	}
	copy(p.Digest[:], raw[6])
	if len(raw) > 8 {
		p.Listing = whole(raw[7], raw[8])
	}
	if len(raw) > 9 && raw[9] != nil {
		p.Replaces = &entindex.PageRow{
			Listing: whole(raw[9], raw[10]), Fingerprint: backup.Fingerprint(raw[11]), Inode: binary.BigEndian.Uint64(raw[13]),
		}
		copy(p.Replaces.Digest[:], raw[12])
	}
	return p
}

func selectPages(shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, after []byte, key backup.PageKey, limit int) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"shard": int64(shard), "at": int64(at), "limit": limit}
	more := ""
	if after != nil {
		r.From = after
		args["after"], args["key"] = after, int64(key)
		more = " AND (path_key, page) > (@after, @key)"
	}
	return "SELECT " + pageColumns + ", listing, " + ofBase + " FROM pages WHERE shard = @shard" +
		rangeCondition(r, args) + more + validIn + byPathKey + " LIMIT @limit", args
}

// PagesAfter implements entindex.HotReader.
func (b *backend) PagesAfter(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r entindex.Range, after []byte, key backup.PageKey, limit int) ([]entindex.PageRow, error) {
	query, args := selectPages(shard, at, r, after, key, limit)
	var pages []entindex.PageRow
	err := b.eachInOrder(ctx, query, args, func(rows pgx.Rows) { pages = append(pages, scanPage(rows)) })
	return pages, err
}

const selectListings = `
SELECT n.position, p.listing, p.of_base, p.fingerprint, p.digest, p.inode
FROM unnest(@directories::uuid[], @keys::bigint[]) WITH ORDINALITY n (directory, page, position)
CROSS JOIN LATERAL (
    SELECT listing, ` + ofBase + ` AS of_base, fingerprint, digest, inode, last_snapshot FROM pages
    WHERE shard = @shard AND directory = n.directory AND page = n.page AND first_snapshot <= @at
    ORDER BY first_snapshot DESC LIMIT 1) p
WHERE p.last_snapshot IS NULL OR p.last_snapshot >= @at`

// Listings implements entindex.HotReader.
func (b *backend) Listings(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, names []entindex.PageID) ([]entindex.PageRow, error) {
	found := make([]entindex.PageRow, len(names))
	err := b.listings(ctx, selectListings, keepPlan, names, pgx.NamedArgs{"shard": int64(shard), "at": int64(at)}, func(i int, raw [][]byte) {
		p := &found[i]
		p.Listing, p.Fingerprint = whole(raw[0], raw[1]), backup.Fingerprint(raw[2])
		copy(p.Digest[:], raw[3])
		p.Inode = binary.BigEndian.Uint64(raw[4])
	})
	return found, err
}

const selectInterrupted = `
SELECT n.position, p.listing, ` + ofInterruptedBase + ` FROM unnest(@directories::uuid[], @keys::bigint[]) WITH ORDINALITY n (directory, page, position)
JOIN interrupted_pages p ON p.shard = @shard AND p.directory = n.directory AND p.page = n.page`

// InterruptedListings implements entindex.HotReader.
func (b *backend) InterruptedListings(ctx context.Context, shard backup.ShardID, names []entindex.PageID) ([][]byte, error) {
	listings := make([][]byte, len(names))
	err := b.listings(ctx, selectInterrupted, planAnew, names, pgx.NamedArgs{"shard": int64(shard)}, func(i int, raw [][]byte) {
		listings[i] = whole(raw[0], raw[1])
	})
	return listings, err
}

// listings runs a query that returns the positions of those names that have a row, and calls scan
// for each.
func (b *backend) listings(ctx context.Context, query string, mode pgx.QueryExecMode, names []entindex.PageID, args pgx.NamedArgs, scan func(i int, raw [][]byte)) error {
	directories, keys := make([][16]byte, len(names)), make([]int64, len(names))
	for i, n := range names {
		directories[i], keys[i] = n.Directory, int64(n.Key)
	}
	args["directories"], args["keys"] = directories, keys
	rows, err := b.pool.Query(ctx, query, mode, args)
	if err != nil {
		return b.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		scan(int(binary.BigEndian.Uint64(raw[0]))-1, raw[1:])
	}
	return b.Wrap(rows.Err())
}

// DirectoriesByInode implements entindex.HotReader.
func (b *backend) DirectoriesByInode(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, inode uint64) ([][]byte, error) {
	return collect(ctx, b, pgx.RowTo[[]byte], selectByInode, pgx.NamedArgs{"shard": int64(shard), "at": int64(at), "inode": int64(inode)})
}

// collect returns what read makes of each row of a query.
func collect[T any](ctx context.Context, b *backend, read pgx.RowToFunc[T], query string, args ...any) ([]T, error) {
	rows, _ := b.pool.Query(ctx, query, args...) // CollectRows returns the error as well
	list, err := pgx.CollectRows(rows, read)
	return list, b.Wrap(err)
}

// DirectoryMarks implements entindex.HotReader.
func (b *backend) DirectoryMarks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, directory backup.DirectoryID) ([]index.PageMark, error) {
	args := pgx.NamedArgs{"shard": int64(shard), "at": int64(at), "directory": [16]byte(directory)}
	return collect(ctx, b, func(row pgx.CollectableRow) (index.PageMark, error) {
		raw := row.RawValues()
		return index.PageMark{Directory: directory, Key: backup.PageKey(binary.BigEndian.Uint64(raw[0])), Fingerprint: backup.Fingerprint(raw[1])}, nil
	}, selectDirectory, args)
}

// locateChunks looks up chunks of one partition. $2 and $3 are the bounds of its ids: without them,
// each partition would be searched for all ids.
const (
	locateChunks = "SELECT id, pack, frame, frame_offset, length FROM chunks WHERE id = ANY ($1) AND id BETWEEN $2 AND $3"
	locateCopies = "SELECT id, pack, frame, frame_offset, length FROM chunk_copies WHERE id = ANY ($1)"
	selectPacks  = "SELECT id, condemned, pack, snapshot, object, object_offset, stored_bytes, coalesce(sealed, '00000000-0000-0000-0000-000000000000') FROM packs WHERE id = ANY ($1)"
)

// Places implements entindex.HotReader with one query per partition, all in one batch.
func (b *backend) Places(ctx context.Context, ids []backup.ChunkID, _ bool) (places []entindex.ChunkRow, err error) {
	batch := &pgx.Batch{}
	for len(ids) > 0 {
		digit, n := ids[0][0]>>4, 1 // the first digit of an id is that of its partition
		for n < len(ids) && ids[n][0]>>4 == digit {
			n++
		}
		low, high := [16]byte{digit << 4}, [16]byte(bytes.Repeat([]byte{0xff}, 16))
		high[0] = digit<<4 | 0xf
		batch.Queue(locateChunks, arrays(ids[:n]), low, high).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				places = append(places, scanPlace(rows))
			}
			return rows.Err()
		})
		ids = ids[n:]
	}
	return places, b.Wrap(b.pool.SendBatch(ctx, batch).Close())
}

// Copies implements entindex.HotReader.
func (b *backend) Copies(ctx context.Context, ids []backup.ChunkID) ([]entindex.ChunkRow, error) {
	read := func(row pgx.CollectableRow) (entindex.ChunkRow, error) { return scanPlace(row), nil }
	return collect(ctx, b, read, locateCopies, planAnew, arrays(ids))
}

// arrays converts ids to the type that pgx takes for uuids.
func arrays(ids []backup.ChunkID) [][16]byte {
	list := make([][16]byte, len(ids))
	for i := range ids {
		list[i] = ids[i]
	}
	return list
}

func scanPlace(row interface{ RawValues() [][]byte }) (p entindex.ChunkRow) {
	raw := row.RawValues()
	p.ID, p.Pack = backup.ChunkID(raw[0]), int64(binary.BigEndian.Uint64(raw[1]))
	p.Frame, p.Offset, p.Length = binary.BigEndian.Uint32(raw[2]), binary.BigEndian.Uint32(raw[3]), binary.BigEndian.Uint32(raw[4])
	return p
}

// Packs implements entindex.HotReader.
func (b *backend) Packs(ctx context.Context, ids []int64) ([]entindex.PackRow, error) {
	return collect(ctx, b, func(row pgx.CollectableRow) (entindex.PackRow, error) {
		raw := row.RawValues()
		return entindex.PackRow{
			ID: int64(binary.BigEndian.Uint64(raw[0])), Condemned: raw[1][0] != 0,
			PackPlace: index.PackPlace{
				Pack: backup.PackID(raw[2]), Snapshot: backup.SnapshotID(raw[3]), Object: backup.PackID(raw[4]),
				Offset: int64(binary.BigEndian.Uint64(raw[5])), Bytes: int64(binary.BigEndian.Uint64(raw[6])), Sealed: backup.PackID(raw[7]),
			},
		}, nil
	}, selectPacks, planAnew, ids)
}

// Begun implements entindex.HotReader.
func (b *backend) Begun(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[entindex.PageRow, error] {
	return b.stream(ctx, selectBegun, int64(shard), int64(number))
}

// Ended implements entindex.HotReader.
func (b *backend) Ended(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[entindex.PageRow, error] {
	return b.stream(ctx, selectEnded, int64(shard), int64(number)-1)
}

// stream yields rows as they arrive. The server sorts, on its disk if need be, and sends no faster
// than the rows are consumed.
func (b *backend) stream(ctx context.Context, query string, args ...any) iter.Seq2[entindex.PageRow, error] {
	return func(yield func(entindex.PageRow, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // otherwise closing rows early would read all the rest
		rows, err := b.pool.Query(ctx, query, args...)
		if err != nil {
			yield(entindex.PageRow{}, b.Wrap(err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			if !yield(scanPage(rows), nil) {
				cancel()
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(entindex.PageRow{}, b.Wrap(err))
		}
	}
}
