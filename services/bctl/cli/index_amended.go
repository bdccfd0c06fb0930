package cli

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
)

// settleAmended makes an index accept the amended records that it does not know: its copy was made
// before a purge. The index has again what the purge has removed, except for content.
func (r *rebuild) settleAmended(ctx context.Context, i *sqliteindex.Index) error {
	amended, err := repo.Amended(ctx, r.store, i)
	if err != nil {
		return err
	}
	for id, amendment := range amended {
		a, err := r.amendment(ctx, id, amendment)
		if err != nil {
			return err
		}
		if err := i.AdoptAmendment(ctx, a); err != nil {
			return err
		}
	}
	if r.amended = len(amended); r.amended > 0 {
		r.app.note("the index is older than the records of %s. If a purge has amended them, the index has the removed names again: run bctl purge again", counted(r.amended, "snapshot"))
	}
	return nil
}

// amendment returns what the store's record of a snapshot says of the snapshot's journal. Of a
// damaged record, only the sequence is known.
func (r *rebuild) amendment(ctx context.Context, id backup.SnapshotID, amendment int) (index.Amendment, error) {
	a := index.Amendment{ID: id, Sequence: amendment}
	data, err := r.store.Get(ctx, store.AmendedName(id, amendment), pack.MaxBytes)
	if err != nil {
		return a, err
	}
	record, _, err := journal.OpenAmended(data, id, amendment, r.trust)
	if errors.Is(err, backup.ErrCorrupt) {
		return a, nil
	}
	if err != nil {
		return a, err
	}
	if record.BasedOn != nil {
		if a.Base, err = backup.ParseSnapshotID(record.BasedOn.ID); err != nil {
			return a, err
		}
	}
	if g := record.Segment; g != nil {
		a.Segment.Parts, a.Segment.Checkpoint = g.Parts, g.Checkpoint
		a.Segment.Attempt, err = backup.ParsePackID(g.Attempt)
	}
	return a, err
}
