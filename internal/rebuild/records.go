package rebuild

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
)

// atOnce is how many objects are opened concurrently.
const atOnce = 8

// A record is the valid commit record of a snapshot.
type record struct {
	backup.Snapshot
	amendment   int
	amendedBase backup.SnapshotID
	base        backup.SnapshotID // on whose pages the segment is based; zero: on none
	problems    bool              // the record has some
}

// usable reports whether an error concerns one object only, so that the rebuild continues without
// it.
func usable(err error) bool {
	return errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrInvalid)
}

// readRecords opens the valid record of each snapshot: that with the greatest amendment.
func (r *rebuilding) readRecords(ctx context.Context) error {
	var err error
	if r.sequences, err = repo.Sequences(ctx, r.Store); err != nil {
		return err
	}
	r.records, r.byShard = make(map[backup.SnapshotID]*record, len(r.sequences)), map[backup.ShardKey][]*record{}
	var guard sync.Mutex
	opening, opened := errgroup.WithContext(ctx)
	opening.SetLimit(atOnce)
	for id, sequences := range r.sequences {
		amendment := sequences[len(sequences)-1]
		opening.Go(func() error {
			found, err := r.openRecord(opened, id, amendment)
			guard.Lock()
			defer guard.Unlock()
			switch {
			case err == nil:
				r.records[id] = found
			case usable(err):
				r.damaged(store.AmendedName(id, amendment), err)
				r.unusable[id] = true
			default:
				return err
			}
			return nil
		})
	}
	if err := opening.Wait(); err != nil {
		return err
	}
	for id := range r.records {
		key := r.records[id].Shard.Key
		r.byShard[key] = append(r.byShard[key], r.records[id])
	}
	for key := range r.byShard {
		slices.SortFunc(r.byShard[key], func(a, b *record) int {
			return cmp.Or(cmp.Compare(a.Number, b.Number), slices.Compare(a.ID[:], b.ID[:]))
		})
	}
	r.progress.AllSnapshots = len(r.records)
	return nil
}

// olderRecords returns the records of a shard with an older one of each snapshot before the number
// that has one which can be used. It returns nil if there is none.
func (r *rebuilding) olderRecords(ctx context.Context, records []*record, before backup.SnapshotNumber) ([]*record, error) {
	older, changed := slices.Clone(records), false
	for i, now := range records {
		at := slices.Index(r.sequences[now.ID], now.amendment)
		if now.Number >= before || at <= 0 {
			continue
		}
		found, err := r.openRecord(ctx, now.ID, r.sequences[now.ID][at-1])
		if usable(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		older[i], changed = found, true
	}
	if !changed {
		return nil, nil
	}
	return older, nil
}

func (r *rebuilding) openRecord(ctx context.Context, id backup.SnapshotID, amendment int) (*record, error) {
	commit, _, err := r.getRecord(ctx, id, amendment)
	if err != nil {
		return nil, err
	}
	s, err := commit.Describe()
	if err != nil {
		return nil, err
	}
	found := &record{Snapshot: s, amendment: amendment, base: s.BaseID, problems: commit.Problems > 0}
	if amendment > 0 {
		found.base = backup.SnapshotID{}
		if commit.BasedOn != nil {
			if found.base, err = backup.ParseSnapshotID(commit.BasedOn.ID); err != nil {
				return nil, err
			}
		}
		found.amendedBase = found.base
	}
	if s.Segment.Checkpoint {
		found.base = backup.SnapshotID{}
	}
	return found, nil
}

func (r *rebuilding) getRecord(ctx context.Context, id backup.SnapshotID, amendment int) (journal.Commit, problems, error) {
	data, err := r.Store.Get(ctx, store.AmendedName(id, amendment), pack.MaxBytes)
	if err != nil {
		return journal.Commit{}, nil, err
	}
	return journal.OpenAmended(data, id, amendment, r.Trust)
}

// readCatalog opens the newest catalog that can be used.
func (r *rebuilding) readCatalog(ctx context.Context) error {
	sequences, err := repo.Catalogs(ctx, r.Store)
	if err != nil {
		return err
	}
	r.catalog = &journal.Catalog{}
	for _, sequence := range slices.Backward(sequences) {
		name := store.CatalogName(sequence)
		data, err := r.Store.Get(ctx, name, pack.MaxBytes)
		var h journal.CatalogHeader
		var c *journal.Catalog
		if err == nil {
			h, c, err = journal.OpenCatalog(data, sequence, r.Trust)
		}
		if err == nil {
			r.catalog, r.result.Catalog, r.result.Sequence = c, h.Written, sequence
			break
		}
		if !usable(err) {
			return err
		}
		r.damaged(name, err)
	}
	r.forgotten, r.bad = map[backup.SnapshotID]bool{}, map[backup.SnapshotID]string{}
	for _, id := range r.catalog.Forgotten {
		r.forgotten[id] = true
	}
	for _, b := range r.catalog.Bad {
		if id, err := backup.ParseSnapshotID(b.Snapshot); err == nil {
			r.bad[id] = b.Reason
		}
	}
	return nil
}

// keys returns the shards that have records, in a fixed order.
func (r *rebuilding) keys() []backup.ShardKey {
	return slices.SortedFunc(maps.Keys(r.byShard), func(a, b backup.ShardKey) int { return slices.Compare(a[:], b[:]) })
}
