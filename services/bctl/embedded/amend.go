package embedded

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// minRebased is the least number of forgotten snapshots for which the journal of a shard is written
// again.
const minRebased = 8

// rebase writes the journal of a shard again if its chains of segments need more forgotten
// snapshots than kept ones. Afterwards each kept snapshot is based on the kept one before it, or is
// a checkpoint, and the forgotten ones are removed. A segment that is based on the kept one before
// it stays as it is. So the size of a shard's journal is in proportion to the number of kept
// snapshots. Snapshots do not change, so backups and restores continue. It returns the number of
// forgotten snapshots that were removed.
func rebase(ctx context.Context, idx *sqliteindex.Index, keys journal.Keys, o prune.Options, copied func(context.Context) error) (removed int, err error) {
	forgotten, err := idx.Forgotten(ctx)
	if err != nil {
		return 0, err
	}
	needed := map[backup.ShardID]int{}
	for _, f := range forgotten {
		if f.Needed {
			needed[f.Shard]++
		}
	}
	rebased := false
	for shard, n := range needed {
		journals, err := idx.Journals(ctx, shard)
		if err != nil {
			return 0, err
		}
		kept, stale := 0, false
		for i := range journals {
			if journals[i].State == backup.Committed {
				kept++
			}
			stale = stale || journals[i].Stale // a prune was killed
		}
		if !stale && (n < minRebased || n < kept) {
			continue
		}
		if err := idx.MarkUnchained(ctx, shard); err != nil {
			return 0, err
		}
		// A rebuilt index knows that the store may have newer records.
		if err := copied(ctx); err != nil {
			return 0, err
		}
		a := amending{index: idx, store: o.Store, keys: keys, shard: shard}
		if err := a.run(ctx); err != nil {
			return 0, err
		}
		rebased = true
	}
	if !rebased {
		return 0, nil
	}
	return prune.RemoveForgotten(ctx, o)
}

// An amending writes the journal of a shard again.
type amending struct {
	index   index.Index
	store   store.Store
	keys    journal.Keys
	shard   backup.ShardID
	term    index.Term // of the pruner; zero: no other process prunes
	amended int
}

// run amends the stale records, from the first on: each of their segments has what its snapshot
// changed since the kept one before it, and the first is a checkpoint. So nothing of a forgotten
// snapshot is needed. Then it deletes the records and segments that were replaced.
func (a *amending) run(ctx context.Context) error {
	journals, err := a.index.Journals(ctx, a.shard)
	if err != nil {
		return err
	}
	var base *backup.Snapshot
	for i := range journals {
		j := &journals[i]
		snap, err := a.index.Snapshot(ctx, j.ID)
		if err != nil {
			return err
		}
		snap.State = j.State // snap has the state deleting if it is forgotten
		if j.Stale {
			if err := a.amend(ctx, &snap, base, j); err != nil {
				return fmt.Errorf("write the record of snapshot %s again: %w", j.ID.Short(), err)
			}
			a.amended++
		}
		if j.State == backup.Committed {
			base = &snap
		}
	}
	for i := range journals {
		if j := &journals[i]; j.Sequence > 0 {
			if err := a.clean(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// amend writes a new segment and an amended record of a snapshot. j is updated. The segment is
// durable before the record names it. Both are durable before the index names them.
func (a *amending) amend(ctx context.Context, snap, base *backup.Snapshot, j *index.SnapshotJournal) error {
	amendment := index.Amendment{ID: snap.ID, Sequence: j.Sequence + 1}
	if snap.State == backup.Committed {
		put := func(name string, data []byte) error { return a.store.Put(ctx, name, data) }
		changes, before := a.index.AllPages(ctx, snap.ID), backup.PageSet{}
		if base != nil {
			amendment.Base = base.ID
			changes, before = a.changes(ctx, snap.ID, base.ID), base.Pages
		}
		segment, err := journal.WriteSegment(a.keys, snap, base == nil, before, changes, put)
		if err != nil {
			return err
		}
		if segment.Content != snap.Pages {
			return fmt.Errorf("the index has %d of its %d pages, or other ones (bctl doctor says more): %w", segment.Content.Pages, snap.Pages.Pages, backup.ErrCorrupt)
		}
		amendment.Segment = backup.Segment{Attempt: segment.Attempt, Parts: segment.Parts, Checkpoint: segment.Checkpoint, Bytes: segment.Bytes}
		if segment.Parts == 0 {
			amendment.Segment = backup.Segment{}
		}
		snap.Segment = amendment.Segment
	} else {
		base = nil
	}
	for err := backup.ErrExists; errors.Is(err, backup.ErrExists); { // a killed process has put one
		record := journal.NewCommit(snap, snap.Ended)
		record.Amend(amendment.Sequence, base)
		data, encodeErr := journal.EncodeCommit(a.keys, snap.ID, record, a.index.Problems(ctx, snap.ID))
		if encodeErr != nil {
			return encodeErr
		}
		if err = a.store.PutNew(ctx, store.AmendedName(snap.ID, amendment.Sequence), data); errors.Is(err, backup.ErrExists) {
			amendment.Sequence++
		} else if err != nil {
			return err
		}
	}
	if err := a.index.Amend(ctx, a.term, amendment); err != nil {
		return err
	}
	j.Sequence, j.Base, j.Segment, j.Stale = amendment.Sequence, amendment.Base, amendment.Segment, false
	return nil
}

// changes yields what a snapshot has changed since base: what it added, then what it ended.
func (a *amending) changes(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[index.Change, error] {
	return func(yield func(index.Change, error) bool) {
		for _, changes := range []iter.Seq2[index.Change, error]{a.index.Added(ctx, id, base), a.index.Ended(ctx, id, base)} {
			for c, err := range changes {
				if !yield(c, err) {
					return
				}
			}
		}
	}
}

// clean deletes the records and segments that the valid record of a snapshot has replaced, and
// those that killed processes have left. Locked ones stay for the sweep that follows the end of
// their locks.
func (a *amending) clean(ctx context.Context, j *index.SnapshotJournal) error {
	names, err := a.replaced(ctx, j)
	if err != nil || len(names) == 0 {
		return err
	}
	err = a.store.Delete(ctx, names...)
	if store.IsLocked(err) {
		return nil
	}
	return err
}

// replaced returns the objects of a snapshot's journal that its valid record does not name.
func (a *amending) replaced(ctx context.Context, j *index.SnapshotJournal) (names []string, err error) {
	valid := map[string]bool{store.AmendedName(j.ID, j.Sequence): true}
	for part := range j.Segment.Parts {
		valid[store.SegmentName(j.ID, j.Segment.Attempt, part)] = true
	}
	for _, prefix := range []string{store.SegmentsOf(j.ID), store.CommitName(j.ID)} {
		for object, err := range a.store.List(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			if !valid[object.Name] {
				names = append(names, object.Name)
			}
		}
	}
	return names, nil
}
