package index

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
)

// Comparing is the part of the index that shows whether the index is older than its store (I16):
// Postgres may have been restored from an earlier dump.
//
// The store is listed first, and the index is queried second. Then the store has nothing that the
// index does not know, unless the index is older: a record is put after the index knows how its
// snapshot ended, and a catalog after the index has given its number. A prune makes no record.
// Therefore it announces its deletions, and a committer puts a catalog, before anything is deleted.
type Comparing interface {
	// Unended returns those of the snapshots that, according to the index, are running, or that it
	// does not know and has never known.
	Unended(ctx context.Context, ids []backup.SnapshotID) ([]backup.SnapshotID, error)
	// LastCatalog returns the greatest number that NextCatalog has returned, or that a written
	// catalog has.
	LastCatalog(ctx context.Context) (int64, error)
	// Incarnation returns a text that changes when the tables of the index are replaced, or when
	// its server is started. It costs no more than a round trip.
	Incarnation(ctx context.Context) (string, error)
	// AnnounceDeletion returns the number of a deletion that is about to begin. It is greater than
	// all that it has returned before.
	AnnounceDeletion(ctx context.Context) (int64, error)
	// AnnouncedDeletion returns the greatest number that AnnounceDeletion has returned.
	AnnouncedDeletion(ctx context.Context) (int64, error)
	// MarkOld makes an index count as older than a store with this catalog, until AcceptLoss; 0:
	// the store has none. LastCatalog is then below 0, if the index has not numbered any either. So
	// nothing else works with it while it is brought up to date, also after an interruption.
	MarkOld(ctx context.Context, catalog int64) error
	// AcceptLoss makes an index current that is older than its store: it lacks these snapshots for
	// good, and numbers catalogs above the given one. No later snapshot of a shard gets the number
	// of a lost one. The log notes by and reason.
	AcceptLoss(ctx context.Context, lost []LostSnapshot, catalog int64, by, reason string) error
}

// A LostSnapshot is a snapshot that the store has a record of and that the index permanently lacks.
type LostSnapshot struct {
	ID     backup.SnapshotID
	Shard  backup.ShardKey
	Number backup.SnapshotNumber
}
