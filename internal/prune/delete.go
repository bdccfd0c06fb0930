package prune

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// delete deletes the objects of packs, and then the packs. Packs whose objects are locked remain to
// be deleted.
func (p *pass) delete(ctx context.Context, packs []int) error {
	var names []string
	unlocked := make([]int, 0, len(packs))
	shared := p.shared()
	for _, i := range packs {
		switch k := &p.packs[i]; {
		case shared[k.Object]: // only its row goes
		case k.locked:
			p.staysLocked(k)
			continue
		default:
			names = append(names, store.PackName(k.Snapshot, k.Object))
		}
		unlocked = append(unlocked, i)
	}
	if len(unlocked) == 0 {
		return nil
	}
	if len(names) == 0 {
		return p.drop(ctx, unlocked, nil)
	}
	needed, err := p.tendParity(ctx)
	if err != nil {
		return err
	}
	if names, unlocked = p.hold(names, unlocked, needed); len(unlocked) == 0 {
		return nil
	}
	if p.BeforeDelete != nil {
		if err := p.BeforeDelete(ctx); err != nil {
			return err
		}
		p.announced = true
	}
	slices.Sort(names)
	refused := map[string]bool{}
	for group := range slices.Chunk(slices.Compact(names), objectsAtOnce) {
		p.step("deleting packs")
		err := p.Store.Delete(ctx, group...)
		if locked, ok := errors.AsType[*store.LockedError](err); ok {
			for _, name := range locked.Names {
				refused[name] = true
			}
		} else if err != nil {
			return err
		}
	}
	return p.drop(ctx, unlocked, refused)
}

// hold leaves out the packs whose objects a parity group needs.
func (p *pass) hold(names []string, packs []int, needed map[index.StoredObject]bool) ([]string, []int) {
	held := map[string]bool{}
	packs = slices.DeleteFunc(packs, func(i int) bool {
		k := &p.packs[i]
		name := store.PackName(k.Snapshot, k.Object)
		if !needed[k.StoredObject()] || !slices.Contains(names, name) {
			return false
		}
		held[name] = true
		p.incomplete = true
		p.result.Parity.Held++
		p.uncount(k)
		return true
	})
	return slices.DeleteFunc(names, func(name string) bool { return held[name] }), packs
}

// uncount takes back that a pack is counted as deleted.
func (p *pass) uncount(k *packState) {
	if k.counted {
		p.result.Packs, p.result.Bytes, p.result.Chunks = p.result.Packs-1, p.result.Bytes-k.Bytes, p.result.Chunks-k.Chunks
	}
}

// shared returns the objects that have a pack which is not to be deleted. Such a pack has replaced
// another one of the same object.
func (p *pass) shared() map[backup.PackID]bool {
	shared := maps.Clone(p.stays)
	if shared == nil {
		shared = map[backup.PackID]bool{}
	}
	maps.Copy(shared, p.lost)
	for i := range p.packs {
		if !p.packs[i].Deleting {
			shared[p.packs[i].Object] = true
		}
	}
	return shared
}

// drop deletes the rows of packs whose objects were deleted. refused are the names of those that
// the store has kept, because they are locked.
func (p *pass) drop(ctx context.Context, packs []int, refused map[string]bool) error {
	p.step("removing deleted packs from the index")
	var dropped []int
	for _, i := range packs {
		k := &p.packs[i]
		switch gone := !refused[store.PackName(k.Snapshot, k.Object)]; {
		case !gone:
			p.staysLocked(k)
			p.uncount(k)
			continue
		case !k.counted && !k.LockedUntil.IsZero() && !k.locked: // it has waited for the end of its lock
			p.result.Packs++
			p.result.Bytes += k.Bytes
		}
		dropped = append(dropped, i)
	}
	if len(dropped) == 0 {
		return nil
	}
	rows := p.rowsOf(dropped)
	for digit := range 256 {
		if err := p.Index.DropPlaces(ctx, rows, byte(digit)); err != nil {
			return err
		}
	}
	if err := p.Index.Gone(ctx, p.rowsOf(slices.DeleteFunc(dropped, p.isPlan))); err != nil {
		return err
	}
	_, err := p.Index.DropPacks(ctx, rows)
	return err
}

// isPlan reports whether a row names an object that was to be written. A pruner that was paused may
// still write it, so it is deleted again while the row is there.
func (p *pass) isPlan(i int) bool { return p.packs[i].Bytes == 0 }
