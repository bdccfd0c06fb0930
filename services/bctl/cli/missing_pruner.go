package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// unpruned is what waits for a pruner.
type unpruned struct {
	snapshots int  // forgotten, and not needed by others
	packs     bool // that are to be deleted
	last      time.Time
	now       time.Time
}

// prunesWithin is longer than the time between two passes of a pruner with the default settings. A
// pruner that runs and does not announce itself has pruned within it.
const prunesWithin = 2 * time.Hour

// waitsForPruner returns what waits for a pruner. It is zero if this user may not see that.
func waitsForPruner(ctx context.Context, i index.Index) (unpruned, error) {
	forgotten, err := i.Forgotten(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return unpruned{}, nil
	}
	if err != nil {
		return unpruned{}, err
	}
	work, err := i.PruneWork(ctx)
	if err != nil {
		return unpruned{}, err
	}
	prunes, err := i.Prunes(ctx)
	if err != nil {
		return unpruned{}, err
	}
	u := unpruned{packs: work.Condemned > 0, now: work.Now}
	for n := range forgotten {
		if !forgotten[n].Needed {
			u.snapshots++
		}
	}
	if n := len(prunes); n > 0 {
		u.last = prunes[n-1].Ended
	}
	return u, nil
}

// lacksPruner returns a lack if something waits for a pruner and none runs.
func (c *crew) lacksPruner(u *unpruned) []lack {
	if !c.asked || c.err != nil || u.snapshots == 0 && !u.packs || len(c.of(flow.RolePruner, "")) > 0 {
		return nil
	}
	died := slices.ContainsFunc(c.services, func(i flow.Instance) bool { return i.Role == flow.RolePruner })
	if !died && !u.last.IsZero() && u.now.Sub(u.last) < prunesWithin {
		return nil
	}
	waits := counted(int64(u.snapshots), "forgotten snapshot") + " not yet deleted"
	if u.snapshots == 0 {
		waits = "condemned packs not yet deleted"
	}
	last := "nothing was ever pruned"
	if !u.last.IsZero() {
		last = "last prune " + away(u.last, u.now)
	}
	return []lack{{What: string(flow.RolePruner), Text: fmt.Sprintf("no pruner runs: %s (%s)", waits, last)}}
}
