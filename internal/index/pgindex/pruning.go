package pgindex

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
)

// EachListing implements entindex.HotReader.
func (b *backend) EachListing(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed entindex.Needed, do func(listing []byte) error) error {
	condition, gaps := needed.Condition("$", 4)
	query := `
SELECT first_snapshot, coalesce(last_snapshot, $3), listing, ` + ofBase + ` FROM pages WHERE shard = $1 AND first_snapshot >= $2` + condition + `
UNION ALL SELECT $3, $3, listing, ` + ofInterruptedBase + ` FROM interrupted_pages p WHERE shard = $1`
	return b.eachRaw(ctx, query, func(raw [][]byte) error {
		if !needed.Has(backup.SnapshotNumber(binary.BigEndian.Uint64(raw[0])), backup.SnapshotNumber(binary.BigEndian.Uint64(raw[1]))) {
			return nil
		}
		return do(entindex.Whole(raw[2], raw[3]))
	}, append([]any{int64(shard), int64(from), int64(math.MaxInt64)}, gaps...)...)
}

// GiveWay implements entindex.Backend. Postgres has many writers.
func (b *backend) GiveWay(ctx context.Context, _ time.Duration) (bool, error) {
	return false, ctx.Err()
}

// eachRaw runs a query that may return most of a table, and calls do for each row.
func (b *backend) eachRaw(ctx context.Context, query string, do func(raw [][]byte) error, args ...any) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // otherwise closing rows early would read all the rest
	rows, err := b.pool.Query(ctx, query, append([]any{planAnew}, args...)...)
	if err != nil {
		return b.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows.RawValues()); err != nil {
			cancel()
			return err
		}
	}
	return b.Wrap(rows.Err())
}

// HasLists implements entindex.HotReader.
func (b *backend) HasLists(ctx context.Context, lists []backup.ChunkID) (bool, error) {
	lists = slices.Compact(slices.SortedFunc(slices.Values(lists), func(a, b backup.ChunkID) int { return bytes.Compare(a[:], b[:]) }))
	n := 0
	err := b.pool.QueryRow(ctx, "SELECT count(*) FROM chunk_lists WHERE list = ANY ($1)", planAnew, arrays(lists)).Scan(&n)
	return n == len(lists), b.Wrap(err)
}

// EachList implements entindex.HotReader.
func (b *backend) EachList(ctx context.Context, do func(backup.ChunkList) error) error {
	return b.eachRaw(ctx, "SELECT list, nested, chunks FROM chunk_lists", func(raw [][]byte) error {
		return do(backup.ChunkList{List: backup.ChunkID(raw[0]), Nested: raw[1][0] != 0, Chunks: entindex.SplitIDs(raw[2])})
	})
}

// EachPlace implements entindex.HotReader.
func (b *backend) EachPlace(ctx context.Context, packs []int64, do func(index.PlaceOf) error) error {
	where, args := "", []any(nil)
	if packs != nil {
		where, args = " WHERE pack = ANY ($1)", []any{packs}
	}
	for _, table := range []string{"chunks", "chunk_copies"} {
		err := b.eachRaw(ctx, "SELECT id, pack, frame FROM "+table+where, func(raw [][]byte) error {
			return do(index.PlaceOf{
				Chunk: backup.ChunkID(raw[0]), Pack: int64(binary.BigEndian.Uint64(raw[1])), Frame: binary.BigEndian.Uint32(raw[2]),
			})
		}, args...)
		if err != nil {
			return err
		}
	}
	return nil
}

// EachLocation implements entindex.HotReader.
func (b *backend) EachLocation(ctx context.Context, packs []int64, do func(index.ChunkLocation) error) error {
	where, args := "", []any(nil)
	if packs != nil {
		where, args = " WHERE pack = ANY ($1)", []any{packs}
	}
	for _, table := range []string{"chunks", "chunk_copies"} {
		err := b.eachRaw(ctx, "SELECT id, pack, frame, frame_offset, length FROM "+table+where, func(raw [][]byte) error {
			return do(index.ChunkLocation{
				PlaceOf: index.PlaceOf{Chunk: backup.ChunkID(raw[0]), Pack: int64(binary.BigEndian.Uint64(raw[1])), Frame: binary.BigEndian.Uint32(raw[2])},
				Start:   binary.BigEndian.Uint32(raw[3]), Length: binary.BigEndian.Uint32(raw[4]),
			})
		}, args...)
		if err != nil {
			return err
		}
	}
	return nil
}

// EachVersion implements entindex.HotReader.
func (b *backend) EachVersion(ctx context.Context, shard backup.ShardID, needed entindex.Needed, share index.Share, do func(index.Version) error) error {
	condition, gaps := needed.Condition("$", 5)
	from, to := directories(share)
	query := `
SELECT first_snapshot, coalesce(last_snapshot, $2), page, inode, directory, fingerprint, digest, path_key, listing, ` + ofBase + `
FROM pages WHERE shard = $1 AND directory BETWEEN $3 AND $4` + condition
	return b.eachRaw(ctx, query, func(raw [][]byte) error {
		v := index.Version{First: backup.SnapshotNumber(binary.BigEndian.Uint64(raw[0])), Last: backup.SnapshotNumber(binary.BigEndian.Uint64(raw[1]))}
		if !needed.Has(v.First, v.Last) {
			return nil
		}
		v.Key, v.Inode = backup.PageKey(binary.BigEndian.Uint64(raw[2])), binary.BigEndian.Uint64(raw[3])
		v.Directory, v.Fingerprint = backup.DirectoryID(raw[4]), backup.Fingerprint(raw[5])
		copy(v.Digest[:], raw[6])
		v.PathKey, v.Listing = bytes.Clone(raw[7]), entindex.Whole(raw[8], raw[9])
		return do(v)
	}, append([]any{int64(shard), int64(math.MaxInt64), from, to}, gaps...)...)
}

// directories returns the first and the last possible id of a directory in a share.
func directories(share index.Share) (from, to [16]byte) {
	of := max(share.Of, 1)
	for i := range to {
		to[i] = 0xff
	}
	from[0], to[0] = byte(share.N*256/of), byte((share.N+1)*256/of-1)
	return from, to
}

// These statements drop the places in packs of the chunks from $2 to $3. A chunk of which there is
// a copy in another pack keeps that place.
const (
	// A transaction that stores a further place of a chunk holds a lock of the chunk's row. Without
	// waiting for it here, the next statement would not see the place, and the last one would
	// delete the row.
	lockPlaces    = `SELECT FROM chunks WHERE id BETWEEN $2 AND $3 AND pack = ANY ($1) ORDER BY id FOR UPDATE`
	promoteCopies = `
UPDATE chunks c SET pack = k.pack, frame = k.frame, frame_offset = k.frame_offset, length = k.length
FROM (
    SELECT DISTINCT ON (id) id, pack, frame, frame_offset, length FROM chunk_copies
    WHERE id BETWEEN $2 AND $3 AND NOT pack = ANY ($1) ORDER BY id, pack) k
WHERE c.id = k.id AND c.id BETWEEN $2 AND $3 AND c.pack = ANY ($1)`
	dropCopies = `
DELETE FROM chunk_copies k WHERE k.id BETWEEN $2 AND $3
    AND (k.pack = ANY ($1) OR EXISTS (SELECT FROM chunks c WHERE c.id = k.id AND c.pack = k.pack))`
	dropChunks = `
WITH gone AS (DELETE FROM chunks WHERE id BETWEEN $2 AND $3 AND pack = ANY ($1) RETURNING id)
DELETE FROM chunk_lists WHERE NOT lost AND list IN (SELECT id FROM gone)`
)

// DropPlaces implements entindex.HotWriter.
func (w hotWriter) DropPlaces(ctx context.Context, packs []int64, digit byte) error {
	low, high := [16]byte{digit}, [16]byte(bytes.Repeat([]byte{0xff}, 16))
	high[0] = digit
	batch := &pgx.Batch{}
	for _, statement := range []string{lockPlaces, promoteCopies, dropCopies, dropChunks} {
		batch.Queue(statement, packs, low, high)
	}
	return w.conn.SendBatch(ctx, batch).Close()
}

const (
	lockMoved  = `SELECT FROM chunks WHERE id = ANY ($3) AND pack = $1 AND $2::bigint <> $1 ORDER BY id FOR UPDATE`
	movePlaces = `UPDATE chunks SET pack = $2 WHERE id = ANY ($3) AND pack = $1`
	moveCopies = `UPDATE chunk_copies SET pack = $2 WHERE id = ANY ($3) AND pack = $1`
)

// MovePlaces implements entindex.HotWriter.
func (w hotWriter) MovePlaces(ctx context.Context, from, to int64, ids []backup.ChunkID) error {
	batch := &pgx.Batch{}
	for _, statement := range []string{lockMoved, movePlaces, moveCopies} {
		batch.Queue(statement, from, to, arrays(ids))
	}
	return w.conn.SendBatch(ctx, batch).Close()
}

// incomplete selects lists that have no place, and those that refer to an unknown list: a reader
// that needs such a list reports both again.
const (
	incomplete = `NOT l.lost AND (NOT EXISTS (SELECT FROM chunks c WHERE c.id = l.list)
    OR l.nested AND EXISTS (SELECT FROM generate_series(1, length(l.chunks), 16) at WHERE NOT EXISTS (
        SELECT FROM chunk_lists below WHERE below.list = encode(substr(l.chunks, at, 16), 'hex')::uuid)))`
	// A list that was lost has been stored again.
	findLists = `UPDATE chunk_lists l SET lost = false WHERE lost AND EXISTS (SELECT FROM chunks c WHERE c.id = l.list)`
	lockLists = `SELECT list FROM chunk_lists l WHERE ` + incomplete + ` ORDER BY list FOR UPDATE OF l`
	dropLists = `DELETE FROM chunk_lists l WHERE list = ANY ($1) AND ` + incomplete
)

// DropLists implements entindex.HotWriter. A batch that needs a list has locked it: the second
// statement sees whether the batch has stored it.
func (w hotWriter) DropLists(ctx context.Context) (int64, error) {
	if _, err := w.conn.Exec(ctx, findLists, planAnew); err != nil {
		return 0, err
	}
	rows, err := w.conn.Query(ctx, lockLists, planAnew)
	if err != nil {
		return 0, err
	}
	lists, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil || len(lists) == 0 {
		return 0, err
	}
	dropped, err := w.conn.Exec(ctx, dropLists, planAnew, lists)
	return dropped.RowsAffected(), err
}

// These statements drop patches first, and then versions of which nothing else is a patch.
const (
	dropPatches  = "DELETE FROM pages WHERE shard = $1 AND last_snapshot >= $4 AND last_snapshot < $3 AND first_snapshot > $2 AND base IS NOT NULL"
	dropVersions = "DELETE FROM pages WHERE shard = $1 AND last_snapshot >= $4 AND last_snapshot < $3 AND first_snapshot > $2" +
		" AND NOT EXISTS (SELECT FROM pages p WHERE p.shard = pages.shard AND p.directory = pages.directory AND p.page = pages.page" +
		" AND p.first_snapshot > pages.first_snapshot AND p.base = pages.first_snapshot)"
)

// DropVersions implements entindex.HotWriter.
func (w hotWriter) DropVersions(ctx context.Context, shard backup.ShardID, after, from, before backup.SnapshotNumber) (int64, error) {
	patches, err := w.conn.Exec(ctx, dropPatches, planAnew, int64(shard), int64(after), int64(before), int64(from))
	if err != nil {
		return 0, err
	}
	others, err := w.conn.Exec(ctx, dropVersions, planAnew, int64(shard), int64(after), int64(before), int64(from))
	return patches.RowsAffected() + others.RowsAffected(), err
}

const endOpen = "UPDATE pages SET last_snapshot = $2 WHERE shard = $1 AND last_snapshot IS NULL"

// EndOpen implements entindex.HotWriter.
func (w hotWriter) EndOpen(ctx context.Context, shard backup.ShardID, last backup.SnapshotNumber) error {
	_, err := w.conn.Exec(ctx, endOpen, int64(shard), int64(last))
	return err
}
