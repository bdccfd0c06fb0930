package prune

import (
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
func Returned(ctx context.Context, idx LostIndex, s store.Store) (returned, missing []index.RecoveredPack, err error) {
	lost, err := idx.LostPacks(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(statsAtOnce)
	for i := range lost {
		asking.Go(func() error {
			here, err := isThere(ctx, s, &lost[i])
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

// isThere reports whether the store has the object of a pack, as far as its length and its header
// show.
func isThere(ctx context.Context, s store.Store, p *index.RecoveredPack) (bool, error) {
	name := store.PackName(p.Snapshot, p.Object)
	bytes, err := s.Stat(ctx, name)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		return false, nil
	case err != nil || bytes < p.Offset+p.Bytes:
		return false, err
	case p.Offset > 0:
		return true, nil
	}
	id, err := pack.ReadID(ctx, s, name, bytes)
	if errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
		return false, nil
	}
	return id == p.Pack || id == p.Sealed, err
}

// A TakeBackIndex is what TakeBack needs of the index.
type TakeBackIndex interface {
	Index
	LostIndex
	TakeBack(ctx context.Context, packs []index.RecoveredPack) error
}

// TakeBack registers the packs again that Returned finds, and returns their number and bytes. It
// fails with ErrBusy while another process prunes.
func TakeBack(ctx context.Context, idx TakeBackIndex, o Options) (packs int, bytes int64, err error) {
	o.Index = idx
	p := &pass{Options: o}
	err = p.lead(ctx, func(ctx context.Context) error {
		p.step("looking for lost packs")
		returned, _, err := Returned(ctx, idx, p.Store)
		if err != nil || len(returned) == 0 {
			return err
		}
		for i := range returned {
			bytes += returned[i].Bytes
		}
		packs = len(returned)
		return idx.TakeBack(ctx, returned)
	})
	return packs, bytes, err
}
