package pgindex

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/migrations"
)

// makeStages creates the temp tables of a new connection. Bulk writes are copied there, and go to
// the real tables in one statement. The temp tables are empty again after each transaction. A user
// who may not create temp tables, because the roles of an installation do not let that user write,
// has none and needs none.
//
// The planner has no statistics of temp tables, estimates them as large, and might read all of
// pages to join it with a few rows. makeStages therefore makes it prefer loops over an index, which
// is right for these connections: they look up rows by key. The setting bctl.names says that this
// binary stores the names of the pages that it writes: a trigger marks the shards of others.
func makeStages(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET bctl.names = 'stored';
DO $$ BEGIN IF has_database_privilege(current_database(), 'TEMPORARY') THEN
CREATE TEMP TABLE IF NOT EXISTS stage_chunks (
    id uuid NOT NULL, pack bigint NOT NULL, frame integer NOT NULL, frame_offset integer NOT NULL, length integer NOT NULL
) ON COMMIT DELETE ROWS;
CREATE TEMP TABLE IF NOT EXISTS stage_pages (
    shard bigint NOT NULL, number bigint NOT NULL, page bigint NOT NULL, inode bigint NOT NULL,
    directory uuid NOT NULL, fingerprint uuid NOT NULL, digest bytea NOT NULL, path_key bytea NOT NULL, listing bytea NOT NULL, base bigint
) ON COMMIT DELETE ROWS;
ALTER TABLE stage_pages ALTER COLUMN listing SET STORAGE EXTERNAL;
CREATE TEMP TABLE IF NOT EXISTS stage_names (
    shard bigint NOT NULL, number bigint NOT NULL, page bigint NOT NULL, directory uuid NOT NULL
) ON COMMIT DELETE ROWS;
END IF; END $$`)
	return err
}

// These statements move rows from the stages to the tables.
const (
	// The rows of chunks that have a place are locked, and not changed: see lockPlaces.
	insertChunks = `
INSERT INTO chunks AS c (id, pack, frame, frame_offset, length)
SELECT DISTINCT ON (id) id, pack, frame, frame_offset, length FROM stage_chunks ORDER BY id, pack
ON CONFLICT (id) DO UPDATE SET pack = c.pack WHERE false`
	// One lookup per chunk: OFFSET 0 keeps the planner from reading all chunks instead.
	insertCopies = `
INSERT INTO chunk_copies (id, pack, frame, frame_offset, length)
SELECT s.id, s.pack, s.frame, s.frame_offset, s.length FROM stage_chunks s
CROSS JOIN LATERAL (SELECT pack FROM chunks WHERE id = s.id OFFSET 0) c WHERE c.pack <> s.pack ORDER BY s.id, s.pack
ON CONFLICT DO NOTHING`
	// The newest versions are found with one lookup per page (LIMIT keeps the planner from
	// reversing the join), and then by their physical location. No other transaction moves them in
	// between, because the snapshot is locked.
	endChangedPages = `
UPDATE pages p SET last_snapshot = changed.number - 1 FROM (
    SELECT s.number, newest.place FROM stage_pages s
    CROSS JOIN LATERAL (
        SELECT ctid AS place, first_snapshot, last_snapshot FROM pages
        WHERE shard = s.shard AND directory = s.directory AND page = s.page ORDER BY first_snapshot DESC LIMIT 1) newest
    WHERE newest.last_snapshot IS NULL AND newest.first_snapshot < s.number) changed
WHERE p.ctid = changed.place AND p.last_snapshot IS NULL`
	insertPages = `
INSERT INTO pages (shard, page, first_snapshot, inode, directory, fingerprint, digest, path_key, listing, base)
SELECT shard, page, number, inode, directory, fingerprint, digest, path_key, listing, base FROM stage_pages
ON CONFLICT (shard, directory, page, first_snapshot) DO UPDATE
SET inode = excluded.inode, fingerprint = excluded.fingerprint, digest = excluded.digest, path_key = excluded.path_key, listing = excluded.listing, base = excluded.base`
	endNamedPages = `
UPDATE pages p SET last_snapshot = named.number - 1 FROM (
    SELECT s.number, newest.place FROM stage_names s
    CROSS JOIN LATERAL (
        SELECT ctid AS place, first_snapshot, last_snapshot FROM pages
        WHERE shard = s.shard AND directory = s.directory AND page = s.page ORDER BY first_snapshot DESC LIMIT 1) newest
    WHERE newest.last_snapshot IS NULL AND newest.first_snapshot < s.number) named
WHERE p.ctid = named.place AND p.last_snapshot IS NULL`
)

// A hotWriter is entindex.HotWriter on a connection that is in a transaction.
type hotWriter struct{ conn *pgx.Conn }

// PutChunks implements entindex.HotWriter.
func (w hotWriter) PutChunks(ctx context.Context, rows []entindex.ChunkRow) error {
	i := -1
	_, err := w.conn.CopyFrom(ctx, pgx.Identifier{"stage_chunks"}, []string{"id", "pack", "frame", "frame_offset", "length"},
		newChunkSource(rows, &i))
	if err != nil {
		return err
	}
	done, err := w.conn.Exec(ctx, insertChunks)
	if err != nil || int(done.RowsAffected()) == len(rows) {
		return err
	}
	// Some chunks were there already: the new places become copies.
	_, err = w.conn.Exec(ctx, insertCopies)
	return err
}

const (
	insertList = "INSERT INTO chunk_lists (list, nested, chunks) VALUES ($1, $2, $3) ON CONFLICT (list) DO NOTHING"
	// DropLists deletes nothing that this has found before the end of the transaction.
	selectKnownLists = "SELECT list, nested, CASE WHEN nested THEN chunks END FROM chunk_lists WHERE list = ANY ($1) ORDER BY list FOR SHARE"
)

// PutLists implements entindex.HotWriter.
func (w hotWriter) PutLists(ctx context.Context, lists []backup.ChunkList) error {
	for group := range slices.Chunk(lists, batchLength) {
		batch := &pgx.Batch{}
		for i := range group {
			l := &group[i]
			batch.Queue(insertList, [16]byte(l.List), l.Nested, entindex.JoinIDs(l.Chunks))
		}
		if err := w.conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	return nil
}

// KnownLists implements entindex.HotWriter.
func (w hotWriter) KnownLists(ctx context.Context, lists []backup.ChunkID) ([]backup.ChunkList, error) {
	rows, err := w.conn.Query(ctx, selectKnownLists, planAnew, arrays(lists))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (backup.ChunkList, error) {
		raw := row.RawValues()
		return backup.ChunkList{List: backup.ChunkID(raw[0]), Nested: raw[1][0] != 0, Chunks: entindex.SplitIDs(raw[2])}, nil
	})
}

func newChunkSource(rows []entindex.ChunkRow, i *int) pgx.CopyFromSource {
	values := make([]any, 5)
	return pgx.CopyFromFunc(func() ([]any, error) {
		if *i++; *i == len(rows) {
			return nil, nil
		}
		row := &rows[*i]
		values[0], values[1], values[2], values[3], values[4] = [16]byte(row.ID), row.Pack, int32(row.Frame), int32(row.Offset), int32(row.Length)
		return values, nil
	})
}

const selectOpenPages = `
SELECT n.position, p.first_snapshot, p.fingerprint, p.listing, coalesce(p.base, 0), p.of_base, ` + migrations.WritesPatches + `
FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) WITH ORDINALITY n (shard, directory, page, position)
CROSS JOIN LATERAL (
    SELECT first_snapshot, last_snapshot, fingerprint, listing, base, ` + ofBase + ` AS of_base FROM pages
    WHERE shard = n.shard AND directory = n.directory AND page = n.page
    ORDER BY first_snapshot DESC LIMIT 1) p
WHERE p.last_snapshot IS NULL`

// OpenPages implements entindex.HotWriter.
func (w hotWriter) OpenPages(ctx context.Context, names []entindex.PageID) ([]entindex.OpenPage, error) {
	shards, directories, keys := columnsOf(names)
	rows, err := w.conn.Query(ctx, selectOpenPages, shards, directories, keys)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	open := make([]entindex.OpenPage, len(names))
	for rows.Next() {
		raw := rows.RawValues()
		p := &open[binary.BigEndian.Uint64(raw[0])-1]
		p.First, p.Fingerprint = backup.SnapshotNumber(binary.BigEndian.Uint64(raw[1])), backup.Fingerprint(raw[2])
		p.Listing, p.Base = bytes.Clone(raw[3]), backup.SnapshotNumber(binary.BigEndian.Uint64(raw[4]))
		p.BaseListing, p.Patches = bytes.Clone(raw[5]), raw[6][0] != 0
	}
	return open, rows.Err()
}

const selectPagesAt = `
SELECT n.position, p.first_snapshot, p.digest, p.listing, coalesce(p.base, 0), p.of_base
FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) WITH ORDINALITY n (shard, directory, page, position)
CROSS JOIN LATERAL (
    SELECT first_snapshot, last_snapshot, digest, listing, base, ` + ofBase + ` AS of_base FROM pages
    WHERE shard = n.shard AND directory = n.directory AND page = n.page AND first_snapshot <= $4
    ORDER BY first_snapshot DESC LIMIT 1) p
WHERE p.last_snapshot IS NULL OR p.last_snapshot >= $4`

// PagesAt implements entindex.HotWriter.
func (w hotWriter) PagesAt(ctx context.Context, at backup.SnapshotNumber, names []entindex.PageID) ([]entindex.OpenPage, error) {
	shards, directories, keys := columnsOf(names)
	rows, err := w.conn.Query(ctx, selectPagesAt, shards, directories, keys, int64(at))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	pages := make([]entindex.OpenPage, len(names))
	for rows.Next() {
		raw := rows.RawValues()
		p := &pages[binary.BigEndian.Uint64(raw[0])-1]
		p.First = backup.SnapshotNumber(binary.BigEndian.Uint64(raw[1]))
		copy(p.Digest[:], raw[2])
		p.Listing, p.Base, p.BaseListing = bytes.Clone(raw[3]), backup.SnapshotNumber(binary.BigEndian.Uint64(raw[4])), bytes.Clone(raw[5])
	}
	return pages, rows.Err()
}

// columnsOf returns the columns of the names of pages.
func columnsOf(names []entindex.PageID) (shards []int64, directories [][16]byte, keys []int64) {
	for i := range names {
		shards, directories, keys = append(shards, int64(names[i].Shard)), append(directories, names[i].Directory), append(keys, int64(names[i].Key))
	}
	return shards, directories, keys
}

// PutPages implements entindex.HotWriter.
func (w hotWriter) PutPages(ctx context.Context, rows []entindex.PageRow) error {
	i := -1
	values, ends := make([]any, 10), false
	_, err := w.conn.CopyFrom(ctx, pgx.Identifier{"stage_pages"},
		[]string{"shard", "number", "page", "inode", "directory", "fingerprint", "digest", "path_key", "listing", "base"},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i++; i == len(rows) {
				return nil, nil
			}
			row := &rows[i]
			values[0], values[1], values[2], values[3] = int64(row.Shard), int64(row.Number), int64(row.Key), int64(row.Inode)
			values[4], values[5], values[6] = [16]byte(row.Directory), [16]byte(row.Fingerprint), row.Digest[:]
			values[7], values[8], values[9] = row.PathKey, entindex.NotNull(row.Listing), nil
			if row.Base != 0 {
				values[9] = int64(row.Base)
			}
			ends = ends || row.Ends
			return values, nil
		}))
	if err != nil {
		return err
	}
	if ends {
		if _, err := w.conn.Exec(ctx, endChangedPages); err != nil {
			return err
		}
	}
	_, err = w.conn.Exec(ctx, insertPages)
	return err
}

// EndPages implements entindex.HotWriter.
func (w hotWriter) EndPages(ctx context.Context, names []entindex.PageID) error {
	_, err := w.conn.CopyFrom(ctx, pgx.Identifier{"stage_names"}, []string{"shard", "number", "page", "directory"},
		pgx.CopyFromSlice(len(names), func(i int) ([]any, error) {
			n := &names[i]
			return []any{int64(n.Shard), int64(n.Number), int64(n.Key), [16]byte(n.Directory)}, nil
		}))
	if err != nil {
		return err
	}
	_, err = w.conn.Exec(ctx, endNamedPages)
	return err
}

// batchLength is how many statements are sent to the server at once.
const batchLength = 1000

// EndTrees implements entindex.HotWriter with one range scan per tree, many in one batch.
func (w hotWriter) EndTrees(ctx context.Context, trees []entindex.Tree) error {
	for group := range slices.Chunk(trees, batchLength) {
		batch := &pgx.Batch{}
		for _, t := range group {
			query, args := endTree(t)
			batch.Queue(query, args)
		}
		if err := w.conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	return nil
}

func endTree(t entindex.Tree) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"shard": int64(t.Shard), "number": int64(t.Number)}
	return "UPDATE pages SET last_snapshot = @number - 1 WHERE shard = @shard AND last_snapshot IS NULL AND first_snapshot < @number" +
		rangeCondition(t.Range, args), args
}

const (
	keepBegun = "INSERT INTO interrupted_pages (shard, page, directory, listing, base)" +
		" SELECT shard, page, directory, listing, base FROM pages WHERE shard = $1 AND first_snapshot = $2" +
		" ON CONFLICT (shard, directory, page) DO UPDATE SET listing = excluded.listing, base = excluded.base"
	deleteBegun = "DELETE FROM pages WHERE shard = $1 AND first_snapshot = $2"
	reopenEnded = "UPDATE pages SET last_snapshot = NULL WHERE shard = $1 AND last_snapshot = $2"

	deleteBegunAfter = "DELETE FROM pages WHERE shard = $1 AND first_snapshot > $2"
	reopenEndedAfter = "UPDATE pages SET last_snapshot = NULL WHERE shard = $1 AND last_snapshot >= $2"

	dropInterrupted = "DELETE FROM interrupted_pages WHERE shard = $1"
)

// SetAside implements entindex.HotWriter.
func (w hotWriter) SetAside(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) (int64, error) {
	if _, err := w.conn.Exec(ctx, keepBegun, int64(shard), int64(number)); err != nil {
		return 0, err
	}
	left, err := w.conn.Exec(ctx, deleteBegun, int64(shard), int64(number))
	if err != nil {
		return 0, err
	}
	_, err = w.conn.Exec(ctx, reopenEnded, int64(shard), int64(number)-1)
	return left.RowsAffected(), err
}

// RollBack implements entindex.HotWriter.
func (w hotWriter) RollBack(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) error {
	for _, statement := range []string{deleteBegunAfter, reopenEndedAfter} {
		if _, err := w.conn.Exec(ctx, statement, int64(shard), int64(number)); err != nil {
			return err
		}
	}
	return nil
}

// DropInterrupted implements entindex.HotWriter.
func (w hotWriter) DropInterrupted(ctx context.Context, shard backup.ShardID) error {
	_, err := w.conn.Exec(ctx, dropInterrupted, planAnew, int64(shard))
	return err
}
