package rebuild

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// An IncompleteError is why Run changed nothing: snapshots whose commit records the store does not
// show, though it has segments of them.
type IncompleteError struct{ Snapshots []Lost }

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("the store has segments of %d snapshots, and no commit records of them that can be used", len(e.Snapshots))
}

// ErrNoRecord is why a snapshot is lost that has a segment and no record.
var ErrNoRecord = fmt.Errorf("the store has a segment of it and no commit record that can be used: it was not committed, or the store does not show its record: %w", backup.ErrNotFound)

// checkSegments looks for segments of snapshots that have no usable record, and that the index does
// not know to have ended. A record is put after the segment, and deleted after it. So such a
// snapshot was being committed, or was being copied to a second store, or its record is lost. In
// the last case, a prune would delete what only it has.
func (r *rebuilding) checkSegments(ctx context.Context) error {
	parts := map[backup.SnapshotID][]string{}
	for o, err := range r.Store.List(ctx, store.SegmentsPrefix) {
		if err != nil {
			return err
		}
		id, _, _, ok := store.ParseSegmentName(o.Name)
		if !ok || store.IsTest(o.Name) || r.records[id] != nil || r.forgotten[id] {
			continue
		}
		if len(parts[id]) < partsTried {
			parts[id] = append(parts[id], o.Name)
		}
	}
	unended, err := r.Index.Unended(ctx, slices.Collect(maps.Keys(parts)))
	if err != nil {
		return err
	}
	var found []Lost
	for _, id := range unended {
		h, err := r.openAny(ctx, parts[id])
		if err != nil {
			return err
		}
		if h == nil {
			continue
		}
		key, err := backup.ParseShardKey(h.Snapshot.ShardKey)
		if err != nil {
			return err
		}
		found = append(found, Lost{id, h.Snapshot.Filer, h.Snapshot.Shard, key, h.Snapshot.Number, h.Snapshot.Started, ErrNoRecord})
	}
	slices.SortFunc(found, func(a, b Lost) int {
		return cmp.Or(slices.Compare(a.Key[:], b.Key[:]), cmp.Compare(a.Number, b.Number))
	})
	if len(found) > 0 && !r.AcceptLoss {
		return &IncompleteError{found}
	}
	r.result.Lost = append(r.result.Lost, found...)
	return nil
}

// partsTried is how many parts of a segment are tried.
const partsTried = 16

// openAny returns the header of the first of these parts that can be used; nil: none can. What the
// repository has not signed does not count.
func (r *rebuilding) openAny(ctx context.Context, names []string) (*journal.SegmentHeader, error) {
	for _, name := range names {
		data, err := r.Store.Get(ctx, name, pack.MaxBytes)
		if err == nil {
			id, attempt, part, _ := store.ParseSegmentName(name)
			var opened *journal.SegmentPart
			if opened, err = journal.OpenSegment(data, id, attempt, part, r.Trust); err == nil {
				return &opened.Header, nil
			}
		}
		if !usable(err) {
			return nil, err
		}
	}
	return nil, nil
}
