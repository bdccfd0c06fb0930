package sqliteindex

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

const (
	// pages_path has all of these columns, so the rows themselves are not read.
	endedFrom = "SELECT rowid, path_key, page, first_snapshot, last_snapshot FROM pages INDEXED BY pages_path" +
		" WHERE shard = ?1 AND (path_key, page) > (?2, ?3) AND last_snapshot IS NOT NULL ORDER BY path_key, page"

	// These statements drop patches first, and then versions of which no other version is a patch.
	dropTheirPatches = "DELETE FROM pages WHERE rowid IN (SELECT value FROM json_each(?1)) AND base IS NOT NULL"
	dropTheirBases   = "DELETE FROM pages WHERE rowid IN (SELECT value FROM json_each(?1))" +
		" AND NOT EXISTS (SELECT 1 FROM pages p INDEXED BY pages_key WHERE p.shard = pages.shard AND p.directory = pages.directory AND p.page = pages.page" +
		" AND p.first_snapshot > pages.first_snapshot AND p.base = pages.first_snapshot)"

	// dropCache gives the writer 64 MiB, because a large transaction changes many of the database's
	// own pages. Those that do not fit are written to the log, and read again.
	dropCache  = "PRAGMA cache_size=-65536"
	usualCache = "PRAGMA cache_size=" + writerCache

	// readPerDropped and readAtOnce bound the versions that a transaction reads.
	readPerDropped = 50
	readAtOnce     = 100_000
)

// DropByPage implements entindex.ManyDropper. In each of pages_path and pages_key, the versions of
// a page are side by side. So the deletions of one transaction change few pages of these indexes.
// Versions that ended together are spread over all of them, and each transaction would write most
// of both.
func (w hotWriter) DropByPage(ctx context.Context, shard backup.ShardID, needed entindex.Needed, after *entindex.PageCursor, limit int) (dropped int64, next *entindex.PageCursor, err error) {
	if after == nil {
		after = &entindex.PageCursor{PathKey: []byte{}, Page: -1}
	}
	if _, err := w.exec(ctx, dropCache); err != nil {
		return 0, nil, err
	}
	defer func() {
		if _, restoreErr := w.exec(ctx, usualCache); err == nil {
			err = restoreErr
		}
	}()
	unneeded, next, err := w.unneeded(ctx, shard, needed, after, limit)
	if err != nil || len(unneeded) == 0 {
		return 0, next, err
	}
	list, err := json.Marshal(unneeded)
	if err != nil {
		return 0, nil, err
	}
	patches, err := w.exec(ctx, dropTheirPatches, string(list))
	if err != nil {
		return 0, nil, err
	}
	others, err := w.exec(ctx, dropTheirBases, string(list))
	return patches + others, next, err
}

// unneeded returns the rows of unneeded versions of whole pages, from the first page after the
// cursor on.
func (w hotWriter) unneeded(ctx context.Context, shard backup.ShardID, needed entindex.Needed, after *entindex.PageCursor, limit int) (unneeded []int64, next *entindex.PageCursor, err error) {
	statement, err := w.prepare(ctx, endedFrom)
	if err != nil {
		return nil, nil, err
	}
	rows, err := statement.QueryContext(ctx, int64(shard), after.PathKey, int64(after.Page))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	at := entindex.PageCursor{PathKey: bytes.Clone(after.PathKey), Page: after.Page}
	var key sql.RawBytes
	for read := 0; rows.Next(); read++ {
		var row int64
		var page backup.PageKey
		var first, last backup.SnapshotNumber
		if err := rows.Scan(&row, &key, &page, &first, &last); err != nil {
			return nil, nil, err
		}
		if page != at.Page || !bytes.Equal(key, at.PathKey) {
			if len(unneeded) >= limit || read >= min(readPerDropped*limit, readAtOnce) {
				return unneeded, &at, nil
			}
			at.PathKey, at.Page = append(at.PathKey[:0], key...), page
		}
		if !needed.Has(first, last) {
			unneeded = append(unneeded, row)
		}
	}
	return unneeded, nil, rows.Err()
}
