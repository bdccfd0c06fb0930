package sqliteindex

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/migrations"
)

// A hotWriter is entindex.HotWriter in a transaction of the writer. Its statements are prepared
// once for the writer's connection.
type hotWriter struct{ b *backend }

func (w hotWriter) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if statement := w.b.statements[query]; statement != nil {
		return statement, nil
	}
	statement, err := w.b.writer.PrepareContext(ctx, query)
	if err == nil {
		w.b.statements[query] = statement
	}
	return statement, err
}

func (w hotWriter) exec(ctx context.Context, query string, args ...any) (int64, error) {
	statement, err := w.prepare(ctx, query)
	if err != nil {
		return 0, err
	}
	result, err := statement.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// chunkGroup is how many chunks one statement stores.
const chunkGroup = 64

func insertChunks(n int) string {
	return "INSERT INTO chunks (id, pack, frame, frame_offset, length) VALUES " +
		strings.Repeat("(?,?,?,?,?),", n-1) + "(?,?,?,?,?)" +
		" ON CONFLICT (id) DO NOTHING"
}

var (
	insertChunkGroup = insertChunks(chunkGroup)
	insertChunk      = insertChunks(1)
)

// PutChunks implements entindex.HotWriter.
func (w hotWriter) PutChunks(ctx context.Context, rows []entindex.ChunkRow) error {
	if err := w.b.addToFilter(ctx, rows); err != nil { // before other calls can find them
		return err
	}
	args := make([]any, 0, 5*chunkGroup)
	for len(rows) > 0 {
		query, n := insertChunkGroup, chunkGroup
		if len(rows) < chunkGroup {
			query, n = insertChunk, 1
		}
		args = args[:0]
		for i := range rows[:n] {
			row := &rows[i]
			args = append(args, row.ID[:], row.Pack, int64(row.Frame), int64(row.Offset), int64(row.Length))
		}
		affected, err := w.exec(ctx, query, args...)
		if err != nil {
			return err
		}
		if int(affected) < n {
			if err := w.putCopies(ctx, rows[:n]); err != nil {
				return err
			}
		}
		rows = rows[n:]
	}
	return nil
}

const insertCopy = "INSERT INTO chunk_copies (id, pack, frame, frame_offset, length) SELECT ?1, ?2, ?3, ?4, ?5" +
	" WHERE EXISTS (SELECT 1 FROM chunks WHERE id = ?1 AND pack <> ?2) ON CONFLICT DO NOTHING"

// putCopies stores the places of chunks that already have another one.
func (w hotWriter) putCopies(ctx context.Context, rows []entindex.ChunkRow) error {
	for i := range rows {
		row := &rows[i]
		if _, err := w.exec(ctx, insertCopy, row.ID[:], row.Pack, int64(row.Frame), int64(row.Offset), int64(row.Length)); err != nil {
			return err
		}
	}
	return nil
}

const (
	insertList      = "INSERT INTO chunk_lists (list, nested, chunks) VALUES (?, ?, ?) ON CONFLICT (list) DO NOTHING"
	selectKnownList = "SELECT count(*) FROM chunk_lists WHERE list = ?"
	selectBelowList = "SELECT nested, CASE WHEN nested THEN chunks END FROM chunk_lists WHERE list = ?"
)

// PutLists implements entindex.HotWriter.
func (w hotWriter) PutLists(ctx context.Context, lists []backup.ChunkList) error {
	for i := range lists {
		l := &lists[i]
		if _, err := w.exec(ctx, insertList, l.List[:], l.Nested, entindex.JoinIDs(l.Chunks)); err != nil {
			return err
		}
	}
	return nil
}

// KnownLists implements entindex.HotWriter.
func (w hotWriter) KnownLists(ctx context.Context, lists []backup.ChunkID) (known []backup.ChunkList, err error) {
	statement, err := w.prepare(ctx, selectBelowList)
	if err != nil {
		return nil, err
	}
	for i := range lists {
		l := backup.ChunkList{List: lists[i]}
		var below []byte
		switch err := statement.QueryRowContext(ctx, lists[i][:]).Scan(&l.Nested, &below); {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return nil, err
		}
		l.Chunks = entindex.SplitIDs(below)
		known = append(known, l)
	}
	return known, nil
}

const (
	findOpenPage = "SELECT first_snapshot, fingerprint, listing, coalesce(base, 0), " + ofBase + ", " + migrations.WritesPatches + " FROM pages INDEXED BY pages_key" +
		" WHERE shard = ?1 AND directory = ?2 AND page = ?3 AND last_snapshot IS NULL ORDER BY first_snapshot DESC LIMIT 1"
	findPageAt = "SELECT first_snapshot, digest, listing, coalesce(base, 0), " + ofBase + " FROM pages INDEXED BY pages_key" +
		" WHERE shard = ?1 AND directory = ?2 AND page = ?3 AND first_snapshot <= ?4 AND (last_snapshot IS NULL OR last_snapshot >= ?4) ORDER BY first_snapshot DESC LIMIT 1"
	insertPage = "INSERT INTO pages (shard, directory, page, first_snapshot, fingerprint, digest, inode, path_key, listing, base) VALUES (?,?,?,?,?,?,?,?,?,nullif(?,0))" +
		" ON CONFLICT (shard, directory, page, first_snapshot) DO UPDATE SET inode = excluded.inode, fingerprint = excluded.fingerprint," +
		" digest = excluded.digest, path_key = excluded.path_key, listing = excluded.listing, base = excluded.base"
	// Only the newest version can be open. It is found in the index alone: the rows of the others
	// are not read.
	endPage = "UPDATE pages INDEXED BY pages_key SET last_snapshot = ?4 - 1 WHERE shard = ?1 AND directory = ?2 AND page = ?3 AND last_snapshot IS NULL" +
		" AND first_snapshot = (SELECT max(first_snapshot) FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?2 AND page = ?3 AND first_snapshot < ?4)"

	keepBegun = "INSERT INTO interrupted_pages (shard, directory, page, listing, base)" +
		" SELECT shard, directory, page, listing, base FROM pages INDEXED BY pages_first WHERE shard = ? AND first_snapshot = ?" +
		" ON CONFLICT (shard, directory, page) DO UPDATE SET listing = excluded.listing, base = excluded.base"
	undoBegun = "DELETE FROM pages INDEXED BY pages_first WHERE shard = ? AND first_snapshot = ?"
	undoEnded = "UPDATE pages INDEXED BY pages_last SET last_snapshot = NULL WHERE shard = ? AND last_snapshot = ?"

	undoBegunAfter = "DELETE FROM pages INDEXED BY pages_first WHERE shard = ? AND first_snapshot > ?"
	undoEndedAfter = "UPDATE pages INDEXED BY pages_last SET last_snapshot = NULL WHERE shard = ? AND last_snapshot >= ?"

	dropInterrupted = "DELETE FROM interrupted_pages INDEXED BY interrupted_pages_key WHERE shard = ?"
)

// OpenPages implements entindex.HotWriter.
func (w hotWriter) OpenPages(ctx context.Context, names []entindex.PageID) ([]entindex.OpenPage, error) {
	find, err := w.prepare(ctx, findOpenPage)
	if err != nil {
		return nil, err
	}
	open := make([]entindex.OpenPage, len(names))
	for i := range names {
		n, p := &names[i], &open[i]
		var fingerprint []byte
		err := find.QueryRowContext(ctx, int64(n.Shard), n.Directory[:], int64(n.Key)).Scan(&p.First, &fingerprint, &p.Listing, &p.Base, &p.BaseListing, &p.Patches)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		copy(p.Fingerprint[:], fingerprint)
	}
	return open, nil
}

// PagesAt implements entindex.HotWriter.
func (w hotWriter) PagesAt(ctx context.Context, at backup.SnapshotNumber, names []entindex.PageID) ([]entindex.OpenPage, error) {
	find, err := w.prepare(ctx, findPageAt)
	if err != nil {
		return nil, err
	}
	pages := make([]entindex.OpenPage, len(names))
	for i := range names {
		n, p := &names[i], &pages[i]
		var digest []byte
		err := find.QueryRowContext(ctx, int64(n.Shard), n.Directory[:], int64(n.Key), int64(at)).Scan(&p.First, &digest, &p.Listing, &p.Base, &p.BaseListing)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		copy(p.Digest[:], digest)
	}
	return pages, nil
}

// storesNames begins and ends what this binary writes to pages. The trigger of the table marks the
// shards of pages that others write, because they do not store the names.
func (w hotWriter) storesNames(ctx context.Context, stores bool) error {
	_, err := w.exec(ctx, "UPDATE names_writer SET stores = ?", stores)
	return err
}

// PutPages implements entindex.HotWriter.
func (w hotWriter) PutPages(ctx context.Context, rows []entindex.PageRow) error {
	if err := w.storesNames(ctx, true); err != nil {
		return err
	}
	for i := range rows {
		row := &rows[i]
		if row.Ends {
			if _, err := w.exec(ctx, endPage, int64(row.Shard), row.Directory[:], int64(row.Key), int64(row.Number)); err != nil {
				return err
			}
		}
		_, err := w.exec(ctx, insertPage, int64(row.Shard), row.Directory[:], int64(row.Key), int64(row.Number),
			row.Fingerprint[:], row.Digest[:], int64(row.Inode), row.PathKey, entindex.NotNull(row.Listing), int64(row.Base))
		if err != nil {
			return err
		}
	}
	return w.storesNames(ctx, false)
}

// EndPages implements entindex.HotWriter.
func (w hotWriter) EndPages(ctx context.Context, names []entindex.PageID) error {
	for i := range names {
		n := &names[i]
		if _, err := w.exec(ctx, endPage, int64(n.Shard), n.Directory[:], int64(n.Key), int64(n.Number)); err != nil {
			return err
		}
	}
	return nil
}

func endTree(t entindex.Tree) (string, []any) {
	query := "UPDATE pages INDEXED BY pages_path SET last_snapshot = ?2 - 1 WHERE shard = ?1 AND path_key >= ?3 AND last_snapshot IS NULL AND first_snapshot < ?2"
	args := []any{int64(t.Shard), int64(t.Number), entindex.NotNull(t.From)}
	if t.To != nil {
		query, args = query+" AND path_key < ?4", append(args, t.To)
	}
	return query, args
}

// EndTrees implements entindex.HotWriter.
func (w hotWriter) EndTrees(ctx context.Context, trees []entindex.Tree) error {
	for _, t := range trees {
		query, args := endTree(t)
		if _, err := w.exec(ctx, query, args...); err != nil {
			return err
		}
	}
	return nil
}

// SetAside implements entindex.HotWriter.
func (w hotWriter) SetAside(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) (int64, error) {
	if _, err := w.exec(ctx, keepBegun, int64(shard), int64(number)); err != nil {
		return 0, err
	}
	left, err := w.exec(ctx, undoBegun, int64(shard), int64(number))
	if err != nil {
		return 0, err
	}
	_, err = w.exec(ctx, undoEnded, int64(shard), int64(number)-1)
	return left, err
}

// RollBack implements entindex.HotWriter.
func (w hotWriter) RollBack(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) error {
	for _, statement := range []string{undoBegunAfter, undoEndedAfter} {
		if _, err := w.exec(ctx, statement, int64(shard), int64(number)); err != nil {
			return err
		}
	}
	return nil
}

// DropInterrupted implements entindex.HotWriter.
func (w hotWriter) DropInterrupted(ctx context.Context, shard backup.ShardID) error {
	_, err := w.exec(ctx, dropInterrupted, int64(shard))
	return err
}
