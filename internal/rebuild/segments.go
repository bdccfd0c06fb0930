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
// show, though it has segments of them, and those that are based on them.
type IncompleteError struct{ Snapshots []Lost }

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("the store does not have the commit records of some of %d snapshots", len(e.Snapshots))
}

// ErrNoRecord is why a snapshot is lost that has a segment and no record.
var ErrNoRecord = fmt.Errorf("the store has a segment of it and no commit record that can be used: it was not committed, or the store does not show its record: %w", backup.ErrNotFound)

// checkSegments looks for segments of snapshots that have no usable record, and that the index does
// not know to have ended. A record is put after the segment, and deleted after it. So such a
// snapshot was being committed, or was being copied to a second store, or its record is lost. In
// the last case, a prune would delete what only it has, and snapshots that are based on it are
// lost, too.
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
	unended, err := r.Index.Unended(ctx, slices.AppendSeq(slices.Collect(maps.Keys(r.records)), maps.Keys(parts)))
	if err != nil {
		return err
	}
	r.unended = make(map[backup.SnapshotID]bool, len(unended))
	for _, id := range unended {
		r.unended[id] = true
	}
	var found []Lost
	for id, names := range parts {
		if !r.unended[id] {
			continue
		}
		l, err := r.describeLost(ctx, id, names)
		if err != nil {
			return err
		}
		found = append(found, l)
	}
	if len(found) == 0 {
		return nil
	}
	byNumber := func(a, b Lost) int {
		return cmp.Or(slices.Compare(a.Key[:], b.Key[:]), cmp.Compare(a.Number, b.Number), slices.Compare(a.ID[:], b.ID[:]))
	}
	slices.SortFunc(found, byNumber)
	r.result.Lost = append(r.result.Lost, found...)
	if all := append(r.withoutBase(), found...); len(all) > r.AcceptLoss {
		slices.SortFunc(all, byNumber)
		return &IncompleteError{all}
	}
	return nil
}

// withoutBase returns the snapshots that are lost because their bases are, as far as the records
// show that, and that the index does not have.
func (r *rebuilding) withoutBase() (lost []Lost) {
	for _, key := range r.keys() {
		for s, why := range newChain(r.byShard[key], r.forgotten).lost {
			if r.unended[s.ID] {
				lost = append(lost, lostOf(&s.Snapshot, why))
			}
		}
	}
	return lost
}

// partsTried is how many parts of a segment are tried.
const partsTried = 16

// describeLost describes a snapshot by the first of these parts of its segment that can be used. If
// none can, or if the repository has not signed them, only its id is known.
func (r *rebuilding) describeLost(ctx context.Context, id backup.SnapshotID, names []string) (Lost, error) {
	lost := Lost{ID: id, Err: ErrNoRecord}
	for _, name := range names {
		data, err := r.Store.Get(ctx, name, pack.MaxBytes)
		if err == nil {
			_, attempt, part, _ := store.ParseSegmentName(name)
			var opened *journal.SegmentPart
			if opened, err = journal.OpenSegment(data, id, attempt, part, r.Trust); err == nil {
				h := &opened.Header.Snapshot
				lost.Filer, lost.Shard, lost.Number, lost.Started = h.Filer, h.Shard, h.Number, h.Started
				lost.Key, err = backup.ParseShardKey(h.ShardKey)
				return lost, err
			}
		}
		if !usable(err) {
			return lost, err
		}
	}
	return lost, nil
}
