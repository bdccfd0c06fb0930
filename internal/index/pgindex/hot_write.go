package pgindex

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

// makeStages creates the temp tables of a new connection. Bulk writes are copied there, and go to
// the real tables in one statement. The temp tables are empty again after each transaction. A user
// who may not create temp tables, because the roles of an installation do not let that user write,
// has none and needs none.
//
// The planner has no statistics of temp tables, estimates them as large, and might read all of
// pages to join it with a few rows. makeStages therefore makes it prefer loops over an index, which
// is right for these connections: they look up rows by key.
func makeStages(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
SET enable_hashjoin = off;
SET enable_mergejoin = off;
DO $$ BEGIN IF has_database_privilege(current_database(), 'TEMPORARY') THEN
CREATE TEMP TABLE IF NOT EXISTS stage_chunks (
    id uuid NOT NULL, pack bigint NOT NULL, frame integer NOT NULL, frame_offset integer NOT NULL, length integer NOT NULL
) ON COMMIT DELETE ROWS;
CREATE TEMP TABLE IF NOT EXISTS stage_pages (
    shard bigint NOT NULL, number bigint NOT NULL, page bigint NOT NULL, inode bigint NOT NULL,
    directory uuid NOT NULL, fingerprint uuid NOT NULL, digest bytea NOT NULL, path_key bytea NOT NULL, listing bytea NOT NULL
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
	insertChunks = `
INSERT INTO chunks AS c (id, pack, frame, frame_offset, length)
SELECT DISTINCT ON (id) id, pack, frame, frame_offset, length FROM stage_chunks ORDER BY id, pack
ON CONFLICT (id) DO UPDATE
SET pack = excluded.pack, frame = excluded.frame, frame_offset = excluded.frame_offset, length = excluded.length
WHERE EXISTS (SELECT FROM packs p WHERE p.id = c.pack AND p.condemned)`
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
        SELECT ctid AS place, first_snapshot, last_snapshot, fingerprint, listing FROM pages
        WHERE shard = s.shard AND directory = s.directory AND page = s.page ORDER BY first_snapshot DESC LIMIT 1) newest
    WHERE newest.last_snapshot IS NULL AND newest.first_snapshot < s.number
      AND NOT (newest.fingerprint = s.fingerprint AND newest.listing = s.listing)) changed
WHERE p.ctid = changed.place AND p.last_snapshot IS NULL`
	// A version that is still open from before is equal, and stays.
	insertPages = `
INSERT INTO pages (shard, page, first_snapshot, inode, directory, fingerprint, digest, path_key, listing)
SELECT s.shard, s.page, s.number, s.inode, s.directory, s.fingerprint, s.digest, s.path_key, s.listing FROM stage_pages s
LEFT JOIN LATERAL (
    SELECT first_snapshot, last_snapshot FROM pages
    WHERE shard = s.shard AND directory = s.directory AND page = s.page ORDER BY first_snapshot DESC LIMIT 1) newest ON true
WHERE newest.first_snapshot IS NULL OR newest.last_snapshot IS NOT NULL OR newest.first_snapshot = s.number
ON CONFLICT (shard, directory, page, first_snapshot) DO UPDATE
SET inode = excluded.inode, fingerprint = excluded.fingerprint, digest = excluded.digest, path_key = excluded.path_key, listing = excluded.listing`
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
	insertList       = "INSERT INTO chunk_lists (list, nested, chunks) VALUES ($1, $2, $3) ON CONFLICT (list) DO NOTHING"
	selectKnownLists = "SELECT list FROM chunk_lists WHERE list = ANY ($1)"
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
func (w hotWriter) KnownLists(ctx context.Context, lists []backup.ChunkID) ([]backup.ChunkID, error) {
	rows, err := w.conn.Query(ctx, selectKnownLists, planAnew, arrays(lists))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (backup.ChunkID, error) { return backup.ChunkID(row.RawValues()[0]), nil })
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

// PutPages implements entindex.HotWriter.
func (w hotWriter) PutPages(ctx context.Context, rows []entindex.PageRow) error {
	i := -1
	values := make([]any, 9)
	_, err := w.conn.CopyFrom(ctx, pgx.Identifier{"stage_pages"},
		[]string{"shard", "number", "page", "inode", "directory", "fingerprint", "digest", "path_key", "listing"},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i++; i == len(rows) {
				return nil, nil
			}
			row := &rows[i]
			values[0], values[1], values[2], values[3] = int64(row.Shard), int64(row.Number), int64(row.Key), int64(row.Inode)
			values[4], values[5], values[6] = [16]byte(row.Directory), [16]byte(row.Fingerprint), row.Digest[:]
			values[7], values[8] = row.PathKey, entindex.NotNull(row.Listing)
			return values, nil
		}))
	if err != nil {
		return err
	}
	_, err = w.conn.Exec(ctx, endChangedPages)
	if err != nil {
		return err
	}
	_, err = w.conn.Exec(ctx, insertPages)
	return err
}

// EndPages implements entindex.HotWriter.
func (w hotWriter) EndPages(ctx context.Context, names []entindex.PageName) error {
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
	for len(trees) > 0 {
		n := min(len(trees), batchLength)
		batch := &pgx.Batch{}
		for _, t := range trees[:n] {
			query, args := endTree(t)
			batch.Queue(query, args)
		}
		if err := w.conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		trees = trees[n:]
	}
	return nil
}

func endTree(t entindex.Tree) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"shard": int64(t.Shard), "number": int64(t.Number)}
	return "UPDATE pages SET last_snapshot = @number - 1 WHERE shard = @shard AND last_snapshot IS NULL AND first_snapshot < @number" +
		rangeCondition(t.Range, args), args
}

const (
	keepBegun = "INSERT INTO interrupted_pages (shard, page, directory, listing)" +
		" SELECT shard, page, directory, listing FROM pages WHERE shard = $1 AND first_snapshot = $2" +
		" ON CONFLICT (shard, directory, page) DO UPDATE SET listing = excluded.listing"
	deleteBegun = "DELETE FROM pages WHERE shard = $1 AND first_snapshot = $2"
	reopenEnded = "UPDATE pages SET last_snapshot = NULL WHERE shard = $1 AND last_snapshot = $2"

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

// DropInterrupted implements entindex.HotWriter.
func (w hotWriter) DropInterrupted(ctx context.Context, shard backup.ShardID) error {
	_, err := w.conn.Exec(ctx, dropInterrupted, planAnew, int64(shard))
	return err
}
