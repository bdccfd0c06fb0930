package prune

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A LostIndex is what Returned needs of the index.
type LostIndex interface {
	LostPacks(ctx context.Context) ([]index.RecoveredPack, error)
}

// statsAtOnce is how many objects Returned asks for at the same time.
const statsAtOnce = 32

// Returned returns those of the packs that Lose has dropped that the store has again: it may only
// have failed to show them. The other ones are missing.
func Returned(ctx context.Context, idx LostIndex, s store.Store, repository backup.RepositoryID) (returned, missing []index.RecoveredPack, err error) {
	lost, err := idx.LostPacks(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(statsAtOnce)
	for i := range lost {
		asking.Go(func() error {
			here, err := isThere(ctx, s, repository, &lost[i])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if here {
				returned = append(returned, lost[i])
			} else {
				missing = append(missing, lost[i])
			}
			return nil
		})
	}
	return returned, missing, asking.Wait()
}

// isThere reports whether the store has a pack, as far as its header and its trailer show. A scrub
// compares the rest with the checksums that are noted.
func isThere(ctx context.Context, s store.Store, repository backup.RepositoryID, p *index.RecoveredPack) (bool, error) {
	name := store.PackName(p.Snapshot, p.Object)
	bytes, err := s.Stat(ctx, name)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		return false, nil
	case err != nil || bytes < p.Offset+p.Bytes:
		return false, err
	}
	err = pack.Inspect(ctx, s, pack.Place{Object: name, Offset: p.Offset, Bytes: p.Bytes}, repository, cmp.Or(p.Sealed, p.Pack))
	if errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
		return false, nil
	}
	return err == nil, err
}

// A TakeBackIndex is what TakeBack needs of the index.
type TakeBackIndex interface {
	Index
	LostIndex
	TakeBack(ctx context.Context, packs []index.RecoveredPack) ([]index.RecoveredPack, error)
}

// A TakenBack is what TakeBack has found.
type TakenBack struct {
	Packs   int   // that are registered again
	Bytes   int64 // of these
	Waiting int   // that the store has, and that can be registered when the running snapshots have ended
	Missing []index.RecoveredPack
}

// TakeBack registers the packs again that Returned finds. It fails with ErrBusy while another
// process prunes.
func TakeBack(ctx context.Context, idx TakeBackIndex, o Options, repository backup.RepositoryID) (t TakenBack, err error) {
	o.Index = idx
	p := &pass{Options: o}
	err = p.lead(ctx, func(ctx context.Context) error {
		p.step("looking for lost packs")
		returned, missing, err := Returned(ctx, idx, p.Store, repository)
		t.Missing = missing
		if err != nil || len(returned) == 0 {
			return err
		}
		taken, err := idx.TakeBack(ctx, returned)
		for i := range taken {
			t.Bytes += taken[i].Bytes
		}
		t.Packs, t.Waiting = len(taken), len(returned)-len(taken)
		return err
	})
	return t, err
}
