package prune

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// lacksContent reports whether snapshots need content that no pack of the index has. It is asked
// once in a pass. It is true, too, if that is not known: memory does not suffice, or the index does
// not know what a list refers to.
func (p *pass) lacksContent(ctx context.Context) (bool, error) {
	if p.lacks != nil {
		return *p.lacks, nil
	}
	missing, known, err := p.findMissing(ctx, nil, 1)
	if err != nil {
		return false, err
	}
	lacks := len(missing) > 0 || !known
	p.lacks = &lacks
	return lacks, nil
}

var errEnough = errors.New("enough content is missing")

// findMissing returns chunks that snapshots need and that no pack of the index has, but for packs
// in the rows without, and packs that are being deleted: limit of them at most. If known is false,
// there may be others.
func (p *pass) findMissing(ctx context.Context, without []int64, limit int) (missing map[backup.ChunkID]bool, known bool, err error) {
	needed, err := p.Index.Needed(ctx, nil)
	if err != nil {
		return nil, false, err
	}
	total, ending := int64(0), make(map[int64]bool, len(without)) // whose places do not count
	for _, row := range without {
		ending[row] = true
	}
	for k, err := range p.Index.Packs(ctx) {
		if err != nil {
			return nil, false, err
		}
		total += k.Chunks
		if k.Deleting {
			ending[k.Row] = true
		}
	}
	if err := p.countLists(ctx); err != nil {
		return nil, false, err
	}
	parts := p.partsFor(total, setBytes)
	missing = map[backup.ChunkID]bool{}
	for n := range parts {
		in := inPart(n, parts)
		placed := newSet(total/int64(parts) + total/int64(parts)/16)
		p.step("looking for content that is missing: places")
		err := p.eachPlace(ctx, nil, func(place index.PlaceOf) {
			if in(&place.Chunk) && !ending[place.Pack] {
				placed.add(&place.Chunk)
			}
		})
		if err != nil || placed.full {
			return missing, false, err
		}
		p.step("looking for content that is missing: pages")
		err = p.referencesBy(ctx, newSet(p.lists), nil, needed, func(id *backup.ChunkID) error {
			if in(id) && !placed.has(id) {
				missing[*id] = true
				if len(missing) == limit {
					return errEnough
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, errEnough), errors.Is(err, errUnknownLists):
			return missing, false, nil
		case err != nil:
			return nil, false, err
		}
	}
	return missing, true, nil
}

// maxMissing bounds the missing chunks that MissingContent returns.
const maxMissing = 1 << 20

// MissingContent returns the chunks that snapshots need and that no pack of the index has, but for
// packs in rows, and packs that are being deleted. If known is false, there may be others.
func MissingContent(ctx context.Context, idx Index, rows []int64) (missing map[backup.ChunkID]bool, known bool, err error) {
	p := &pass{Options: Options{Index: idx, MemoryBytes: defaultMemory}}
	return p.findMissing(ctx, rows, maxMissing)
}

// LacksContent reports whether snapshots need content that no pack of the index has, or whether
// that is not known.
func LacksContent(ctx context.Context, idx Index) (bool, error) {
	p := &pass{Options: Options{Index: idx, MemoryBytes: defaultMemory}}
	return p.lacksContent(ctx)
}
