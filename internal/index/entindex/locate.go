package entindex

import (
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Locate implements index.Dedup.
func (x *Index) Locate(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	return x.locate(ctx, ids, false)
}

// LocateReadable implements index.Catalog.
func (x *Index) LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	return x.locate(ctx, ids, true)
}

// locate returns places of chunks: in a live pack if there is one, else, if condemned is set, in a
// condemned pack.
func (x *Index) locate(ctx context.Context, ids []backup.ChunkID, condemned bool) ([]index.Location, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	l, err := x.look(ctx, ids, condemned)
	// Between two queries, a pack may be moved and deleted: its chunks are elsewhere then.
	for tries := 0; err == nil && l.lost() && tries < 2; tries++ {
		l, err = x.look(ctx, ids, condemned)
	}
	if err != nil {
		return nil, err
	}
	locations := make([]index.Location, len(ids))
	for i, id := range ids {
		locations[i] = l.found[id]
	}
	return locations, nil
}

// look makes the queries of locate once.
func (x *Index) look(ctx context.Context, ids []backup.ChunkID, condemned bool) (*location, error) {
	rows, err := x.Backend.Places(ctx, sortedIDs(ids), condemned)
	if err != nil {
		return nil, err
	}
	l := &location{x: x, condemned: condemned, packs: map[int64]*PackRow{}, found: make(map[backup.ChunkID]index.Location, len(rows))}
	elsewhere, err := l.add(ctx, rows)
	if err != nil || len(elsewhere) == 0 {
		return l, err
	}
	if rows, err = x.Backend.Copies(ctx, elsewhere); err == nil {
		_, err = l.add(ctx, rows)
	}
	return l, err
}

// lost reports whether one of the packs did not exist any more when it was looked up.
func (l *location) lost() bool {
	for _, pack := range l.packs {
		if pack == nil {
			return true
		}
	}
	return false
}

func sortedIDs(ids []backup.ChunkID) []backup.ChunkID {
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, func(a, b backup.ChunkID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(sorted)
}

// LocateCopies implements index.Dedup.
func (x *Index) LocateCopies(ctx context.Context, ids []backup.ChunkID) ([][]index.Location, error) {
	return x.locateCopies(ctx, ids, false)
}

// LocateReadableCopies implements index.Catalog.
func (x *Index) LocateReadableCopies(ctx context.Context, ids []backup.ChunkID) ([][]index.Location, error) {
	return x.locateCopies(ctx, ids, true)
}

// locateCopies returns all places of chunks, those in live packs first. Places in condemned packs
// are included only if condemned is set.
func (x *Index) locateCopies(ctx context.Context, ids []backup.ChunkID, condemned bool) ([][]index.Location, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	sorted := sortedIDs(ids)
	rows, err := x.Backend.Places(ctx, sorted, true)
	if err != nil {
		return nil, err
	}
	copies, err := x.Backend.Copies(ctx, sorted)
	if err != nil {
		return nil, err
	}
	rows = append(rows, copies...)
	l := location{x: x, packs: map[int64]*PackRow{}}
	if err := l.addPacks(ctx, rows); err != nil {
		return nil, err
	}
	living, others := map[backup.ChunkID][]index.Location{}, map[backup.ChunkID][]index.Location{}
	for i := range rows {
		switch pack := l.packs[rows[i].Pack]; {
		case pack == nil:
		case !pack.Condemned:
			living[rows[i].ID] = append(living[rows[i].ID], rows[i].in(pack))
		case condemned:
			others[rows[i].ID] = append(others[rows[i].ID], rows[i].in(pack))
		}
	}
	locations := make([][]index.Location, len(ids))
	for i, id := range ids {
		locations[i] = slices.Concat(living[id], others[id])
	}
	return locations, nil
}

// in returns the row as a Location, for a place in pack.
func (r *ChunkRow) in(pack *PackRow) index.Location {
	return index.Location{PackPlace: pack.PackPlace, Frame: r.Frame, Start: r.Offset, Length: r.Length}
}

// A location is the state of one call of locate.
type location struct {
	x         *Index
	condemned bool               // places in condemned packs are acceptable
	packs     map[int64]*PackRow // by id; nil: the pack no longer exists
	found     map[backup.ChunkID]index.Location
}

// add takes the places that are better than the ones found before. It returns the chunks of places
// whose packs are not live: other packs may have them.
func (l *location) add(ctx context.Context, rows []ChunkRow) (elsewhere []backup.ChunkID, err error) {
	if err := l.addPacks(ctx, rows); err != nil {
		return nil, err
	}
	for i := range rows {
		row := &rows[i]
		pack := l.packs[row.Pack]
		lives := pack != nil && !pack.Condemned
		if !lives {
			elsewhere = append(elsewhere, row.ID)
		}
		if lives || pack != nil && l.condemned && l.found[row.ID] == (index.Location{}) {
			l.found[row.ID] = row.in(pack)
		}
	}
	return elsewhere, nil
}

// addPacks reads the packs of places, each once, because many chunks are in few packs.
func (l *location) addPacks(ctx context.Context, rows []ChunkRow) error {
	var wanted []int64
	for i := range rows {
		if _, known := l.packs[rows[i].Pack]; !known {
			l.packs[rows[i].Pack] = nil
			wanted = append(wanted, rows[i].Pack)
		}
	}
	for group := range slices.Chunk(wanted, listLength) {
		packs, err := l.x.Backend.Packs(ctx, group)
		if err != nil {
			return err
		}
		for i := range packs {
			l.packs[packs[i].ID] = &packs[i]
		}
	}
	return nil
}
