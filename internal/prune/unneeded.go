package prune

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Unneeded is content of packs that no snapshot needs.
type Unneeded struct {
	Packs  int   // that have some
	Chunks int64 // according to the index, counted in each pack that has them
	Bytes  int64 // stored bytes of the frames that have nothing that is needed
	Stored int64 // stored bytes of all packs
	// Deleting are the packs whose deletion has begun, and that the store may still have.
	Deleting int

	packs map[int64]bool // rows
}

// FindUnneeded finds what Purge removes with PurgeOptions.Unneeded.
func FindUnneeded(ctx context.Context, idx Index) (Unneeded, error) {
	p := &pass{Options: Options{Index: idx}}
	p.limitMemory()
	if err := p.load(ctx); err != nil {
		return Unneeded{}, err
	}
	return p.findUnneeded(ctx)
}

// findUnneeded finds the packs that have chunks or frames that no snapshot needs. Packs of running
// snapshots do not count, nor do those that are being deleted. A frame that the index has no place
// in was dropped by a repair.
func (p *pass) findUnneeded(ctx context.Context) (Unneeded, error) {
	found := Unneeded{packs: map[int64]bool{}}
	needed, err := p.Index.Needed(ctx, nil)
	if err != nil {
		return found, err
	}
	total, counts := int64(0), make(map[int64]bool, len(p.packs))
	clear(p.frames)
	for i := range p.packs {
		k := &p.packs[i]
		k.marked, k.unused = 0, 0
		total += k.Chunks
		found.Stored += k.Bytes
		counts[k.Row] = !k.Running && !k.Deleting
		if k.Deleting && !k.Gone {
			found.Deleting++
		}
	}
	for n, parts := 0, p.partsFor(total, setBytes); n < parts; n++ {
		in, live := inPart(n, parts), newSet(total/int64(parts)+total/int64(parts)/16)
		p.step("finding what snapshots need")
		err := p.referencesBy(ctx, newSet(p.lists), nil, needed, func(id *backup.ChunkID) error {
			if in(id) {
				live.add(id)
			}
			return nil
		})
		if err == nil && live.full {
			err = fmt.Errorf("%d bytes of memory do not suffice for what snapshots need: %w", p.MemoryBytes, backup.ErrUnavailable)
		}
		if err != nil {
			return found, err
		}
		p.step("finding packs with content that nothing needs")
		err = p.eachPlace(ctx, nil, func(place index.PlaceOf) {
			switch {
			case !in(&place.Chunk):
			case live.has(&place.Chunk):
				p.mark(place)
			case counts[place.Pack]:
				found.Chunks++
				found.packs[place.Pack] = true
			}
		})
		if err != nil {
			return found, err
		}
	}
	if err := p.measure(ctx); err != nil {
		return found, err
	}
	for i := range p.packs {
		if k := &p.packs[i]; counts[k.Row] && k.unused > 0 {
			found.Bytes += k.unused
			found.packs[k.Row] = true
		}
	}
	found.Packs = len(found.packs)
	return found, nil
}

// unneeded replaces or deletes the objects that have content which nothing needs.
func (u *purge) unneeded(ctx context.Context) error {
	found, err := u.findUnneeded(ctx)
	if err != nil {
		return err
	}
	u.result.Chunks = found.Chunks
	has := map[backup.PackID]bool{}
	for row := range found.packs {
		has[u.packs[u.rows[row]].Object] = true
	}
	if err := u.objects(ctx, has, nil); err != nil {
		return err
	}
	returned, missing, err := Returned(ctx, u.purges, u.Store, u.o.Repository.ID)
	u.leaveLost(returned, missing, func(*index.RecoveredPack) bool { return true })
	return err
}

// proveUnneeded counts what is left that nothing needs.
func (u *purge) proveUnneeded(ctx context.Context) error {
	u.step("looking for what is left")
	u.packs = nil
	if err := u.load(ctx); err != nil {
		return err
	}
	found, err := u.findUnneeded(ctx)
	if err != nil {
		return err
	}
	u.result.Places = max(found.Chunks, int64(found.Packs)) // a dropped frame has no place
	deleting := map[index.StoredObject]bool{}
	for _, o := range u.gone {
		deleting[o] = true
	}
	for i := range u.packs { // an earlier run, or a prune, may have left them, because they are locked
		if k := &u.packs[i]; k.Deleting && !k.Gone {
			deleting[k.StoredObject()] = true
		}
	}
	return u.countPresent(ctx, slices.Collect(maps.Keys(deleting)))
}
