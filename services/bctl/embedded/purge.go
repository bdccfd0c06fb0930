package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/prune"
)

// PurgeOptions are the settings of a Purge.
type PurgeOptions struct {
	prune.PurgeOptions
	Index   index.Index
	Keys    journal.Keys
	LockDir string // of a repository on one machine
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
	// LockedUntil is when the last lock ends of packs that are left; zero: none of them is locked.
	LockedUntil time.Time
	Complete    bool
}

// Purge carries out a purge that has begun, in a repository on one machine. After an error, or a
// crash, it can be called again. Its steps are:
//
//  1. The store gets a copy of the index that has the purge, so that a rebuilt index goes on with
//     it.
//  2. The records and segments of the shard's snapshots are written again (amending).
//  3. The chunks that nothing else needs are deleted (prune.Purge).
//  4. It looks for what is left. If there is anything, the purge stays incomplete.
//  5. The index forgets the path, and is written anew, so that its free pages do not have it.
//  6. One copy of the index replaces all others.
//  7. The index forgets the purge, and its log has the outcome.
//
// No other process may write to the index meanwhile. In a fleet, all others go on: a catalog of a
// committer stands for the copies of the index (prune.AwaitRecorded), and Postgres itself reuses
// the space of what was deleted.
func Purge(ctx context.Context, o PurgeOptions) (proof PurgeProof, err error) {
	unlock, err := o.begin(ctx)
	if err != nil {
		return proof, err
	}
	defer unlock()
	a := amending{index: o.Index, store: o.Store, keys: o.Keys, shard: o.Purge.Shard}
	o.ID, o.Shard = o.Purge.ID, o.Purge.Shard
	for range maxRounds {
		if err = o.change(ctx, &a, &proof); err != nil || proof.Left > 0 {
			return proof, err
		}
		if err = (&proving{&a, &o}).prove(ctx, &proof); !errors.Is(err, errUnchained) {
			break
		}
	}
	if err != nil {
		return proof, err
	}
	if proof.Places > 0 || proof.Present > 0 || proof.Rows > 0 || proof.Journal > 0 {
		proof.LockedUntil, err = o.lockedUntil(ctx)
		return proof, err
	}
	err = o.end(ctx, &proof)
	return proof, err
}

// PurgeUnneeded deletes all content of packs that no snapshot needs. What is left to do is found
// anew each time, so an interrupted one leaves nothing behind. Keys and LockDir are as in Purge.
func PurgeUnneeded(ctx context.Context, o PurgeOptions) (proof PurgeProof, err error) {
	unlock, err := o.begin(ctx)
	if err != nil {
		return proof, err
	}
	defer unlock()
	o.Unneeded = true
	err = o.lead(ctx, func(ctx context.Context) (err error) {
		proof.Purged, err = prune.Purge(ctx, o.Index, o.PurgeOptions)
		return err
	})
	if err != nil || proof.Left > 0 {
		return proof, err
	}
	if proof.Places > 0 || proof.Present > 0 {
		proof.LockedUntil, err = o.lockedUntil(ctx)
		return proof, err
	}
	if err := o.renew(ctx, &proof); err != nil {
		return proof, err
	}
	proof.Complete = true
	return proof, o.Index.NotePurge(ctx, o.By, fmt.Sprintf("complete: chunks that nothing needs %d, which are neither in the index nor in the store; objects deleted %d, written %d", proof.Chunks, proof.Objects, proof.Sealed), true)
}

// begin excludes other prunes on one machine, and sees to it that a rebuilt index would know what
// this one knows, now and before anything is deleted.
func (o *PurgeOptions) begin(ctx context.Context) (unlock func(), err error) {
	unlock = func() {}
	o.BeforeDelete = func(ctx context.Context) error { return prune.AwaitRecorded(ctx, o.Index) }
	if local, ok := o.Index.(*sqliteindex.Index); ok {
		if unlock, err = lockPrune(ctx, local, o.LockDir); err != nil {
			return nil, err
		}
		o.BeforeDelete = func(ctx context.Context) error { return copyNow(ctx, local, o.Store, o.Keys) }
	}
	o.step("copying the index")
	if err := o.BeforeDelete(ctx); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (o *PurgeOptions) step(name string) {
	if o.Progress != nil {
		o.Progress(name)
	}
}

// lockedUntil returns when the last lock ends of packs that are to be deleted. The locks of
// replaced records are not noted.
func (o *PurgeOptions) lockedUntil(ctx context.Context) (until time.Time, err error) {
	locks, err := o.Index.Locks(ctx)
	if err != nil {
		return until, err
	}
	later := func(t time.Time) {
		if t.After(locks.Now) && t.After(until) {
			until = t
		}
	}
	for p, err := range o.Index.Packs(ctx) {
		if err != nil {
			return until, err
		}
		if p.Deleting {
			later(p.LockedUntil)
		}
	}
	return until, nil
}

// maxRounds is how often a purge begins again because a snapshot was forgotten meanwhile.
const maxRounds = 3

// busyWithin is how long a purge in a fleet waits for the pruner's pass, or for the end of its term
// after it was killed.
const busyWithin = 3 * time.Minute

// change amends the records, and deletes the chunks. It leads as the pruner all the time. Otherwise
// a sweep, which knows that the snapshots have ended, would take a new segment for an orphan before
// the index names it.
func (o *PurgeOptions) change(ctx context.Context, a *amending, proof *PurgeProof) error {
	return o.lead(ctx, func(ctx context.Context) (err error) {
		o.step("writing the records of snapshots again")
		a.term = o.Term
		// The proof reads each segment together with its base, and may find one that was forgotten
		// since an earlier run.
		if err := o.Index.MarkUnchained(ctx, o.Shard); err != nil {
			return err
		}
		if err := a.run(ctx); err != nil {
			return err
		}
		proof.Amended = a.amended
		proof.Purged, err = prune.Purge(ctx, o.Index, o.PurgeOptions)
		return err
	})
}

// lead calls do while this process leads as the pruner, in o.Term.
func (o *PurgeOptions) lead(ctx context.Context, do func(context.Context) error) error {
	lead := o.Options
	lead.Index = o.Index
	_, local := o.Index.(*sqliteindex.Index)
	for end := time.Now().Add(busyWithin); ; loop.Pause(ctx, time.Second) {
		err := prune.Lead(ctx, lead, func(ctx context.Context, t index.Term) error {
			o.Term = t
			return do(ctx)
		})
		if local || !errors.Is(err, prune.ErrBusy) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		o.step("waiting for the pruner")
	}
}

// A vacuumer is an index that removes what was deleted from its files.
type vacuumer interface {
	Vacuum(ctx context.Context) error
}

// end removes what a complete purge has left of the path.
func (o *PurgeOptions) end(ctx context.Context, proof *PurgeProof) (err error) {
	if err := o.Index.HidePurge(ctx, o.Purge.ID); err != nil {
		return err
	}
	if err := o.renew(ctx, proof); err != nil {
		return err
	}
	outcome := fmt.Sprintf("complete: chunks %d, of which other files need %d; places of the rest in the index %d, its objects in the store %d of %d; rows, segments and records with the name %d",
		proof.Chunks, proof.Shared, proof.Places, proof.Present, proof.Objects, proof.Rows+int64(proof.Journal))
	if err := o.Index.EndPurge(ctx, o.Purge.ID, outcome); err != nil {
		return err
	}
	proof.Complete = true
	if local, ok := o.Index.(*sqliteindex.Index); ok {
		return copyNow(ctx, local, o.Store, o.Keys)
	}
	return nil
}

// renew writes the files of the index anew, without what was deleted, and on one machine all of its
// copies.
func (o *PurgeOptions) renew(ctx context.Context, proof *PurgeProof) (err error) {
	o.step("writing the index anew")
	if x, ok := o.Index.(vacuumer); ok {
		if err := x.Vacuum(ctx); err != nil {
			return err
		}
	}
	if local, ok := o.Index.(*sqliteindex.Index); ok {
		o.step("replacing the copies of the index")
		proof.OtherCopies, err = ReplaceCopies(ctx, local, o.Store, o.Keys, time.Now())
	}
	return err
}
