package sqliteindex

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

// listingsAtOnce is how many versions EachListing reads before it gives way.
const listingsAtOnce = 1000

// nextFirst selects the first snapshot after ?2, and before ?3, with which versions began.
const nextFirst = "SELECT min(first_snapshot) FROM pages INDEXED BY pages_first WHERE shard = ?1 AND first_snapshot > ?2 AND first_snapshot < ?3"

// EachListing implements entindex.HotReader. It reads the versions that began with earlier
// snapshots in many short transactions: while one is open, a backup cannot merge the log into the
// file, which it does before it copies the file. Rows that began with the last snapshot, or later,
// and interrupted pages are read in one transaction, because a running snapshot moves its rows from
// one table to the other. No other rows move.
func (b *backend) EachListing(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed entindex.Needed, do func(listing []byte) error) error {
	last := from
	err := b.each(ctx, "SELECT coalesce(max(first_snapshot), 0) FROM pages INDEXED BY pages_first WHERE shard = ?1", []any{int64(shard)},
		func(rows *sql.Rows) error { return rows.Scan(&last) })
	if err != nil {
		return err
	}
	last = max(last, from)
	pace := worker{backend: b}
	for first := from - 1; ; {
		var next sql.NullInt64
		err := b.each(ctx, nextFirst, []any{int64(shard), int64(first), int64(last)}, func(rows *sql.Rows) error { return rows.Scan(&next) })
		if err != nil {
			return err
		}
		if !next.Valid {
			break
		}
		first = backup.SnapshotNumber(next.Int64)
		if err := b.eachListingOf(ctx, shard, first, needed, &pace, do); err != nil {
			return err
		}
	}
	condition, gaps := needed.Condition("?", 4)
	query := "SELECT rowid, first_snapshot, coalesce(last_snapshot, ?3), listing, " + ofBase + " FROM pages INDEXED BY pages_first WHERE shard = ?1 AND first_snapshot >= ?2" + condition +
		" UNION ALL SELECT rowid, ?3, ?3, listing, " + ofInterruptedBase + " FROM interrupted_pages WHERE shard = ?1"
	_, _, err = b.eachNeeded(ctx, query, append([]any{int64(shard), int64(last), int64(math.MaxInt64)}, gaps...), needed, do)
	return err
}

// selectListingsOf selects versions that began with one snapshot.
func selectListingsOf(condition string) string {
	return "SELECT rowid, first_snapshot, coalesce(last_snapshot, ?4), listing, " + ofBase + " FROM pages INDEXED BY pages_first WHERE shard = ?1 AND first_snapshot = ?2 AND rowid > ?3" + condition +
		" ORDER BY rowid LIMIT ?5"
}

// eachListingOf is EachListing for the versions that began with one snapshot, which has ended.
func (b *backend) eachListingOf(ctx context.Context, shard backup.ShardID, first backup.SnapshotNumber, needed entindex.Needed, pace *worker, do func(listing []byte) error) error {
	condition, gaps := needed.Condition("?", 6)
	query := selectListingsOf(condition)
	row := int64(math.MinInt64)
	for read := listingsAtOnce; read == listingsAtOnce; {
		err := pace.giveWay(ctx)
		if err != nil {
			return err
		}
		args := append([]any{int64(shard), int64(first), row, int64(math.MaxInt64), listingsAtOnce}, gaps...)
		if read, row, err = b.eachNeeded(ctx, query, args, needed, do); err != nil {
			return err
		}
	}
	return nil
}

// eachNeeded calls do with the listings of the versions that a query selects and that are needed.
// It returns how many the query has selected, and the row of the last one.
func (b *backend) eachNeeded(ctx context.Context, query string, args []any, needed entindex.Needed, do func(listing []byte) error) (read int, row int64, err error) {
	var listing, base sql.RawBytes
	err = b.each(ctx, query, args, func(rows *sql.Rows) error {
		read++
		var first, last backup.SnapshotNumber
		if err := rows.Scan(&row, &first, &last, &listing, &base); err != nil {
			return err
		}
		if !needed.Has(first, last) {
			return nil
		}
		return do(entindex.Whole(listing, base))
	})
	return read, row, err
}

// HasLists implements entindex.HotReader.
func (b *backend) HasLists(ctx context.Context, lists []backup.ChunkID) (bool, error) {
	statement, err := b.prepare(ctx, selectKnownList)
	if err != nil {
		return false, err
	}
	for i := range lists {
		n := 0
		if err := statement.QueryRowContext(ctx, lists[i][:]).Scan(&n); err != nil || n == 0 {
			return false, b.Wrap(err)
		}
	}
	return true, nil
}

// EachList implements entindex.HotReader.
func (b *backend) EachList(ctx context.Context, do func(backup.ChunkList) error) error {
	var list, chunks sql.RawBytes
	return b.each(ctx, "SELECT list, nested, chunks FROM chunk_lists", nil, func(rows *sql.Rows) error {
		var l backup.ChunkList
		if err := rows.Scan(&list, &l.Nested, &chunks); err != nil {
			return err
		}
		copy(l.List[:], list)
		l.Chunks = entindex.SplitIDs(chunks)
		return do(l)
	})
}

// idRange returns the range of the ids whose first byte is at least from and less than to. first is
// in the range, and end is not.
func idRange(from, to int) (first, end []byte) {
	if to < 256 {
		return []byte{byte(from)}, []byte{byte(to)}
	}
	return []byte{byte(from)}, bytes.Repeat([]byte{0xff}, len(backup.ChunkID{})+1)
}

// These statements drop the places in packs of the chunks in [?2, ?3). A chunk of which there is a
// copy in another pack keeps that place. Only the last one reads all chunks of the range: the
// others read the copies, or the lists, of which there are fewer.
const (
	inPacks      = "pack IN (SELECT value FROM json_each(?1))"
	promoteCopy  = "UPDATE chunks SET (pack, frame, frame_offset, length) = (SELECT pack, frame, frame_offset, length FROM chunk_copies k WHERE k.id = chunks.id AND NOT k." + inPacks + " ORDER BY pack LIMIT 1) WHERE id IN (SELECT k.id FROM chunk_copies k WHERE k.id >= ?2 AND k.id < ?3 AND NOT k." + inPacks + ") AND " + inPacks
	dropPromoted = "DELETE FROM chunk_copies WHERE id >= ?2 AND id < ?3 AND (" + inPacks + " OR pack = (SELECT c.pack FROM chunks c WHERE c.id = chunk_copies.id))"
	dropLists    = "DELETE FROM chunk_lists WHERE NOT lost AND list >= ?2 AND list < ?3 AND EXISTS (SELECT 1 FROM chunks c WHERE c.id = chunk_lists.list AND c." + inPacks + ")"
	dropChunks   = "DELETE FROM chunks WHERE id >= ?2 AND id < ?3 AND " + inPacks
)

// DropPlaces implements entindex.HotWriter.
func (w hotWriter) DropPlaces(ctx context.Context, packs []int64, digit byte) error {
	list, err := json.Marshal(packs)
	if err != nil {
		return err
	}
	from, to := idRange(int(digit), int(digit)+1)
	for _, query := range []string{promoteCopy, dropPromoted, dropLists, dropChunks} {
		if _, err := w.exec(ctx, query, string(list), from, to); err != nil {
			return err
		}
	}
	return nil
}

// MovePlaces implements entindex.HotWriter.
func (w hotWriter) MovePlaces(ctx context.Context, from, to int64, ids []backup.ChunkID) error {
	for i := range ids {
		for _, query := range []string{movePlace, moveCopy} {
			if _, err := w.exec(ctx, query, from, to, ids[i][:]); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	movePlace = "UPDATE chunks SET pack = ?2 WHERE id = ?3 AND pack = ?1"
	moveCopy  = "UPDATE chunk_copies SET pack = ?2 WHERE id = ?3 AND pack = ?1"
)

// A list that refers to an unknown list is of no use: a reader that needs it reports both again.
const dropIncomplete = "DELETE FROM chunk_lists WHERE NOT lost AND (NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.id = chunk_lists.list) OR nested AND EXISTS (" +
	"WITH RECURSIVE positions (at) AS (SELECT 1 WHERE length(chunk_lists.chunks) > 0 UNION ALL SELECT at + 16 FROM positions WHERE at + 16 < length(chunk_lists.chunks)) " +
	"SELECT 1 FROM positions WHERE NOT EXISTS (SELECT 1 FROM chunk_lists below WHERE below.list = substr(chunk_lists.chunks, at, 16))))"

// A list that was lost has been stored again.
const findAgain = "UPDATE chunk_lists SET lost = 0 WHERE lost AND EXISTS (SELECT 1 FROM chunks WHERE chunks.id = chunk_lists.list)"

// DropLists implements entindex.HotWriter.
func (w hotWriter) DropLists(ctx context.Context) (int64, error) {
	if _, err := w.exec(ctx, findAgain); err != nil {
		return 0, err
	}
	return w.exec(ctx, dropIncomplete)
}

// These statements drop patches first, and then versions of which no other version is a patch.
const (
	dropPatches  = "DELETE FROM pages INDEXED BY pages_last WHERE shard = ?1 AND last_snapshot IS NOT NULL AND last_snapshot < ?3 AND last_snapshot >= ?4 AND first_snapshot > ?2 AND base IS NOT NULL"
	dropVersions = "DELETE FROM pages INDEXED BY pages_last WHERE shard = ?1 AND last_snapshot IS NOT NULL AND last_snapshot < ?3 AND last_snapshot >= ?4 AND first_snapshot > ?2" +
		" AND NOT EXISTS (SELECT 1 FROM pages p INDEXED BY pages_key WHERE p.shard = pages.shard AND p.directory = pages.directory AND p.page = pages.page" +
		" AND p.first_snapshot > pages.first_snapshot AND p.base = pages.first_snapshot)"
)

// DropVersions implements entindex.HotWriter.
func (w hotWriter) DropVersions(ctx context.Context, shard backup.ShardID, after, from, before backup.SnapshotNumber) (int64, error) {
	patches, err := w.exec(ctx, dropPatches, int64(shard), int64(after), int64(before), int64(from))
	if err != nil {
		return 0, err
	}
	others, err := w.exec(ctx, dropVersions, int64(shard), int64(after), int64(before), int64(from))
	return patches + others, err
}

const endOpen = "UPDATE pages SET last_snapshot = ?2 WHERE shard = ?1 AND last_snapshot IS NULL"

// EndOpen implements entindex.HotWriter.
func (w hotWriter) EndOpen(ctx context.Context, shard backup.ShardID, last backup.SnapshotNumber) error {
	_, err := w.exec(ctx, endOpen, int64(shard), int64(last))
	return err
}
