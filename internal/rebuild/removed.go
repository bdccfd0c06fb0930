package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
)

// forgetRemoved forgets the snapshots that were forgotten and removed after the index was copied:
// their content may be gone. A missing record alone does not prove that, because the store may have
// lost it. The record is removed after the segment, so the segment must be gone as well. And the
// last good snapshot of a shard is forgotten only if a newer one was committed. If one of them
// cannot have been removed, the store is incomplete: then none is forgotten.
func (r *rebuilding) forgetRemoved(ctx context.Context) error {
	gone, err := r.unrecorded(ctx)
	if err != nil || len(gone) == 0 {
		return err
	}
	removed, err := r.withoutSegment(ctx, gone)
	if err != nil {
		return err
	}
	shards, err := r.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	lastGood := map[backup.SnapshotID]bool{}
	for i := range shards {
		lastGood[shards[i].LastGood] = true
	}
	why, err := r.mayNotBeRemoved(ctx, gone)
	if err != nil {
		return err
	}
	for i := range gone {
		s := &gone[i]
		lost := "the store has lost it"
		if removed[s.ID] && !lastGood[s.ID] {
			if why == "" {
				if err := r.Index.ForgetRemoved(ctx, s.ID, r.By, "index rebuild: the store no longer has any of it"); err != nil {
					return err
				}
				r.result.Removed = append(r.result.Removed, *s)
				continue
			}
			lost = "the store does not show it, and " + why + ": see whether the store is complete"
		}
		r.damaged(store.CommitName(s.ID), fmt.Errorf("%s: %w", lost, backup.ErrNotFound))
	}
	return nil
}

// mayNotBeRemoved returns why it cannot be that all of gone were forgotten and removed; empty: it
// can.
func (r *rebuilding) mayNotBeRemoved(ctx context.Context, gone []backup.Snapshot) (why string, err error) {
	if r.kept { // a catalog is written before what was forgotten is removed
		return "the index knows the newest catalog, so that nothing was removed", nil
	}
	held, err := r.holds(ctx)
	if err != nil {
		return "", err
	}
	for i := range gone {
		if held(&gone[i]) {
			return fmt.Sprintf("snapshot %s is on hold", gone[i].ID.Short()), nil
		}
	}
	return "", nil
}

// holds returns whether a snapshot has been on hold since the index was copied: the newest catalog,
// which is newer than the index, has the hold, too. Holds on paths do not count, because they do
// not keep each snapshot.
func (r *rebuilding) holds(ctx context.Context) (func(*backup.Snapshot) bool, error) {
	list, err := r.Index.Holds(ctx)
	if err != nil {
		return nil, err
	}
	snapshots, shards := map[backup.SnapshotID]bool{}, map[backup.ShardID]bool{}
	for i := range list {
		h := &list[i]
		ended := r.result.Sequence > 0 && !slices.ContainsFunc(r.catalog.Holds, func(c journal.CatalogHold) bool { return c.ID == h.ID })
		switch {
		case h.Path != "" || ended:
		case h.Snapshot != backup.SnapshotID{}:
			snapshots[h.Snapshot] = true
		default:
			shards[h.Shard] = true
		}
	}
	return func(s *backup.Snapshot) bool { return snapshots[s.ID] || shards[s.Shard.ID] }, nil
}

// unrecorded returns the snapshots of the index whose record the store had, but does not have any
// more.
func (r *rebuilding) unrecorded(ctx context.Context) ([]backup.Snapshot, error) {
	all, err := r.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed, backup.Failed}})
	if err != nil {
		return nil, err
	}
	unwritten, err := r.Index.Unrecorded(ctx, nil, len(all)+1)
	if err != nil {
		return nil, err
	}
	never := map[backup.SnapshotID]bool{}
	for i := range unwritten {
		never[unwritten[i].ID] = true
	}
	var gone []backup.Snapshot
	for i := range all {
		if id := all[i].ID; r.records[id] == nil && !never[id] && !r.unusable[id] {
			gone = append(gone, all[i])
		}
	}
	if len(gone) == 0 {
		return nil, nil
	}
	// A record that was put after the records were listed is not lost.
	recorded, err := repo.Recorded(ctx, r.Store)
	return slices.DeleteFunc(gone, func(s backup.Snapshot) bool {
		_, there := recorded[s.ID]
		return there
	}), err
}

// withoutSegment returns the snapshots of which the store no longer has a segment. A snapshot that
// changed nothing never had one; it is included unless the store has lost the record of another.
func (r *rebuilding) withoutSegment(ctx context.Context, gone []backup.Snapshot) (map[backup.SnapshotID]bool, error) {
	without, lost := map[backup.SnapshotID]bool{}, false
	for i := range gone {
		s := &gone[i]
		if s.Segment.Parts == 0 {
			continue
		}
		_, err := r.Store.Stat(ctx, store.SegmentName(s.ID, s.Segment.Attempt, 0))
		switch {
		case errors.Is(err, backup.ErrNotFound):
			without[s.ID] = true
		case err != nil:
			return nil, err
		default:
			lost = true
		}
	}
	for i := range gone {
		if gone[i].Segment.Parts == 0 {
			without[gone[i].ID] = !lost
		}
	}
	return without, nil
}
