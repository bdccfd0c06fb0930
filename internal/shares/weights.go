package shares

import (
	"context"
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A Locator finds the places of chunks. index.Index implements it.
type Locator interface {
	Index
	LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error)
}

// Weights finds out how many bytes chunks take in one place of the store. It may be used
// concurrently, except for AddLists.
type Weights struct {
	index Locator
	packs *packs
	lists map[backup.ChunkID]int64 // what AddLists has weighed
}

// locatedTogether is the number of chunks that are looked up together.
const locatedTogether = 5000

// Unknown is the weight of a chunk that is in no pack, or of a list whose contents are not known.
const Unknown = -1

// ReadWeights reads the packs that are in the store.
func ReadWeights(ctx context.Context, x Locator) (*Weights, error) {
	p, err := readPacks(ctx, x)
	if err != nil {
		return nil, err
	}
	return &Weights{index: x, packs: p, lists: map[backup.ChunkID]int64{}}, nil
}

// Of returns the bytes of each chunk, or Unknown: its part of its frame, by plaintext.
func (w *Weights) Of(ctx context.Context, ids []backup.ChunkID) ([]int64, error) {
	bytes := make([]int64, 0, len(ids))
	for len(ids) > 0 {
		some := ids[:min(len(ids), locatedTogether)]
		ids = ids[len(some):]
		places, err := w.index.LocateReadable(ctx, some)
		if err != nil {
			return nil, err
		}
		for n := range places {
			bytes = append(bytes, w.at(&places[n]))
		}
	}
	return bytes, nil
}

// at returns the bytes of a chunk in a place.
func (w *Weights) at(l *index.Location) int64 {
	row, ok := w.packs.ids[l.Pack]
	if !ok {
		return Unknown
	}
	f := w.packs.frame(&index.ChunkLocation{PlaceOf: index.PlaceOf{Pack: row, Frame: l.Frame}})
	if f == nil || f.plain == 0 {
		return Unknown
	}
	return int64(math.Round(f.stored * float64(l.Length) / f.plain))
}

// List returns the bytes of a list chunk that was given to AddLists, and of all that it names, or
// Unknown.
func (w *Weights) List(id backup.ChunkID) int64 {
	if bytes, ok := w.lists[id]; ok {
		return bytes
	}
	return Unknown
}

// AddLists weighs list chunks with what they name.
func (w *Weights) AddLists(ctx context.Context, lists map[backup.ChunkID]struct{}) error {
	if len(lists) == 0 {
		return nil
	}
	// Lists of lists are weighed after what they name.
	for more := true; more; {
		more = false
		for list, err := range w.index.ChunkLists(ctx) {
			if err != nil {
				return err
			}
			if _, wanted := lists[list.List]; !wanted || !list.Nested {
				continue
			}
			for _, id := range list.Chunks {
				if _, known := lists[id]; !known {
					lists[id], more = struct{}{}, true
				}
			}
		}
	}
	for more := true; more; {
		weighed, waiting := false, false
		for list, err := range w.index.ChunkLists(ctx) {
			if err != nil {
				return err
			}
			_, known := w.lists[list.List]
			if _, wanted := lists[list.List]; !wanted || known {
				continue
			}
			bytes, ready, err := w.weigh(ctx, &list)
			if err != nil {
				return err
			}
			if ready {
				w.lists[list.List] = bytes
			}
			weighed, waiting = weighed || ready, waiting || !ready
		}
		more = weighed && waiting
	}
	return nil
}

// weigh returns the bytes of a list chunk and of all that it names. It is not ready while lists
// that it names are not weighed.
func (w *Weights) weigh(ctx context.Context, list *backup.ChunkList) (bytes int64, ready bool, err error) {
	parts, err := w.Of(ctx, []backup.ChunkID{list.List})
	if err != nil {
		return 0, false, err
	}
	if list.Nested {
		for _, id := range list.Chunks {
			part, known := w.lists[id]
			if !known {
				return 0, false, nil
			}
			parts = append(parts, part)
		}
	} else {
		named, err := w.Of(ctx, list.Chunks)
		if err != nil {
			return 0, false, err
		}
		parts = append(parts, named...)
	}
	for _, part := range parts {
		if part == Unknown {
			return Unknown, true, nil
		}
		bytes = min(bytes+part, backup.MaxCount)
	}
	return bytes, true, nil
}
