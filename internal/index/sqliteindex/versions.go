package sqliteindex

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"math"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

const (
	versionColumns = "first_snapshot, last_snapshot, " + pageColumns + ", listing, " + ofBase

	// The parameters are the shard, the first snapshot that is cut off, and the range of path keys.
	inRange     = " WHERE shard = ?1 AND path_key >= ?3 AND (?4 IS NULL OR path_key < ?4)"
	cutRange    = "UPDATE pages INDEXED BY pages_path SET last_snapshot = ?2 - 1" + inRange + " AND first_snapshot < ?2 AND (last_snapshot IS NULL OR last_snapshot >= ?2)"
	deleteRange = "DELETE FROM pages INDEXED BY pages_path" + inRange + " AND first_snapshot >= ?2"

	selectVersions = "SELECT " + versionColumns + " FROM pages INDEXED BY pages_path" + inRange +
		" AND (last_snapshot IS NULL OR last_snapshot >= ?2) AND (path_key, page, first_snapshot) > (?5, ?6, ?7)" + byPathKey + ", first_snapshot LIMIT ?8"

	deletePage    = "DELETE FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?2 AND page = ?3"
	insertVersion = "INSERT INTO pages (shard, directory, page, first_snapshot, last_snapshot, fingerprint, digest, inode, path_key, listing, base) VALUES (?,?,?,?,?,?,?,?,?,?,nullif(?,0))"
	selectList    = "SELECT nested, chunks FROM chunk_lists WHERE list = ?"
)

// rangeEnd returns the end of a range as a parameter.
func rangeEnd(r entindex.Range) any {
	if r.To == nil {
		return nil
	}
	return r.To
}

// Versions implements entindex.VersionWriter.
func (w hotWriter) Versions(ctx context.Context, shard backup.ShardID, r entindex.Range, from backup.SnapshotNumber, after *entindex.Version, limit int) ([]entindex.Version, error) {
	statement, err := w.prepare(ctx, selectVersions)
	if err != nil {
		return nil, err
	}
	key, page, first := []byte{}, int64(-1), int64(0)
	if after != nil {
		key, page, first = after.PathKey, int64(after.Key), int64(after.First)
	}
	rows, err := statement.QueryContext(ctx, int64(shard), int64(from), entindex.NotNull(r.From), rangeEnd(r), key, page, first, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var versions []entindex.Version
	for rows.Next() {
		v, err := scanVersion(rows)
		if err != nil {
			return nil, err
		}
		versions = append(versions, v)
	}
	return versions, rows.Err()
}

// scanVersion reads a row of the version columns.
func scanVersion(rows *sql.Rows) (v entindex.Version, err error) {
	var last sql.NullInt64
	v.PageRow, err = scanPage(rows, true, []any{&v.First, &last}, nil)
	v.Last = math.MaxInt64
	if last.Valid {
		v.Last = backup.SnapshotNumber(last.Int64)
	}
	return v, err
}

// VersionsAfter implements entindex.VersionReader.
func (b *backend) VersionsAfter(ctx context.Context, shard backup.ShardID, r entindex.Range, after *entindex.Version, limit int) (versions []entindex.Version, err error) {
	key, page, first := []byte{}, int64(-1), int64(0)
	if after != nil {
		r.From = after.PathKey
		key, page, first = after.PathKey, int64(after.Key), int64(after.First)
	}
	args := []any{int64(shard), int64(0), entindex.NotNull(r.From), rangeEnd(r), key, page, first, limit}
	err = b.each(ctx, selectVersions, args, func(rows *sql.Rows) error {
		v, err := scanVersion(rows)
		versions = append(versions, v)
		return err
	})
	return versions, err
}

const selectVersionsOf = "SELECT " + versionColumns + " FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?2 AND page = ?3 ORDER BY first_snapshot"

// VersionsOf implements entindex.VersionReader.
func (b *backend) VersionsOf(ctx context.Context, shard backup.ShardID, pages []entindex.PageID, do func(*entindex.Version) error) error {
	for i := range pages {
		args := []any{int64(shard), pages[i].Directory[:], int64(pages[i].Key)}
		err := b.each(ctx, selectVersionsOf, args, func(rows *sql.Rows) error {
			v, err := scanVersion(rows)
			if err == nil {
				err = do(&v)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CutVersions implements entindex.VersionWriter.
func (w hotWriter) CutVersions(ctx context.Context, shard backup.ShardID, r entindex.Range, from backup.SnapshotNumber) (n int64, err error) {
	for _, statement := range []string{deleteRange, cutRange} {
		changed, err := w.exec(ctx, statement, int64(shard), int64(from), entindex.NotNull(r.From), rangeEnd(r))
		if err != nil {
			return n, err
		}
		n += changed
	}
	return n, nil
}

// DeletePage implements entindex.VersionWriter.
func (w hotWriter) DeletePage(ctx context.Context, p entindex.PageID) error {
	_, err := w.exec(ctx, deletePage, int64(p.Shard), p.Directory[:], int64(p.Key))
	return err
}

// PutVersions implements entindex.VersionWriter.
func (w hotWriter) PutVersions(ctx context.Context, versions []entindex.Version) error {
	if err := w.storesNames(ctx, true); err != nil {
		return err
	}
	for i := range versions {
		v := &versions[i]
		var last any
		if v.Last != math.MaxInt64 {
			last = int64(v.Last)
		}
		_, err := w.exec(ctx, insertVersion, int64(v.Shard), v.Directory[:], int64(v.Key), int64(v.First), last,
			v.Fingerprint[:], v.Digest[:], int64(v.Inode), v.PathKey, entindex.NotNull(v.Listing), int64(v.Base))
		if err != nil {
			return err
		}
	}
	return w.storesNames(ctx, false)
}

// Lists implements entindex.VersionWriter.
func (w hotWriter) Lists(ctx context.Context, ids []backup.ChunkID) (lists []backup.ChunkList, err error) {
	statement, err := w.prepare(ctx, selectList)
	if err != nil {
		return nil, err
	}
	for i := range ids {
		l := backup.ChunkList{List: ids[i]}
		var chunks []byte
		err := statement.QueryRowContext(ctx, ids[i][:]).Scan(&l.Nested, &chunks)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		l.Chunks = entindex.SplitIDs(chunks)
		lists = append(lists, l)
	}
	return lists, nil
}

// Which versions one of two snapshots, ?2 and the later ?3, has and the other has not.
const (
	addedSince = "INDEXED BY pages_first WHERE shard = ?1 AND first_snapshot > ?2 AND first_snapshot <= ?3 AND (last_snapshot IS NULL OR last_snapshot >= ?3)"
	endedSince = "INDEXED BY pages_last WHERE shard = ?1 AND last_snapshot IS NOT NULL AND last_snapshot >= ?2 AND last_snapshot < ?3 AND first_snapshot <= ?2"
)

// Difference implements entindex.VersionReader.
func (b *backend) Difference(ctx context.Context, shard backup.ShardID, from, to backup.SnapshotNumber, ended bool) iter.Seq2[entindex.PageRow, error] {
	if ended {
		return b.streamQuery(ctx, selectInOrder(endedSince, columnsWithListing+", NULL, NULL, NULL, NULL, NULL", ""), true, int64(shard), int64(from), int64(to))
	}
	const before, since = "o.first_snapshot < pages.first_snapshot AND o.last_snapshot = pages.first_snapshot - 1", "o.first_snapshot <= ?2 AND o.last_snapshot >= ?2"
	return b.streamQuery(ctx, strings.Replace(selectChanged(addedSince, true), before, since, 1), true, int64(shard), int64(from), int64(to))
}
