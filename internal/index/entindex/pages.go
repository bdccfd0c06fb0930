package entindex

import (
	"bytes"
	"context"
	"iter"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// pagesLimit bounds the rows with listings that one query returns. Twice as many are in memory. The
// first query of several returns firstPages, so that the consumer begins early.
const (
	firstPages = 32
	pagesLimit = 256
)

// Pages implements index.Catalog. It fetches a limited number of rows at a time, so that a slow
// reader holds neither a connection nor a transaction. The versions of a committed snapshot do not
// change between fetches.
func (x *Index) Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		if err := backup.CheckPath(path); err != nil {
			yield(backup.PageVersion{}, err)
			return
		}
		s, err := x.committed(ctx, id)
		if err != nil {
			yield(backup.PageVersion{}, err)
			return
		}
		x.Subtree(ctx, backup.ShardID(s.ShardID), backup.SnapshotNumber(s.Number), path)(yield)
	}
}

// Subtree implements index.Walking.
func (x *Index) Subtree(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) iter.Seq2[backup.PageVersion, error] {
	return versionsOf(x.subtree(ctx, shard, base, path))
}

func versionsOf(rows iter.Seq2[PageRow, error]) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		for row, err := range rows {
			var version backup.PageVersion
			if err == nil {
				version, err = row.version()
			}
			if !yield(version, err) || err != nil {
				return
			}
		}
	}
}

// A fetched is the result of one PagesAfter.
type fetched struct {
	rows []PageRow
	err  error
}

// subtree yields the rows of path and below that are valid at a snapshot.
func (x *Index) subtree(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, path string) iter.Seq2[PageRow, error] {
	return x.pagesIn(ctx, shard, at, Range{backup.PathKey(path), backup.PathKeyEnd(path)})
}

// pagesIn yields the rows of a range that are valid at a snapshot. While the consumer takes the
// second half of the rows in memory, the next ones are fetched.
func (x *Index) pagesIn(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, of Range) iter.Seq2[PageRow, error] {
	return func(yield func(PageRow, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var fetching sync.WaitGroup
		defer fetching.Wait()
		defer cancel()
		next := make(chan fetched, 1)
		fetch := func(after []byte, key backup.PageKey, limit int) {
			fetching.Go(func() {
				rows, err := x.Backend.PagesAfter(ctx, shard, at, of, after, key, limit)
				next <- fetched{rows, err}
			})
		}
		limit := firstPages
		fetch(nil, 0, limit)
		for more := true; more; {
			now := <-next
			if now.err != nil {
				yield(PageRow{}, now.err)
				return
			}
			more = len(now.rows) == limit
			for i := range now.rows {
				if more && i == len(now.rows)/2 {
					last := &now.rows[len(now.rows)-1]
					limit = min(2*limit, pagesLimit)
					fetch(last.PathKey, last.Key, limit)
				}
				if !yield(now.rows[i], nil) {
					return
				}
			}
		}
	}
}

func (p *PageRow) version() (backup.PageVersion, error) {
	path, err := backup.PathOfKey(p.PathKey)
	return backup.PageVersion{Path: path, Key: p.Key, Fingerprint: p.Fingerprint, Inode: p.Inode, Listing: p.Listing, Digest: p.Digest}, err
}

// Marks implements index.Walking.
func (x *Index) Marks(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, from, to []byte, limit int) ([]index.PageMark, []byte, error) {
	if limit < 1 {
		return nil, nil, invalid("limit of %d marks", limit)
	}
	if from == nil {
		from = []byte{}
	}
	marks, keys, err := x.Backend.Marks(ctx, shard, base, Range{from, to}, limit+1)
	if err == nil {
		err = x.rereadMarks(ctx, shard, base, marks)
	}
	if err != nil || len(marks) <= limit {
		return marks, nil, err
	}
	cut := limit
	for cut > 0 && marks[cut-1].Directory == marks[limit].Directory {
		cut--
	}
	if cut > 0 {
		return marks[:cut], keys[cut], nil
	}
	// This directory alone has more pages than limit: it is returned whole.
	marks, err = x.Backend.DirectoryMarks(ctx, shard, base, marks[0].Directory)
	if err == nil {
		err = x.rereadMarks(ctx, shard, base, marks)
	}
	if err != nil {
		return nil, nil, err
	}
	// No path key is between that of a directory and that of its first possible child.
	_, rest, err := x.Backend.Marks(ctx, shard, base, Range{append(bytes.Clone(keys[0]), 0), to}, 1)
	if err != nil || len(rest) == 0 {
		return marks, nil, err
	}
	return marks, rest[0], nil
}

// Listings implements index.Walking.
func (x *Index) Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error) {
	if len(pages) == 0 {
		return nil, nil
	}
	rows, err := x.Backend.Listings(ctx, shard, base, rowNames(shard, pages))
	if err != nil {
		return nil, err
	}
	listings := make([][]byte, len(pages))
	for i := range rows {
		if rows[i].Listing == nil {
			continue
		}
		v := backup.PageVersion{
			Path: pages[i].Path, Key: pages[i].Key, Fingerprint: rows[i].Fingerprint, Inode: rows[i].Inode, Listing: rows[i].Listing,
		}
		listings[i] = v.Listing
		if listing.Digest(&v) != rows[i].Digest {
			listings[i] = []byte{}
		}
	}
	return listings, x.rereadListings(ctx, shard, base, pages, listings)
}

// InterruptedListings implements index.Walking.
func (x *Index) InterruptedListings(ctx context.Context, shard backup.ShardID, pages []backup.PageName) ([][]byte, error) {
	if len(pages) == 0 {
		return nil, nil
	}
	listings, err := x.Backend.InterruptedListings(ctx, shard, rowNames(shard, pages))
	if err != nil {
		return nil, err
	}
	again, err := x.rereadPages(ctx, shard, 0, func(yield func(backup.DirectoryID) bool) {
		for i := range pages {
			if !yield(listing.DirectoryID(pages[i].Path)) {
				return
			}
		}
	})
	for i := range pages {
		if again[index.PageID{Shard: shard, Directory: listing.DirectoryID(pages[i].Path), Key: pages[i].Key}] {
			listings[i] = nil // it may refer to what is lost
		}
	}
	return listings, err
}

func rowNames(shard backup.ShardID, pages []backup.PageName) []PageID {
	names := make([]PageID, len(pages))
	for i, p := range pages {
		names[i] = PageID{Shard: shard, Directory: listing.DirectoryID(p.Path), Key: p.Key}
	}
	return names
}

// DirectoryByInode implements index.Walking.
func (x *Index) DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (string, bool, error) {
	if inode == 0 {
		return "", false, nil
	}
	keys, err := x.Backend.DirectoriesByInode(ctx, shard, base, inode)
	if err != nil || len(keys) != 1 {
		return "", false, err
	}
	path, err := backup.PathOfKey(keys[0])
	return path, err == nil, err
}

// PageKeys implements index.Walking.
func (x *Index) PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error) {
	marks, err := x.Backend.DirectoryMarks(ctx, shard, base, listing.DirectoryID(path))
	if err != nil {
		return nil, err
	}
	keys := make([]backup.PageKey, len(marks))
	for i := range marks {
		keys[i] = marks[i].Key
	}
	return keys, nil
}
