package embedded

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// PurgeOptions are the settings of a Purge.
type PurgeOptions struct {
	prune.PurgeOptions
	Index   *sqliteindex.Index
	Keys    journal.Keys
	LockDir string
	// Purge has begun: the index has nothing of the path any more.
	Purge index.Purge
}

// A PurgeProof is what a Purge did and found.
type PurgeProof struct {
	prune.Purged
	Amended     int   // records that this run has amended
	Rows        int64 // of the index that have the path
	Journal     int   // objects of the journal that have the path, or that no record names
	Read        int   // objects of the journal that were read to find that; 0: there was no identity
	OtherCopies int   // copies of another index, which stay
	Complete    bool
}

// Purge carries out a purge that has begun, in a repository on one machine. After an error, or a
// crash, it can be called again. Its steps are:
//
//  1. The store gets a copy of the index that has the purge, so that a rebuilt index goes on with it.
//  2. The records and segments of the shard's snapshots are written again (amending).
//  3. The chunks that nothing else needs are deleted (prune.Purge).
//  4. It looks for what is left. If there is anything, the purge stays incomplete.
//  5. The index forgets the path, and is written anew, so that its free pages do not have it.
//  6. One copy of the index replaces all others.
//  7. The index forgets the purge, and its log has the outcome.
//
// No other process may write to the index meanwhile.
func Purge(ctx context.Context, o PurgeOptions) (proof PurgeProof, err error) {
	path := filepath.Join(o.LockDir, "prune.lock")
	unlock, err := lockFile(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return proof, fmt.Errorf("%w (it holds %s)", prune.ErrBusy, path)
	}
	if err != nil {
		return proof, err
	}
	defer unlock()
	if err := endTerm(ctx, o.Index); err != nil {
		return proof, err
	}
	copied := func(ctx context.Context) error { return copyNow(ctx, o.Index, o.Store, o.Keys) }
	o.step("copying the index")
	if err := copied(ctx); err != nil {
		return proof, err
	}
	a := amending{o: &o}
	if err := a.run(ctx); err != nil {
		return proof, err
	}
	proof.Amended = a.amended
	o.PurgeOptions.ID, o.Options.Index, o.BeforeDelete = o.Purge.ID, o.Index, copied
	if proof.Purged, err = prune.Purge(ctx, o.PurgeOptions); err != nil || proof.Left > 0 {
		return proof, err
	}
	if err := a.prove(ctx, &proof); err != nil {
		return proof, err
	}
	if proof.Places > 0 || proof.Present > 0 || proof.Rows > 0 || proof.Journal > 0 {
		return proof, nil
	}
	return proof, o.end(ctx, &proof)
}

func (o *PurgeOptions) step(name string) {
	if o.Progress != nil {
		o.Progress(name)
	}
}

// end removes what a complete purge has left of the path.
func (o *PurgeOptions) end(ctx context.Context, proof *PurgeProof) (err error) {
	if err := o.Index.HidePurge(ctx, o.Purge.ID); err != nil {
		return err
	}
	o.step("writing the index anew")
	if err := o.Index.Vacuum(ctx); err != nil {
		return err
	}
	o.step("replacing the copies of the index")
	if proof.OtherCopies, err = ReplaceCopies(ctx, o.Index, o.Store, o.Keys, time.Now()); err != nil {
		return err
	}
	outcome := fmt.Sprintf("complete: chunks %d, of which other files need %d; of the others, the index has %d places and the store %d objects of %d; rows, segments and records with the name %d",
		proof.Chunks, proof.Shared, proof.Places, proof.Present, proof.Objects, proof.Rows+int64(proof.Journal))
	if err := o.Index.EndPurge(ctx, o.Purge.ID, outcome); err != nil {
		return err
	}
	proof.Complete = true
	return copyNow(ctx, o.Index, o.Store, o.Keys)
}

// An amending writes the journal of a shard again.
type amending struct {
	o       *PurgeOptions
	amended int
}

// run amends the stale records, from the first on: each segment has what its snapshot changed since
// the kept one before it, and the first is a checkpoint. So nothing of a forgotten snapshot is
// needed. Then it deletes what the amended records have replaced.
func (a *amending) run(ctx context.Context) error {
	a.o.step("writing the records of snapshots again")
	journals, err := a.o.Index.Journals(ctx, a.o.Purge.Shard)
	if err != nil {
		return err
	}
	var base *backup.Snapshot
	for i := range journals {
		j := &journals[i]
		snap, err := a.o.Index.Snapshot(ctx, j.ID)
		if err != nil {
			return err
		}
		snap.State = j.State // that of a forgotten one is another
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

// amend writes a new segment and an amended record of a snapshot. j is updated. The segment is durable
// before the record names it, and both are before the index does.
func (a *amending) amend(ctx context.Context, snap, base *backup.Snapshot, j *index.SnapshotJournal) error {
	o := a.o
	amendment := index.Amendment{ID: snap.ID, Sequence: j.Sequence + 1}
	if snap.State == backup.Committed {
		put := func(name string, data []byte) error { return o.Store.Put(ctx, name, data) }
		changes, before := o.Index.AllPages(ctx, snap.ID), backup.PageSet{}
		if base != nil {
			amendment.Base = base.ID
			changes, before = o.Index.Difference(ctx, snap.ID, base.ID), base.Pages
		}
		segment, err := journal.WriteSegment(o.Keys, snap, base == nil, before, changes, put)
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
		data, encodeErr := journal.EncodeCommit(o.Keys, snap.ID, record, o.Index.Problems(ctx, snap.ID))
		if encodeErr != nil {
			return encodeErr
		}
		if err = o.Store.PutNew(ctx, store.AmendedName(snap.ID, amendment.Sequence), data); errors.Is(err, backup.ErrExists) {
			amendment.Sequence++
		} else if err != nil {
			return err
		}
	}
	if err := o.Index.Amend(ctx, amendment); err != nil {
		return err
	}
	j.Sequence, j.Base, j.Segment, j.Stale = amendment.Sequence, amendment.Base, amendment.Segment, false
	return nil
}

// clean deletes the records and segments that the valid record of a snapshot has replaced, and what
// killed processes have left of others.
func (a *amending) clean(ctx context.Context, j *index.SnapshotJournal) error {
	names, err := a.replaced(ctx, j)
	if err != nil || len(names) == 0 {
		return err
	}
	return a.o.Store.Delete(ctx, names...)
}

// replaced returns the objects of a snapshot's journal that its valid record does not name.
func (a *amending) replaced(ctx context.Context, j *index.SnapshotJournal) (names []string, err error) {
	valid := map[string]bool{store.AmendedName(j.ID, j.Sequence): true}
	for part := range j.Segment.Parts {
		valid[store.SegmentName(j.ID, j.Segment.Attempt, part)] = true
	}
	for _, prefix := range []string{store.SegmentsOf(j.ID), store.CommitName(j.ID)} {
		for object, err := range a.o.Store.List(ctx, prefix) {
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
