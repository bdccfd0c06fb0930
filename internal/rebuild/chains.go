package rebuild

import (
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// A chain is what is replayed of a shard.
type chain struct {
	replayed map[*record]bool // in the order of their numbers, each is a checkpoint, or based on the one before it
	lost     map[*record]error
}

// newChain returns the chain of a shard whose records are given by number. Needed are the snapshots
// that are committed and not forgotten, and the newest committed one, which is the base of the next
// one. Each needs its base, up to a checkpoint.
func newChain(records []*record, forgotten map[backup.SnapshotID]bool) chain {
	c := chain{replayed: map[*record]bool{}, lost: map[*record]error{}}
	byID := make(map[backup.SnapshotID]*record, len(records))
	for _, r := range records {
		byID[r.ID] = r
	}
	wanted, newest := map[*record]bool{}, true
	for _, r := range slices.Backward(records) {
		if r.State != backup.Committed {
			continue
		}
		if newest || !forgotten[r.ID] {
			want(r, byID, wanted)
		}
		newest = false
	}
	var before *record
	for _, r := range records {
		if !wanted[r] {
			continue
		}
		if err := c.fits(r, byID, before); err != nil {
			c.lost[r] = err
			continue
		}
		c.replayed[r] = true
		before = r
	}
	return c
}

// want marks a record and those through which its chain goes.
func want(r *record, byID map[backup.SnapshotID]*record, wanted map[*record]bool) {
	for r != nil && !wanted[r] {
		wanted[r] = true
		r = byID[r.base] // none if the base is zero, or lost
	}
}

// fits returns why a record cannot be replayed after the one before it.
func (c *chain) fits(r *record, byID map[backup.SnapshotID]*record, before *record) error {
	if r.base == (backup.SnapshotID{}) {
		return nil
	}
	base := byID[r.base]
	switch {
	case base == nil:
		return fmt.Errorf("it is based on snapshot %s, of which the store has no record: %w", r.base.Short(), backup.ErrNotFound)
	case base.State != backup.Committed || base.Number >= r.Number:
		return fmt.Errorf("it is based on snapshot %s, which is %s and has number %d: %w", r.base.Short(), base.State, base.Number, backup.ErrCorrupt)
	case c.lost[base] != nil:
		return basedOnLost(base)
	case before != base:
		return fmt.Errorf("another snapshot is based on %s, too: %w", r.base.Short(), backup.ErrCorrupt)
	}
	return nil
}

func basedOnLost(base *record) error {
	return fmt.Errorf("it is based on snapshot %s, which is lost: %w", base.ID.Short(), backup.ErrNotFound)
}
