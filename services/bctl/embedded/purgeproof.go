package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A proving looks for remains after a purge.
type proving struct {
	*amending
	o *PurgeOptions
}

// errUnchained: the base of a segment was forgotten meanwhile.
var errUnchained = errors.New("a patch, and no base")

// prove counts the rows and the objects of the journal that have the path of the purge. Without an
// identity, it reads no object: all of them were written after the rows were gone.
func (a *proving) prove(ctx context.Context, proof *PurgeProof) (err error) {
	p := &a.o.Purge
	if p.Path == "" { // an earlier run has proved it
		return nil
	}
	a.o.step("looking for the name")
	proof.Rows, proof.Journal, proof.Read = 0, 0, 0
	if proof.Rows, err = a.index.PurgeRemains(ctx, p.ID); err != nil {
		return err
	}
	journals, err := a.index.Journals(ctx, p.Shard)
	if err != nil {
		return err
	}
	numbers := make(map[backup.SnapshotID]backup.SnapshotNumber, len(journals))
	for i := range journals {
		numbers[journals[i].ID] = journals[i].Number
	}
	for i := range journals {
		j := &journals[i]
		if j.Number < p.From || j.Number > p.Through {
			continue
		}
		r := journalProof{proving: a, j: j, base: numbers[j.Base], proof: proof}
		err := r.run(ctx)
		if errors.Is(err, backup.ErrNotFound) { // the next run writes what is missing
			err = errors.Join(err, a.index.MarkStale(ctx, p.Shard))
		}
		if err != nil {
			return err
		}
	}
	// A forgotten snapshot of which the store still has a journal.
	forgotten, err := a.index.Forgotten(ctx)
	for _, f := range forgotten {
		if _, kept := numbers[f.ID]; f.Shard == p.Shard && f.Number >= p.From && f.Number <= p.Through && !kept {
			proof.Journal++
		}
	}
	return err
}

// A journalProof looks for the path in the journal of one snapshot.
type journalProof struct {
	*proving
	j     *index.SnapshotJournal
	base  backup.SnapshotNumber
	proof *PurgeProof
}

func (r *journalProof) run(ctx context.Context) error {
	if r.j.Sequence > 0 {
		others, err := r.replaced(ctx, r.j)
		if err != nil {
			return err
		}
		r.proof.Journal += len(others)
	}
	if r.o.Opener == nil {
		return nil
	}
	if err := r.record(ctx); err != nil {
		return err
	}
	for part := range r.j.Segment.Parts {
		if err := r.part(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (r *journalProof) trust() journal.Trust {
	return journal.Trust{Repository: r.o.Keys.Repository, Signer: r.o.Keys.Signing.Signer(), Opener: r.o.Opener}
}

// record reads the record, which has the problems of the snapshot.
func (r *journalProof) record(ctx context.Context) error {
	data, err := r.o.Store.Get(ctx, store.AmendedName(r.j.ID, r.j.Sequence), pack.MaxBytes)
	if err != nil {
		return err
	}
	_, problems, err := journal.OpenAmended(data, r.j.ID, r.j.Sequence, r.trust())
	if err != nil {
		return err
	}
	has := false
	for problem, err := range problems {
		if err != nil {
			return err
		}
		has = has || backup.IsAtOrBelow(problem.Path, r.o.Purge.Path)
	}
	r.count(has)
	return nil
}

func (r *journalProof) count(has bool) {
	r.proof.Read++
	if has {
		r.proof.Journal++
	}
}

// part reads a part of the segment.
func (r *journalProof) part(ctx context.Context, part int) error {
	name := store.SegmentName(r.j.ID, r.j.Segment.Attempt, part)
	data, err := r.o.Store.Get(ctx, name, pack.MaxBytes)
	if err != nil {
		return err
	}
	opened, err := journal.OpenSegment(data, r.j.ID, r.j.Segment.Attempt, part, r.trust())
	if err != nil {
		return err
	}
	dir, base := backup.Split(r.o.Purge.Path)
	has := false
	for c, err := range opened.Changes(func(path string, key backup.PageKey) ([]byte, error) { return r.listing(ctx, path, key) }) {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if c.Ended && r.base < r.o.Purge.From {
			continue // the base keeps the path, because the purge begins later
		}
		has = has || backup.IsAtOrBelow(c.Path, r.o.Purge.Path)
		if c.Ended || c.Path != dir {
			continue
		}
		page, err := listing.Decode(c.Listing)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for i := range page.Entries {
			has = has || page.Entries[i].Name == base
		}
	}
	r.count(has)
	return nil
}

// listing returns the listing of a page in the snapshot on which the segment is based.
func (r *journalProof) listing(ctx context.Context, path string, key backup.PageKey) ([]byte, error) {
	if r.base == 0 {
		return nil, errUnchained
	}
	found, err := r.o.Index.Listings(ctx, r.o.Purge.Shard, r.base, []backup.PageName{{Path: path, Key: key}})
	if err != nil {
		return nil, err
	}
	return found[0], nil
}
