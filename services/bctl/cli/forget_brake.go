package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// brake checks that the run may forget that much of a shard, and otherwise returns the stop. A dry
// run only prints a note.
func (c *forgetCommand) brake(ctx context.Context, i index.Index, shard *index.ShardStatus, d *index.Deletion) (*stopOf, error) {
	if len(d.Snapshots) == 0 {
		return nil, nil
	}
	all, err := i.Snapshots(ctx, index.SnapshotFilter{Filer: shard.Filer.Name, Shard: shard.Name, States: onlyCommitted})
	if err != nil {
		return nil, err
	}
	d.OfSnapshots = len(slices.DeleteFunc(all, func(s backup.Snapshot) bool { return s.Bad != "" })) // there may be others than those decided about
	found := &stopOf{index.Stop{Deletion: *d}, shard.Filer.Name, shard.Name}
	if c.dryRun {
		brake, err := i.Brake(ctx)
		if err == nil && brake.Exceeds(d) {
			c.app.note("forgetting %s of %s needs a confirmation (bctl brake shows the limits)", found.what(), found.where())
		}
		return nil, err
	}
	err = i.MayDelete(ctx, *d)
	var stopped *index.StoppedError
	if !errors.As(err, &stopped) {
		return nil, err
	}
	found.Stop = stopped.Stop
	c.stopped = append(c.stopped, found)
	return found, nil
}

// unconfirmed is the error about the shards whose deletions the brake has stopped.
func (c *forgetCommand) unconfirmed() error {
	var parts, confirm []string
	for _, s := range c.stopped {
		parts = append(parts, fmt.Sprintf("this would forget %s of %s. That needs a confirmation, and nothing of it was forgotten", s.what(), s.where()))
		confirm = append(confirm, fmt.Sprintf("bctl confirm %d", s.ID))
	}
	return fmt.Errorf("%s. To go on, type %s, and then this command again (--dry-run lists the snapshots)", strings.Join(parts, ". "), strings.Join(confirm, ", "))
}
