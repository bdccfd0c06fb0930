package sqliteindex

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/internal/listing"
)

// selectBase selects the stored listing of a base.
const selectBase = "SELECT listing FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory = ?2 AND page = ?3 AND first_snapshot = ?4"

// selectShare selects versions page by page, each after its base: also bases that only patches
// need. The parameters are the shard, the last snapshot of open versions, and the range of
// directories.
func selectShare(condition, end string) string {
	return "SELECT first_snapshot, coalesce(last_snapshot, ?2), page, inode, directory, fingerprint, digest, path_key, listing, coalesce(base, 0)" +
		" FROM pages INDEXED BY pages_key WHERE shard = ?1 AND directory >= ?3 AND " + end + " AND (base IS NULL OR TRUE" + condition + ")" +
		" ORDER BY directory, page, first_snapshot"
}

// EachVersion implements entindex.HotReader. The versions of a page follow one another.
func (b *backend) EachVersion(ctx context.Context, shard backup.ShardID, needed entindex.Needed, share index.Share, do func(index.Version) error) error {
	condition, gaps := needed.Condition("?", 5)
	from, to, end := []byte{}, any(nil), "?4 IS NULL"
	if n := share.N * 256 / max(share.Of, 1); n > 0 {
		from = []byte{byte(n)}
	}
	if n := (share.N + 1) * 256 / max(share.Of, 1); n < 256 {
		to, end = []byte{byte(n)}, "directory < ?4"
	}
	args := append([]any{int64(shard), int64(math.MaxInt64), from, to}, gaps...)
	bases := bases{backend: b, shard: shard}
	var directory, fingerprint, digest, stored sql.RawBytes
	return b.each(ctx, selectShare(condition, end), args, func(rows *sql.Rows) error {
		var v index.Version
		var base backup.SnapshotNumber
		var inode int64
		if err := rows.Scan(&v.First, &v.Last, &v.Key, &inode, &directory, &fingerprint, &digest, &v.PathKey, &stored, &base); err != nil {
			return err
		}
		copy(v.Directory[:], directory)
		if base == 0 {
			bases.keep(&v, stored)
		}
		if !needed.Has(v.First, v.Last) {
			return nil
		}
		copy(v.Fingerprint[:], fingerprint)
		copy(v.Digest[:], digest)
		v.Inode = uint64(inode)
		var err error
		if v.Listing, err = bases.whole(ctx, &v, directory, stored, base); err != nil {
			return err
		}
		return do(v)
	})
}

// bases makes listings of what is stored. It remembers the last version that may be a base.
type bases struct {
	*backend
	shard     backup.ShardID
	directory backup.DirectoryID
	key       backup.PageKey
	first     backup.SnapshotNumber // 0: there is none
	stored    []byte
	plain     []byte // of stored, if isPlain
	isPlain   bool
	buffers   [2][]byte // for plain, and for the listing of a patch
}

// keep remembers a version that needs no base.
func (b *bases) keep(v *index.Version, stored []byte) {
	b.directory, b.key, b.first, b.isPlain = v.Directory, v.Key, v.First, false
	b.stored = append(b.stored[:0], stored...)
}

// whole returns the listing of a version, which is valid until the next call. As entindex.Whole
// does, it returns a patch itself if that makes no listing.
func (b *bases) whole(ctx context.Context, v *index.Version, directory, stored []byte, base backup.SnapshotNumber) ([]byte, error) {
	if !listing.IsPatch(stored) {
		return stored, nil
	}
	if base == 0 {
		if plain, ok := b.plainBase(); ok {
			return plain, nil
		}
		return stored, nil
	}
	if b.first != base || b.directory != v.Directory || b.key != v.Key {
		b.first = 0
		err := b.each(ctx, selectBase, []any{int64(b.shard), slices.Clone(directory), int64(v.Key), int64(base)}, func(rows *sql.Rows) error {
			var found sql.RawBytes
			err := rows.Scan(&found)
			b.keep(&index.Version{Directory: v.Directory, Key: v.Key, First: base}, found)
			return err
		})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
	}
	if b.first != base {
		return entindex.Whole(stored, nil), nil
	}
	plain, ok := b.plainBase()
	if !ok {
		return stored, nil
	}
	made, err := listing.AppendPatched(b.buffers[1][:0], plain, stored)
	if err != nil {
		return stored, nil //nolint:nilerr // it does not match the digest
	}
	b.buffers[1] = made
	return made, nil
}

// plainBase returns the plain form of what was kept; false: it has none.
func (b *bases) plainBase() ([]byte, bool) {
	if b.isPlain {
		return b.plain, b.plain != nil
	}
	b.isPlain, b.plain = true, nil
	plain, err := listing.AppendPlainBase(b.buffers[0][:0], b.stored)
	if err != nil {
		return nil, false
	}
	b.plain = plain
	if !listing.IsPlain(b.stored) {
		b.buffers[0] = plain
	}
	return plain, true
}
