package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// brake returns the stop if the brake stops the run for a shard, and nil if the run may continue. A
// dry run only prints a note.
func (c *forgetCommand) brake(ctx context.Context, i index.Index, shard *index.ShardStatus, d *index.Deletion) (*stopOf, error) {
	if len(d.Snapshots) == 0 {
		return nil, nil
	}
	all, err := i.Snapshots(ctx, index.SnapshotFilter{Filer: shard.Filer.Name, Shard: shard.Name, States: onlyCommitted})
	if err != nil {
		return nil, err
	}
	d.OfSnapshots = len(all) // also those that are not in d
	if n := len(all); n > 0 && d.Last != shard.LastGood && (shard.LastGood != backup.SnapshotID{} || d.Last != all[n-1].ID) {
		d.Last = backup.SnapshotID{} // it is only the newest of those that were named
	}
	found := &stopOf{Stop: index.Stop{Deletion: *d}, filer: shard.Filer.Name, shard: shard.Name}
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
		parts = append(parts, fmt.Sprintf("the brake has stopped this for %[2]s: it would forget %[1]s, and has forgotten none", s.what(), s.where()))
		confirm = append(confirm, s.confirmation())
	}
	return fmt.Errorf("%s. To confirm it, run %s; then run this command again (--dry-run lists the snapshots)", strings.Join(parts, "; "), strings.Join(confirm, ", "))
}
