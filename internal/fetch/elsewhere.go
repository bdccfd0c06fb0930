package fetch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A chunk may be in several packs (decision 13): if one of them is gone or damaged, the others are
// tried.

// misses collects the wants that could not be read at their locations.
type misses struct {
	mu    sync.Mutex
	wants []located
}

func (m *misses) add(wants []located, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range wants {
		if w.failed == nil {
			w.failed = err
		}
		m.wants = append(m.wants, w)
	}
}

// elsewhere gives each missed want its next location, and returns the wants, sorted. A want that
// has no further location fails with the error of its first one.
func (f *Fetcher) elsewhere(ctx context.Context, missed []located) ([]located, error) {
	if len(missed) == 0 {
		return nil, nil
	}
	if err := f.findOthers(ctx, missed); err != nil {
		return nil, err
	}
	found := missed[:0]
	for _, w := range missed {
		if len(w.others) == 0 {
			w.Sink.Fail(w.Tag, w.failed)
			continue
		}
		w.at, w.others = w.others[0], w.others[1:]
		found = append(found, w)
	}
	sortPlaces(found)
	return found, nil
}

// findOthers looks up the further locations of wants whose first location has failed.
func (f *Fetcher) findOthers(ctx context.Context, missed []located) error {
	var ids []backup.ChunkID
	for i := range missed {
		if missed[i].others == nil {
			ids = append(ids, missed[i].Chunk)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	places, err := f.o.Index.LocateReadableCopies(ctx, ids)
	if err != nil {
		return fmt.Errorf("locate copies of %d chunks: %w", len(ids), err)
	}
	if len(places) != len(ids) {
		return fmt.Errorf("located copies of %d of %d chunks: %w", len(places), len(ids), backup.ErrCorrupt)
	}
	for i := range missed {
		w := &missed[i]
		if w.others != nil {
			continue
		}
		w.others = slices.DeleteFunc(places[0], func(at index.Location) bool { return at == w.at || int64(at.Length) != w.Length })
		places = places[1:]
		if w.others == nil {
			w.others = []index.Location{} // the search is done
		}
	}
	return nil
}
