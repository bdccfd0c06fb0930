package prune

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

var errMissing = errors.New("content is missing")

// lacksContent reports whether snapshots need content that the index has no place of, as far as it
// knows. It is true, too, if memory does not suffice to find out. It is asked once in a pass.
func (p *pass) lacksContent(ctx context.Context) (bool, error) {
	if p.lacks != nil {
		return *p.lacks, nil
	}
	p.step("looking for content that is missing")
	lacks, err := p.findMissing(ctx, nil)
	if err == nil {
		p.lacks = &lacks
	}
	return lacks, err
}

func (p *pass) findMissing(ctx context.Context, without []int64) (bool, error) {
	needed, err := p.Index.Needed(ctx, nil)
	if err != nil {
		return false, err
	}
	total, ending := int64(0), make(map[int64]bool, len(without)) // whose places do not count
	for _, row := range without {
		ending[row] = true
	}
	for k, err := range p.Index.Packs(ctx) {
		if err != nil {
			return false, err
		}
		total += k.Chunks
		if k.Deleting {
			ending[k.Row] = true
		}
	}
	if err := p.countLists(ctx); err != nil {
		return false, err
	}
	parts := 1
	for setBytes(total/int64(parts)) > p.MemoryBytes && parts < 256 {
		parts *= 2
	}
	for n := range parts {
		in := func(id *backup.ChunkID) bool { return int(id[0])*parts>>8 == n }
		placed := newSet(total/int64(parts) + total/int64(parts)/16)
		err := p.eachPlace(ctx, nil, func(place index.PlaceOf) {
			if in(&place.Chunk) && !ending[place.Pack] {
				placed.add(&place.Chunk)
			}
		})
		if err != nil || placed.full {
			return placed.full, err
		}
		err = p.references(ctx, nil, needed, func(id *backup.ChunkID) error {
			if in(id) && !placed.has(id) {
				return errMissing
			}
			return nil
		})
		if errors.Is(err, errMissing) || errors.Is(err, errUnknownLists) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// LacksContent reports whether snapshots need content that the index has no place of, but for packs
// in rows, or in packs that are being deleted. It is true, too, if memory does not suffice to find
// out.
func LacksContent(ctx context.Context, idx Index, rows []int64) (bool, error) {
	p := &pass{Options: Options{Index: idx, MemoryBytes: defaultMemory}}
	return p.findMissing(ctx, rows)
}
