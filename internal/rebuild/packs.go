package rebuild

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// An object is an object of packs in the store.
type object struct {
	snapshot backup.SnapshotID
	id       backup.PackID
}

func (o object) name() string { return store.PackName(o.snapshot, o.id) }

// registerPacks registers the packs that the store has and the index has not, and finds those that
// the store has no more: the index knew them before the store was listed. So a pack that is stored
// and registered meanwhile is not taken for one that is gone.
func (r *rebuilding) registerPacks(ctx context.Context) error {
	known := map[object]bool{}
	for p, err := range r.Index.Packs(ctx) {
		if err != nil {
			return err
		}
		known[object{p.Snapshot, p.Object}] = true
	}
	stored := map[object]int64{}
	for o, err := range r.Store.List(ctx, store.PacksPrefix) {
		if err != nil {
			return err
		}
		if snapshot, id, ok := store.ParsePackName(o.Name); ok && snapshot != (backup.SnapshotID{}) { // it is no test object
			stored[object{snapshot, id}] = o.SizeBytes
		}
	}
	for p, err := range r.Index.Packs(ctx) {
		if err != nil {
			return err
		}
		o := object{p.Snapshot, p.Object}
		if _, there := stored[o]; !there && known[o] && !p.Gone {
			r.dropped = append(r.dropped, p.Row)
		}
	}
	var missing []object
	for o := range stored {
		if !known[o] {
			missing = append(missing, o)
		}
	}
	r.progress.AllObjects = len(missing)
	r.Progress(r.progress)
	// Two packs may have the same chunk: the first one in the list provides it.
	slices.SortFunc(missing, func(a, b object) int { return slices.Compare(a.id[:], b.id[:]) })
	return r.register(ctx, missing, stored)
}

// register opens objects, several at a time, and registers their packs one after another.
func (r *rebuilding) register(ctx context.Context, objects []object, bytes map[object]int64) error {
	type result struct {
		of    object
		packs []index.RecoveredPack
		err   error
	}
	results := make(chan result)
	working, ctx := errgroup.WithContext(ctx)
	working.Go(func() error {
		defer close(results)
		opening, ctx := errgroup.WithContext(ctx)
		opening.SetLimit(atOnce)
		for _, o := range objects {
			opening.Go(func() error {
				packs, err := prune.ReadObject(ctx, r.Store, index.StoredObject{Snapshot: o.snapshot, ID: o.id}, bytes[o], r.Trust.Repository, r.Trust.Opener)
				select {
				case results <- result{o, packs, err}:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		}
		return opening.Wait()
	})
	working.Go(func() error {
		var packs []index.RecoveredPack
		places := 0
		for found := range results {
			switch {
			case found.err == nil:
				packs = append(packs, found.packs...)
				for i := range found.packs {
					places += len(found.packs[i].Chunks)
				}
				if places < placesAtOnce {
					break
				}
				if err := r.recoverPacks(ctx, packs); err != nil {
					return err
				}
				packs, places = packs[:0], 0
			case usable(found.err):
				r.damaged(found.of.name(), found.err)
			default:
				return found.err
			}
			r.progress.Objects++
			r.Progress(r.progress)
		}
		return r.recoverPacks(ctx, packs)
	})
	return working.Wait()
}

// placesAtOnce is how many chunks are registered in one transaction, in the order of their ids. The
// more they are, the fewer parts of the index change in each.
const placesAtOnce = 1 << 16

func (r *rebuilding) recoverPacks(ctx context.Context, packs []index.RecoveredPack) error {
	if len(packs) == 0 || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.result.Packs += len(packs)
	return r.Index.RecoverPacks(ctx, packs)
}

// dropPacks deletes the places in packs whose objects are gone, in the way of a prune. Rows remain
// until no batch can rely on them. Most of these packs were pruned. Those that have content which
// snapshots lack are noted, so that a repair can take them back: the store may only not show them.
func (r *rebuilding) dropPacks(ctx context.Context) error {
	rows := r.dropped
	missing, known, err := prune.MissingContent(ctx, r.Index, rows)
	if err != nil {
		return err
	}
	r.result.Lacks, r.result.Gone = len(missing) > 0 || !known, len(rows)
	if len(rows) == 0 {
		return nil
	}
	lost := rows
	if known {
		if lost, err = r.withAny(ctx, rows, missing); err != nil {
			return err
		}
	}
	if err := r.Index.Condemn(ctx, r.term, rows); err != nil {
		return err
	}
	if len(lost) > 0 {
		if err := errors.Join(r.Index.LoseLists(ctx, r.term, lost), r.Index.NoteLost(ctx, r.term, lost)); err != nil {
			return err
		}
	}
	if err := r.Index.Deleting(ctx, r.term, rows); err != nil {
		return err
	}
	for digit := range 256 {
		if err := r.Index.DropPlaces(ctx, rows, byte(digit)); err != nil {
			return err
		}
	}
	if err := r.Index.DropLists(ctx); err != nil {
		return err
	}
	return r.Index.Gone(ctx, rows)
}

// withAny returns the rows of the packs that have one of the chunks.
func (r *rebuilding) withAny(ctx context.Context, rows []int64, chunks map[backup.ChunkID]bool) (with []int64, err error) {
	if len(chunks) == 0 {
		return nil, nil
	}
	found := map[int64]bool{}
	for place, err := range r.Index.Places(ctx, rows) {
		if err != nil {
			return nil, err
		}
		found[place.Pack] = found[place.Pack] || chunks[place.Chunk]
	}
	return slices.DeleteFunc(slices.Clone(rows), func(row int64) bool { return !found[row] }), nil
}
