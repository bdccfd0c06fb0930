package index

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
)

// ErrNamesIncomplete reports that the index does not have all names of a shard: services or
// commands of an older version have written pages, or what is stored of names is damaged. Prune
// collects the names from the pages again.
var ErrNamesIncomplete = errors.New("the names that the index has are not complete")

// Naming is the part of the index that finds entries by name in all snapshots of a shard. It has
// the names that pages have had, apart from the pages (docs/decisions/0056).
type Naming interface {
	// EachName calls do for each page of a shard with names that entries of it have or had, one or
	// more times: names is a part of them, and the same name may come again. Some may be in no
	// snapshot any more. With ErrNamesIncomplete, there may be other names, too.
	EachName(ctx context.Context, shard backup.ShardID, do func(page backup.PageName, names []string) error) error
	// VersionsOf calls do with the versions of pages, in the order of pages, and each page's in the
	// order of snapshots. The version is valid until do returns.
	VersionsOf(ctx context.Context, shard backup.ShardID, pages []backup.PageName, do func(*PageSpan) error) error
	// VersionsBelow calls do with the versions of all pages of the directory at path and, unless
	// only it is meant, of those below it, in the order of path keys, pages and snapshots.
	VersionsBelow(ctx context.Context, shard backup.ShardID, path string, only bool, do func(*PageSpan) error) error
	// CollectNames replaces the names of a shard by those that its pages have, if some are missing,
	// damaged, or many of them in no page. It reports whether that was so.
	CollectNames(ctx context.Context, shard backup.ShardID) (collected bool, err error)
}

// A PageSpan is a version of a page, and the snapshots that have it.
type PageSpan struct {
	backup.PageVersion
	First, Last backup.SnapshotNumber // Last of an open version: math.MaxInt64
}
