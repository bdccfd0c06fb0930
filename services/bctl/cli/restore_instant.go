package cli

import (
	"context"
	"runtime/debug"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/instant"
	"github.com/bctl/bctl/internal/restore"
)

// checkInstant refuses the flags that --instant excludes: the mount shows one snapshot as it is.
func (c *restoreCommand) checkInstant(given []string) error {
	if !c.instant {
		return nil
	}
	if len(given) == 0 {
		return usage("--instant restores one SNAPSHOT: give latest, or an id")
	}
	for _, name := range []string{
		"include", "exclude", "newer", "overwrite", "map-owner", "map-group", "names-from", "delete", "dry-run", "target-attributes", "verify", "in-place",
	} {
		if c.given.Changed(name) {
			return usage("--instant and --%s exclude each other", name)
		}
	}
	return nil
}

// restoreInstantly restores with --instant.
func (x *restoring) restoreInstantly(ctx context.Context, i index.Index, d restore.Deps, o *restore.Options) (restore.Summary, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(mountGCPercent))
	sum, err := instant.Run(ctx, instant.Deps{Catalog: i, Store: d.Store, Repository: d.Repository, Opener: d.Opener, HashKey: d.HashKey}, instant.Options{
		Snapshot: o.Snapshot, Path: o.Path, Target: o.Target, Pages: o.Pages, Compare: o.Compare, Counts: o.Counts, IgnoreSpace: o.IgnoreSpace,
		NoSync: o.NoSync, Concurrency: o.Concurrency, Patience: x.app.cfg.Store.Retry, Log: x.app.log,
	}, x)
	return sum, wrongSetting(err)
}

// Mounted, Unavailable, Busy and Stays implement instant.Observer.
func (x *restoring) Mounted() error {
	object := struct {
		Type   string `json:"type"`
		Target string `json:"target"`
	}{"mounted", x.target}
	return x.app.result(object, "mounted at %s, which can be used from now on\n", argument(x.target))
}

func (x *restoring) Unavailable(err error) {
	x.app.note("the restore waits for the index or the store: %v", err)
}

func (x *restoring) Busy() {
	x.app.note("everything is restored; waiting until no process uses %s (fuser -vm %[1]s lists them)", display(x.target))
}

func (x *restoring) Stays() {
	x.app.note("%s stays mounted, because processes use it (fuser -vm %[1]s lists them); what was not read or changed fails there", display(x.target))
}
