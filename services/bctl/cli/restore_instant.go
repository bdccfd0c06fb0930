package cli

import (
	"context"
	"runtime/debug"

	"github.com/bctl/bctl/internal/instant"
	"github.com/bctl/bctl/internal/restore"
)

// checkInstant refuses the flags that --instant excludes: the mount shows the snapshot as it is.
func (c *restoreCommand) checkInstant() error {
	if !c.instant {
		return nil
	}
	for _, name := range []string{
		"include", "exclude", "newer", "overwrite", "map-owner", "map-group", "names-from", "delete", "dry-run", "target-attributes", "verify",
	} {
		if c.given.Changed(name) {
			return usage("--instant and --%s exclude each other", name)
		}
	}
	return nil
}

// restore restores with or without --instant.
func (c *restoreCommand) restore(ctx context.Context, d *instant.Deps, o *restore.Options) (restore.Summary, error) {
	if !c.instant {
		return restore.Restore(ctx, restore.Deps{Catalog: d.Catalog, Store: d.Store, Repository: d.Repository, Opener: d.Opener, HashKey: d.HashKey}, *o, c)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(mountGCPercent))
	sum, err := instant.Run(ctx, *d, instant.Options{
		Snapshot: o.Snapshot, Path: o.Path, Target: o.Target, Pages: o.Pages, Compare: o.Compare, NoSync: o.NoSync, Concurrency: o.Concurrency,
		Patience: c.app.cfg.Store.Retry, Log: c.app.log,
	}, c)
	return sum, wrongSetting(err)
}

// Mounted, Unavailable, Busy and Stays implement instant.Observer.
func (c *restoreCommand) Mounted() error {
	object := struct {
		Type   string `json:"type"`
		Target string `json:"target"`
	}{"mounted", c.target}
	return c.app.result(object, "mounted at %s, which can be used from now on\n", argument(c.target))
}

func (c *restoreCommand) Unavailable(err error) {
	c.app.note("the restore waits for the index or the store: %v", err)
}

func (c *restoreCommand) Busy() {
	c.app.note("everything is restored; waiting until no process uses %s (fuser -vm %[1]s lists them)", display(c.target))
}

func (c *restoreCommand) Stays() {
	c.app.note("%s stays mounted, because processes use it (fuser -vm %[1]s lists them); what was not read or changed fails there", display(c.target))
}
