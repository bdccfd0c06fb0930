package pgindex

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

const (
	deletePage    = "DELETE FROM pages WHERE shard = $1 AND directory = $2 AND page = $3"
	insertVersion = "INSERT INTO pages (shard, directory, page, first_snapshot, last_snapshot, fingerprint, digest, inode, path_key, listing, base)" +
		" VALUES ($1, $2, $3, $4, nullif($5, 9223372036854775807), $6, $7, $8, $9, $10, nullif($11::bigint, 0))"
	selectLists = "SELECT list, nested, chunks FROM chunk_lists WHERE list = ANY ($1) ORDER BY list"
)

func selectVersions(shard backup.ShardID, r entindex.Range, from backup.SnapshotNumber, after *entindex.Version, limit int) (string, pgx.NamedArgs) {
	args := pgx.NamedArgs{"shard": int64(shard), "since": int64(from), "limit": limit}
	more := " AND (last_snapshot IS NULL OR last_snapshot >= @since)"
	if after != nil {
		more += " AND " + keyPrefix + " >= @after_prefix AND (path_key, page, first_snapshot) > (@after, @page, @first)"
		args["after"], args["after_prefix"], args["page"], args["first"] = after.PathKey, prefix(after.PathKey), int64(after.Key), int64(after.First)
	}
	return "SELECT " + pageColumns + ", listing, " + ofBase + ", first_snapshot, coalesce(last_snapshot, 9223372036854775807) FROM pages WHERE shard = @shard" +
		rangeCondition(r, args) + more + byPathKey + ", first_snapshot LIMIT @limit", args
}

// Versions implements entindex.VersionWriter.
func (w hotWriter) Versions(ctx context.Context, shard backup.ShardID, r entindex.Range, from backup.SnapshotNumber, after *entindex.Version, limit int) ([]entindex.Version, error) {
	query, args := selectVersions(shard, r, from, after, limit)
	rows, err := w.conn.Query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var versions []entindex.Version
	for rows.Next() {
		versions = append(versions, scanVersion(rows))
	}
	return versions, rows.Err()
}

// scanVersion reads a row of the page columns, the listing and ofBase, and the two numbers.
func scanVersion(rows pgx.Rows) entindex.Version {
	raw := rows.RawValues()
	v := entindex.Version{
		PageRow: entindex.PageRow{
			Shard: backup.ShardID(binary.BigEndian.Uint64(raw[0])), Directory: backup.DirectoryID(raw[1]),
			Key: backup.PageKey(binary.BigEndian.Uint64(raw[2])), PathKey: entindex.NotNull(bytes.Clone(raw[3])),
			Fingerprint: backup.Fingerprint(raw[4]), Inode: binary.BigEndian.Uint64(raw[5]), Listing: whole(raw[7], raw[8]),
		},
		First: backup.SnapshotNumber(binary.BigEndian.Uint64(raw[9])), Last: backup.SnapshotNumber(binary.BigEndian.Uint64(raw[10])),
	}
	copy(v.Digest[:], raw[6])
	return v
}

// VersionsAfter implements entindex.VersionReader.
func (b *backend) VersionsAfter(ctx context.Context, shard backup.ShardID, r entindex.Range, after *entindex.Version, limit int) (versions []entindex.Version, err error) {
	query, args := selectVersions(shard, r, 0, after, limit)
	err = b.eachInOrder(ctx, query, args, func(rows pgx.Rows) { versions = append(versions, scanVersion(rows)) })
	return versions, err
}

const selectVersionsOf = `
SELECT p.* FROM unnest($2::uuid[], $3::bigint[]) WITH ORDINALITY n (directory, page, position)
CROSS JOIN LATERAL (
    SELECT ` + pageColumns + `, listing, ` + ofBase + ` AS of_base, first_snapshot, coalesce(last_snapshot, 9223372036854775807) AS last FROM pages
    WHERE shard = $1 AND directory = n.directory AND page = n.page OFFSET 0) p
ORDER BY n.position, p.first_snapshot`

// versionsAtOnce is of how many pages one query sorts the versions.
const versionsAtOnce = 16

// VersionsOf implements entindex.VersionReader.
func (b *backend) VersionsOf(ctx context.Context, shard backup.ShardID, pages []entindex.PageID, do func(*entindex.Version) error) error {
	for group := range slices.Chunk(pages, versionsAtOnce) {
		_, directories, keys := columnsOf(group)
		rows, err := b.pool.Query(ctx, selectVersionsOf, int64(shard), directories, keys)
		if err != nil {
			return b.Wrap(err)
		}
		for rows.Next() {
			v := scanVersion(rows)
			if err := do(&v); err != nil {
				rows.Close()
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return b.Wrap(err)
		}
	}
	return nil
}

// CutVersions implements entindex.VersionWriter.
func (w hotWriter) CutVersions(ctx context.Context, shard backup.ShardID, r entindex.Range, from backup.SnapshotNumber) (n int64, err error) {
	args := pgx.NamedArgs{"shard": int64(shard), "since": int64(from)}
	in := " WHERE shard = @shard" + rangeCondition(r, args)
	for _, statement := range []string{
		"DELETE FROM pages" + in + " AND first_snapshot >= @since",
		"UPDATE pages SET last_snapshot = @since - 1" + in + " AND first_snapshot < @since AND (last_snapshot IS NULL OR last_snapshot >= @since)",
	} {
		done, err := w.conn.Exec(ctx, statement, args)
		if err != nil {
			return n, err
		}
		n += done.RowsAffected()
	}
	return n, nil
}

// DeletePage implements entindex.VersionWriter.
func (w hotWriter) DeletePage(ctx context.Context, p entindex.PageID) error {
	_, err := w.conn.Exec(ctx, deletePage, int64(p.Shard), [16]byte(p.Directory), int64(p.Key))
	return err
}

// PutVersions implements entindex.VersionWriter.
func (w hotWriter) PutVersions(ctx context.Context, versions []entindex.Version) error {
	for group := range slices.Chunk(versions, batchLength) {
		batch := &pgx.Batch{}
		for i := range group {
			v := &group[i]
			batch.Queue(insertVersion, int64(v.Shard), [16]byte(v.Directory), int64(v.Key), int64(v.First), int64(v.Last),
				[16]byte(v.Fingerprint), v.Digest[:], int64(v.Inode), v.PathKey, entindex.NotNull(v.Listing), int64(v.Base))
		}
		if err := w.conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	return nil
}

// Lists implements entindex.VersionWriter.
func (w hotWriter) Lists(ctx context.Context, lists []backup.ChunkID) ([]backup.ChunkList, error) {
	rows, err := w.conn.Query(ctx, selectLists, planAnew, arrays(lists))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (backup.ChunkList, error) {
		raw := row.RawValues()
		return backup.ChunkList{List: backup.ChunkID(raw[0]), Nested: raw[1][0] != 0, Chunks: entindex.SplitIDs(raw[2])}, nil
	})
}

// These conditions select the versions that only one of two snapshots has: $2, and the later $3.
const (
	addedSince = " WHERE pages.shard = $1 AND pages.first_snapshot > $2 AND pages.first_snapshot <= $3 AND (pages.last_snapshot IS NULL OR pages.last_snapshot >= $3)"
	endedSince = " WHERE shard = $1 AND last_snapshot >= $2 AND last_snapshot < $3 AND first_snapshot <= $2"
)

var (
	selectAddedSince = strings.NewReplacer(
		" AND o.first_snapshot < pages.first_snapshot AND o.last_snapshot = pages.first_snapshot - 1", " AND o.first_snapshot <= $2 AND o.last_snapshot >= $2",
		" WHERE pages.shard = $1 AND pages.first_snapshot = $2", addedSince).Replace(selectBegun)
	selectEndedSince = "SELECT " + pageColumns + ", listing, " + ofBase + " FROM pages" + endedSince + byPathKey
)

// Difference implements entindex.VersionReader.
func (b *backend) Difference(ctx context.Context, shard backup.ShardID, from, to backup.SnapshotNumber, ended bool) iter.Seq2[entindex.PageRow, error] {
	query := selectAddedSince
	if ended {
		query = selectEndedSince
	}
	return b.stream(ctx, query, int64(shard), int64(from), int64(to))
}
