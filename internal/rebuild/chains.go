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
	for _, r := range records { // a base has a lower number
		if wanted[r] {
			c.checkBase(r, byID)
		}
	}
	line := c.line(records, byID, wanted)
	for _, r := range records {
		switch {
		case !wanted[r] || c.lost[r] != nil:
		case line[r]:
			c.replayed[r] = true
		default:
			c.lost[r] = fmt.Errorf("it is of another line of snapshots: later ones are not based on it: %w", backup.ErrInvalid)
		}
	}
	return c
}

// line returns the records that can be replayed one after the other so that the newest snapshots
// are among them: from the newest one back to a checkpoint, and so on before that. There is another
// line if an index lacked some snapshots, and was used.
func (c *chain) line(records []*record, byID map[backup.SnapshotID]*record, wanted map[*record]bool) map[*record]bool {
	line := map[*record]bool{}
	var begin *record // a checkpoint
	for _, r := range slices.Backward(records) {
		if !wanted[r] || c.lost[r] != nil || begin != nil && r.Number >= begin.Number {
			continue
		}
		for at := r; at != nil; at = byID[at.base] {
			line[at], begin = true, at
		}
	}
	return line
}

// want marks a record and those through which its chain goes.
func want(r *record, byID map[backup.SnapshotID]*record, wanted map[*record]bool) {
	for r != nil && !wanted[r] {
		wanted[r] = true
		r = byID[r.base] // none if the base is zero, or lost
	}
}

// checkBase finds out whether a record is lost because of its base.
func (c *chain) checkBase(r *record, byID map[backup.SnapshotID]*record) {
	if r.base == (backup.SnapshotID{}) {
		return
	}
	base := byID[r.base]
	switch {
	case base == nil:
		c.lost[r] = fmt.Errorf("it is based on snapshot %s, of which the store has no record: %w", r.base.Short(), backup.ErrNotFound)
	case base.State != backup.Committed || base.Number >= r.Number:
		c.lost[r] = fmt.Errorf("it is based on snapshot %s, which is %s and has number %d: %w", r.base.Short(), base.State, base.Number, backup.ErrCorrupt)
	case c.lost[base] != nil:
		c.lost[r] = basedOnLost(base)
	}
}

func basedOnLost(base *record) error {
	return fmt.Errorf("it is based on snapshot %s, which is lost: %w", base.ID.Short(), backup.ErrNotFound)
}
