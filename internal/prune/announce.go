package prune

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
)

const (
	// recordWithin is how long committers may take to put a catalog. A keeper looks every two
	// seconds.
	recordWithin = time.Minute
	recordLook   = 100 * time.Millisecond
)

// An Announcing is the part of the index with which a pruner announces deletions.
type Announcing interface {
	AnnounceDeletion(ctx context.Context) (int64, error)
	WrittenCatalog(ctx context.Context) (index.WrittenCatalog, error)
	index.Succeeding
}

// ErrNotRecorded means that no committer has put a catalog.
var ErrNotRecorded = fmt.Errorf("no committer has put a catalog into the store for %s, and nothing is deleted before", recordWithin)

// AwaitRecorded announces a deletion in the index of a fleet, and returns when a committer has put
// a catalog after that. From then on, an index that does not know what is to be deleted, because it
// was restored from an earlier dump, is older than the store's newest catalog, and is refused
// (I16). It is the BeforeDelete of a fleet: a pruner has no key with which it could sign an object
// itself.
func AwaitRecorded(ctx context.Context, idx Announcing) error {
	number, err := idx.AnnounceDeletion(ctx)
	if err != nil {
		return err
	}
	for end := time.Now().Add(recordWithin); ; loop.Pause(ctx, recordLook) {
		written, err := idx.WrittenCatalog(ctx)
		switch {
		case err != nil:
			return err
		case written.Deletions >= number:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("%w: %s: %w", ErrNotRecorded, whyNotRecorded(ctx, idx), backup.ErrUnavailable)
		}
	}
}

// whyNotRecorded returns what is known of the reason: only the committer that leads puts catalogs.
func whyNotRecorded(ctx context.Context, idx index.Succeeding) string {
	const none = "none runs (start one), or those that run do not reach NATS or Postgres (see their /readyz)"
	leaders, err := idx.Leaders(ctx)
	if err != nil { // an operator, for instance, may not ask
		return "perhaps no committer leads, because " + none + ", or the one that leads does not reach the store or is of an earlier version (see its log)"
	}
	if !slices.ContainsFunc(leaders, func(l index.Leader) bool { return l.Role == index.KeeperRole }) {
		return "no committer leads, because " + none
	}
	return "a committer leads, but it does not reach the store, or it is of an earlier version (bctl worker ls shows which one leads; see its log)"
}
