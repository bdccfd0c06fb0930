package cli

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
)

// forgetRemoved forgets the snapshots that were forgotten and removed after the copy of the index
// was written: their content may be gone. A missing record alone does not prove that, because the
// store may have lost it. The record is removed after the segment, so the segment must be gone as
// well. And the last good snapshot of a shard is forgotten only if a newer one has been committed.
func (r *rebuild) forgetRemoved(ctx context.Context, i *sqliteindex.Index) error {
	gone, err := unrecordedIn(ctx, r.store, i)
	if err != nil || len(gone) == 0 {
		return err
	}
	newest := map[backup.ShardKey]backup.SnapshotNumber{} // of the snapshots that the copy lacks
	for _, l := range r.lost {
		if l.committed {
			newest[l.Shard] = max(newest[l.Shard], l.Number)
		}
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	lastGood := map[backup.SnapshotID]bool{}
	for n := range shards {
		lastGood[shards[n].LastGood] = newest[shards[n].Key] <= shards[n].Number
	}
	removed, err := r.withoutSegment(ctx, gone)
	if err != nil {
		return err
	}
	r.removed = nil
	for n := range gone {
		s := &gone[n]
		if !removed[s.ID] || lastGood[s.ID] {
			r.app.note("the store has no record of snapshot %s of %s %s, number %d: it has lost the record, or the snapshot was forgotten. bctl doctor looks for lost packs",
				s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.Number)
			continue
		}
		if err := i.ForgetRemoved(ctx, s.ID, operator(), "index rebuild: the store no longer has any of it"); err != nil {
			return err
		}
		r.removed = append(r.removed, *s)
	}
	return nil
}

// unrecordedIn returns the snapshots of an index whose record the store had, but does not have any
// more.
func unrecordedIn(ctx context.Context, s store.Store, i *sqliteindex.Index) ([]backup.Snapshot, error) {
	recorded, err := repo.Recorded(ctx, s)
	if err != nil {
		return nil, err
	}
	has := make(map[backup.SnapshotID]bool, len(recorded))
	for id := range recorded {
		has[id] = true
	}
	all, err := i.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed, backup.Failed}})
	if err != nil {
		return nil, err
	}
	unwritten, err := i.Unrecorded(ctx, nil, len(all)+1) // of which the store never had a record
	if err != nil {
		return nil, err
	}
	for n := range unwritten {
		has[unwritten[n].ID] = true
	}
	var gone []backup.Snapshot
	for n := range all {
		if !has[all[n].ID] {
			gone = append(gone, all[n])
		}
	}
	return gone, nil
}

// withoutSegment returns the snapshots of which the store no longer has a segment. A snapshot that
// changed nothing never had one; it is included unless the store has lost the record of another.
func (r *rebuild) withoutSegment(ctx context.Context, gone []backup.Snapshot) (map[backup.SnapshotID]bool, error) {
	without, lost := map[backup.SnapshotID]bool{}, false
	for n := range gone {
		s := &gone[n]
		if s.Segment.Parts == 0 {
			continue
		}
		_, err := r.store.Stat(ctx, store.SegmentName(s.ID, s.Segment.Attempt, 0))
		switch {
		case errors.Is(err, backup.ErrNotFound):
			without[s.ID] = true
		case err != nil:
			return nil, err
		default:
			lost = true
		}
	}
	for n := range gone {
		if gone[n].Segment.Parts == 0 {
			without[gone[n].ID] = !lost
		}
	}
	return without, nil
}
