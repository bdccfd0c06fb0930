package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
)

// waitsForPruner returns what waits for a pruner. It is zero if this user may not see that.
func waitsForPruner(ctx context.Context, i index.Index) (prune.Backlog, error) {
	b, err := prune.ReadBacklog(ctx, i)
	if errors.Is(err, fs.ErrPermission) {
		return prune.Backlog{}, nil
	}
	return b, err
}

// lacksPruner returns a lack if something waits for a pruner and none runs.
func (c *crew) lacksPruner(b *prune.Backlog) []lack {
	if !c.asked || c.err != nil || !b.Waits() || len(c.of(flow.RolePruner, "")) > 0 {
		return nil
	}
	died := slices.ContainsFunc(c.services, func(i flow.Instance) bool { return i.Role == flow.RolePruner })
	if !died && !b.Last.IsZero() && b.Now.Sub(b.Last) < prune.Within {
		return nil
	}
	waits := counted(int64(b.Snapshots), "forgotten snapshot") + " not yet deleted"
	if b.Snapshots == 0 {
		waits = "condemned packs not yet deleted"
	}
	last := "nothing was ever pruned"
	if !b.Last.IsZero() {
		last = "last prune " + away(b.Last, b.Now)
	}
	return []lack{{What: string(flow.RolePruner), Text: fmt.Sprintf("no pruner runs: %s (%s)", waits, last)}}
}
