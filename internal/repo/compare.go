package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// Compared is an index in a server, as far as it is compared with its store. Its methods are those
// of index.Comparing.
type Compared interface {
	Unended(ctx context.Context, ids []backup.SnapshotID) ([]backup.SnapshotID, error)
	LastCatalog(ctx context.Context) (int64, error)
}

const (
	// catchUp is what to do about an index in a server that is older than its store.
	catchUp = "bctl index catchup brings it up to date"
	// comparedAtOnce is how many records are compared with one query.
	comparedAtOnce = 1000
	// maxCatalog bounds the numbers of catalogs that are believed: nobody comes near it by writing
	// catalogs.
	maxCatalog = 1 << 62
)

// Compare returns an error that wraps ErrIndexOld if the index of a fleet is older than its store,
// or has diverged from it (I16): Postgres was restored from an earlier dump. r is nil for a process
// that may not read records and catalogs, and that believes their names. Otherwise, objects that
// the repository's signer has not signed are ignored (I17).
func Compare(ctx context.Context, s store.Store, i Compared, r *backup.Repository) error {
	if err := CompareCatalogs(ctx, s, i, r); err != nil {
		return err
	}
	return EachUnended(ctx, s, i, func(id backup.SnapshotID, amendment int) error {
		signed, err := signedBy(ctx, s, store.AmendedName(id, amendment), r)
		if err != nil || !signed {
			return err
		}
		return fmt.Errorf("%w: the store has a record of snapshot %s, whose end the index does not know. %s", ErrIndexOld, id.Short(), catchUp)
	})
}

// CompareCatalogs is Compare for the catalogs alone, which costs one request and one query. Before
// a prune deletes anything, and after each change of settings, holds and snapshots that are
// forgotten, a committer puts a catalog, with a number that the index knows.
func CompareCatalogs(ctx context.Context, s store.Store, i Compared, r *backup.Repository) error {
	newest, err := NewestCatalog(ctx, s, r)
	if err != nil {
		return err
	}
	last, err := i.LastCatalog(ctx)
	if err == nil && last < 0 {
		return fmt.Errorf("%w: a rebuild of it is not complete. bctl index rebuild completes it", ErrIndexOld)
	}
	if err != nil || newest <= last {
		return err
	}
	return fmt.Errorf("%w: the store has catalog %d, and the index has written %d. %s", ErrIndexOld, newest, last, catchUp)
}

// NewestCatalog returns the greatest number of the catalogs in the store; r is as in Compare.
func NewestCatalog(ctx context.Context, s store.Store, r *backup.Repository) (newest int64, err error) {
	numbers, err := Catalogs(ctx, s)
	if err != nil {
		return 0, err
	}
	for _, n := range slices.Backward(numbers) {
		if n >= maxCatalog {
			continue
		}
		signed, err := signedBy(ctx, s, store.CatalogName(n), r)
		if err != nil || signed {
			return n, err
		}
	}
	return 0, nil
}

// Catalogs returns the numbers of the catalogs in the store, in ascending order. They are not
// authenticated, because they are not read.
func Catalogs(ctx context.Context, s store.Store) ([]int64, error) {
	return sequences(ctx, s, store.CatalogPrefix, store.ParseCatalogName)
}

// sequences returns the numbers in the names that begin with prefix, in ascending order.
func sequences(ctx context.Context, s store.Store, prefix string, parse func(name string) (int64, bool)) ([]int64, error) {
	var found []int64
	for o, err := range s.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if n, ok := parse(o.Name); ok {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, nil
}

// EachUnended calls do for each snapshot with a record in the store that, according to the index,
// is running, or that it does not know, with the sequence of its newest record. It compares as many
// as comparedAtOnce at a time, so that memory does not grow with the number of snapshots. Stores
// list the records of a snapshot one after the other. From a store that does not, do may be called
// for each of them.
func EachUnended(ctx context.Context, s store.Store, i Compared, do func(id backup.SnapshotID, amendment int) error) error {
	recorded := make(map[backup.SnapshotID]int, comparedAtOnce)
	compare := func() error {
		ids := make([]backup.SnapshotID, 0, len(recorded))
		for id := range recorded {
			ids = append(ids, id)
		}
		unended, err := i.Unended(ctx, ids)
		for _, id := range unended {
			if err == nil {
				err = do(id, recorded[id])
			}
		}
		clear(recorded)
		return err
	}
	for o, err := range store.Records(ctx, s) {
		if err != nil {
			return err
		}
		id, amendment, ok := store.ParseCommitName(o.Name)
		if !ok {
			continue
		}
		if _, known := recorded[id]; !known && len(recorded) == comparedAtOnce {
			if err := compare(); err != nil {
				return err
			}
		}
		recorded[id] = max(recorded[id], amendment)
	}
	return compare()
}

// signedBy is isSigned for a process that may not read the object if r is nil. An object that is
// gone is not signed: a pruner has deleted it since it was listed.
func signedBy(ctx context.Context, s store.Store, name string, r *backup.Repository) (bool, error) {
	if r == nil {
		return true, nil
	}
	signed, err := isSigned(ctx, s, name, r)
	if errors.Is(err, backup.ErrNotFound) {
		return false, nil
	}
	return signed, err
}
