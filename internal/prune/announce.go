package prune

import (
	"context"
	"fmt"
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
}

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
			return fmt.Errorf("no committer has put a catalog into the store for %s, and nothing is deleted before: start a committer of this version (bctl worker ls): %w", recordWithin, backup.ErrUnavailable)
		}
	}
}
