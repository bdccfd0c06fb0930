package prune

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A LostIndex is what Returned needs of the index.
type LostIndex interface {
	LostPacks(ctx context.Context) ([]index.RecoveredPack, error)
}

// readAtOnce is how many packs Returned reads at the same time.
const readAtOnce = 8

// Returned returns those of the packs that Lose has dropped that the store has again: it may only
// have failed to show them. The other ones are missing.
func Returned(ctx context.Context, idx LostIndex, s store.Store, repository backup.RepositoryID) (returned, missing []index.RecoveredPack, err error) {
	lost, err := idx.LostPacks(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(readAtOnce)
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

// isThere reports whether the store has a pack, as far as its header and its trailer show or, if
// its checksums are known, all but its frames. A check and a scrub prove these.
func isThere(ctx context.Context, s store.Store, repository backup.RepositoryID, p *index.RecoveredPack) (bool, error) {
	name, sealed := store.PackName(p.Snapshot, p.Object), cmp.Or(p.Sealed, p.Pack)
	bytes, err := s.Stat(ctx, name)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		return false, nil
	case err != nil || bytes < p.Offset+p.Bytes || p.Bytes > pack.MaxBytes:
		return false, err
	}
	if len(p.Sums) == 0 {
		err = pack.Inspect(ctx, s, pack.Place{Object: name, Offset: p.Offset, Bytes: p.Bytes}, repository, sealed)
	} else {
		var data []byte
		if data, err = s.GetRange(ctx, nil, name, p.Offset, p.Bytes); err == nil {
			_, err = pack.Prove(data, repository, sealed, p.FrameBytes, p.Sums)
		}
	}
	if isOfObject(err) {
		return false, nil
	}
	return err == nil, err
}

// A TakeBackIndex is what TakeBack needs of the index.
type TakeBackIndex interface {
	Index
	LostIndex
	Locate(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error)
	RecoverPacks(ctx context.Context, packs []index.RecoveredPack) error
	TakeBack(ctx context.Context, packs []index.RecoveredPack) ([]index.RecoveredPack, error)
}

// A TakenBack is what TakeBack has found.
type TakenBack struct {
	Packs   int   // that are registered again
	Bytes   int64 // of these
	Waiting int   // that the store has, and that can be registered when the running snapshots have ended
	// Useless are those that the store has, and whose content other packs have, according to the
	// index. Missing are those that the store does not have.
	Useless, Missing []index.RecoveredPack
}

// TakeBack registers the packs again that Returned finds, as far as they have content that no other
// pack has. It fails with ErrBusy while another process prunes.
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
		back, useless, err := withoutPlace(ctx, idx, returned)
		if err != nil {
			return err
		}
		taken, err := idx.TakeBack(ctx, back)
		if err != nil {
			return err
		}
		t.add(taken)
		t.Waiting, t.Useless = len(back)-len(taken), useless
		return nil
	})
	return t, err
}

func (t *TakenBack) add(packs []index.RecoveredPack) {
	t.Packs += len(packs)
	for i := range packs {
		t.Bytes += packs[i].Bytes
	}
}

// locateAtOnce is how many chunks are looked up at a time.
const locateAtOnce = 1000

// withoutPlace returns the packs that have a chunk which neither a pack of the index nor an earlier
// one of them has, and the others. Packs that are condemned do not count.
func withoutPlace(ctx context.Context, idx TakeBackIndex, packs []index.RecoveredPack) (without, others []index.RecoveredPack, err error) {
	placed := map[backup.ChunkID]bool{}
	for i := range packs {
		p := &packs[i]
		lacks := false
		for part := range slices.Chunk(p.Chunks, locateAtOnce) {
			ids := make([]backup.ChunkID, len(part))
			for n := range part {
				ids[n] = part[n].ID
			}
			at, err := idx.Locate(ctx, ids)
			if err != nil {
				return nil, nil, err
			}
			for n := range ids {
				if at[n] == (index.Location{}) && !placed[ids[n]] {
					placed[ids[n]], lacks = true, true
				}
			}
		}
		if lacks {
			without = append(without, *p)
		} else {
			others = append(others, *p)
		}
	}
	return without, others, nil
}

// TakeBackOrphans opens the packs of ended snapshots that the index does not name, and registers
// them, as a rebuild does. A repair or a rebuild may have been shown a store without them, and
// noted nothing. The next prune deletes those that nothing needs. It fails with ErrBusy while
// another process prunes.
func TakeBackOrphans(ctx context.Context, idx TakeBackIndex, o Options, repository backup.RepositoryID, opener *seal.Opener) (t TakenBack, err error) {
	o.Index = idx
	p := &pass{Options: o}
	s := &section{pass: p}
	err = p.lead(ctx, func(ctx context.Context) error {
		p.step("looking for packs that the index does not name")
		return s.eachOrphanPack(ctx, func(orphan stored) error {
			packs, err := ReadObject(ctx, s.Store, orphan.StoredObject, orphan.SizeBytes, repository, opener)
			if isOfObject(err) {
				return nil
			}
			if err != nil {
				return err
			}
			t.add(packs)
			return idx.RecoverPacks(ctx, packs)
		})
	})
	return t, err
}

// Orphans counts the objects of packs of ended snapshots that the index does not name, and whose
// headers can be read.
func Orphans(ctx context.Context, idx Index, s store.Store) (n int, err error) {
	orphans := &section{pass: &pass{Options: Options{Index: idx, Store: s}}}
	err = orphans.eachOrphanPack(ctx, func(o stored) error {
		// Unlike a sweep, a repair needs no proof that an object is no copy made by compaction.
		_, err := pack.ReadID(ctx, s, o.Name, o.SizeBytes)
		if errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
			return nil
		}
		n++
		return err
	})
	return n, err
}

// eachOrphanPack calls do with the objects of packs that are orphans according to the index.
func (s *section) eachOrphanPack(ctx context.Context, do func(stored) error) error {
	for page, err := range pages(s.Store.List(ctx, store.PacksPrefix)) {
		if err != nil {
			return err
		}
		var objects []stored
		for _, o := range page {
			if parsed, ok := parse(o); ok && parsed.Snapshot != (backup.SnapshotID{}) {
				objects = append(objects, parsed)
			}
		}
		orphans, _, err := s.orphans(ctx, index.Term{}, objects)
		if err != nil {
			return err
		}
		for _, o := range orphans {
			if err := do(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadObject reads the tables of an object's packs, as the index registers them. A pack of an
// object that has another id was thinned or joined with others: nothing may rely on it as it was,
// so it gets a new id.
func ReadObject(ctx context.Context, s pack.Ranger, o index.StoredObject, bytes int64, repository backup.RepositoryID, opener *seal.Opener) ([]index.RecoveredPack, error) {
	opened, err := pack.OpenObject(ctx, s, store.PackName(o.Snapshot, o.ID), bytes, repository, opener)
	if err != nil {
		return nil, err
	}
	packs := make([]index.RecoveredPack, len(opened))
	for i := range opened {
		p := &opened[i]
		packs[i] = index.RecoveredPack{
			Snapshot: o.Snapshot, Object: o.ID,
			NewPack: index.NewPack{Pack: p.ID, Offset: p.Offset, Bytes: p.Bytes, FrameBytes: frameBytes(p.Reader), Chunks: placesIn(p.Reader)},
		}
		if len(opened) > 1 || p.ID != o.ID {
			packs[i].Sealed, packs[i].Pack = p.ID, backup.NewPackID()
		}
	}
	return packs, nil
}

func frameBytes(r *pack.Reader) []uint32 {
	frames := r.Frames()
	lengths := make([]uint32, len(frames))
	for i := range frames {
		if !frames[i].Removed {
			lengths[i] = uint32(frames[i].SealedLength)
		}
	}
	return lengths
}

// placesIn returns the places of the chunks that a pack has, without those in removed frames.
func placesIn(r *pack.Reader) []backup.ChunkPlace {
	frames := r.Frames()
	places := make([]backup.ChunkPlace, 0, len(r.Chunks()))
	for _, c := range r.Chunks() {
		if !frames[c.Frame].Removed {
			places = append(places, backup.ChunkPlace{ID: c.Hash.ID(), Frame: c.Frame, Offset: c.Offset, Length: c.Length})
		}
	}
	return places
}
