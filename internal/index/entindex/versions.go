package entindex

import (
	"context"
	"iter"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// open is the last snapshot of an open version.
const open = backup.SnapshotNumber(math.MaxInt64)

// A Version is a version of a page with the snapshots that have it. Number is not used.
type Version struct {
	PageRow
	First, Last backup.SnapshotNumber // Last of an open version: math.MaxInt64
}

// A VersionWriter changes versions of committed snapshots, within a transaction.
type VersionWriter interface {
	// Versions returns the first limit versions in a range of paths that end with snapshot from or
	// later, with their listings, by path key, page and first snapshot, after the version after,
	// unless that is nil.
	Versions(ctx context.Context, shard backup.ShardID, r Range, from backup.SnapshotNumber, after *Version, limit int) ([]Version, error)
	// CutVersions removes the versions in a range of paths from snapshot from and all later ones,
	// and returns the number of versions that it has changed or deleted.
	CutVersions(ctx context.Context, shard backup.ShardID, r Range, from backup.SnapshotNumber) (int64, error)
	// DeletePage deletes all versions of a page.
	DeletePage(ctx context.Context, page PageID) error
	// PutVersions inserts versions. Listing and Base are as for PutPages.
	PutVersions(ctx context.Context, versions []Version) error
	// Lists returns what list chunks refer to, of those that are known.
	Lists(ctx context.Context, lists []backup.ChunkID) ([]backup.ChunkList, error)
}

// A VersionReader reads versions: what differs between two snapshots, and what all have.
type VersionReader interface {
	// Difference yields the versions that snapshot to has and snapshot from has not, or the other
	// way around if ended is set, with their listings, by path key and page.
	// Replaces is set as by Begun, if snapshot from has the page.
	Difference(ctx context.Context, shard backup.ShardID, from, to backup.SnapshotNumber, ended bool) iter.Seq2[PageRow, error]
	// VersionsAfter is VersionWriter.Versions of all snapshots, outside of a transaction.
	VersionsAfter(ctx context.Context, shard backup.ShardID, r Range, after *Version, limit int) ([]Version, error)
	// VersionsOf calls do with the versions of pages, in the order of pages, and each page's in the
	// order of their first snapshots.
	VersionsOf(ctx context.Context, shard backup.ShardID, pages []PageID, do func(*Version) error) error
}

// Added implements index.Catalog.
func (x *Index) Added(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[index.Change, error] {
	return x.difference(ctx, id, base, false)
}

// Ended implements index.Catalog.
func (x *Index) Ended(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[index.Change, error] {
	return x.difference(ctx, id, base, true)
}

func (x *Index) difference(ctx context.Context, id, base backup.SnapshotID, ended bool) iter.Seq2[index.Change, error] {
	return func(yield func(index.Change, error) bool) {
		shard, to, err := x.notFailed(ctx, id)
		if err == nil {
			var of backup.ShardID
			var from backup.SnapshotNumber
			if of, from, err = x.notFailed(ctx, base); err == nil && (of != shard || from >= to) {
				err = invalid("snapshot %s is not an earlier one of the shard of %s", base.Short(), id.Short())
			}
			if err == nil {
				for row, err := range x.Backend.Difference(ctx, shard, from, to, ended) {
					c, err := row.change(ended, err)
					if !yield(c, err) || err != nil {
						return
					}
				}
				return
			}
		}
		yield(index.Change{}, err)
	}
}

// eachVersion calls do for each version in a range of paths. do may write.
func (tx *Tx) eachVersion(ctx context.Context, shard backup.ShardID, r Range, from backup.SnapshotNumber, do func(v *Version) error) error {
	var after *Version
	for {
		found, err := tx.Hot.Versions(ctx, shard, r, from, after, pagesLimit)
		if err != nil {
			return err
		}
		for i := range found {
			if err := do(&found[i]); err != nil {
				return err
			}
		}
		if len(found) < pagesLimit {
			return nil
		}
		after = &found[len(found)-1]
	}
}

// onlyOf is the range of one directory's pages: no path key is between that of a directory and that
// of its first possible child.
func onlyOf(path string) Range {
	key := backup.PathKey(path)
	return Range{key, append(slices.Clone(key), 0)}
}

// compact decides how the versions of one page are stored, which have their listings: as patches of
// the version before that is stored whole, if patches may be written and are small. The listings,
// and so the digests, do not change.
func compact(versions []Version, patches bool) {
	var base *Version // the last one that is stored whole
	var plain []byte  // its plain listing
	whole := 0        // its length, as it is stored
	for i := range versions {
		v := &versions[i]
		v.Base = 0
		page := PageID{Directory: v.Directory, Key: v.Key}
		fits := listing.IsPlain(v.Listing) && len(v.Listing) <= listing.MaxPatchedBytes
		if !patches || !fits {
			base, plain = v, nil
			if old, err := listing.Plain(v.Listing); patches && err == nil && len(old) <= listing.MaxPatchedBytes {
				plain, whole = old, len(v.Listing)
			}
			continue
		}
		if plain != nil {
			if patch := listing.AppendPatch(nil, plain, v.Listing); len(patch) <= page.maxPatch(whole) {
				v.Listing, v.Base = patch, base.First
				continue
			}
		}
		base, plain = v, v.Listing
		v.Listing = listing.AppendPatch(nil, nil, v.Listing)
		whole = len(v.Listing)
	}
}
