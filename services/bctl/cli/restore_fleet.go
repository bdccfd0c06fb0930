package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/spread"
)

// A fleetRestore is a restore that restorers share.
type fleetRestore struct {
	on      bool
	site    string
	abandon bool
}

func (f *fleetRestore) flags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "fleet", false, "let the restorers of a site restore, into DIR as they see it")
	flags.StringVar(&f.site, "site", backup.DefaultSite, "with --fleet: the `SITE` of the restorers")
	flags.BoolVar(&f.abandon, "abandon", false, "with --fleet: end the restore to DIR that has not ended; what is restored stays")
}

// checkFleet refuses what restorers cannot do.
func (c *restoreCommand) checkFleet(given []string, o *restore.Options) error {
	f := &c.fleet
	if !f.on {
		if f.abandon {
			return usage("--abandon needs --fleet")
		}
		return nil
	}
	if len(given) == 0 {
		return usage("--fleet restores one SNAPSHOT: give latest, or an id")
	}
	for _, name := range []string{
		"instant", "in-place", "ignore-space", "include", "exclude", "newer", "delete", "dry-run", "map-owner", "map-group", "names-from", "concurrency", "verbose",
	} {
		if c.given.Changed(name) {
			return usage("--fleet does not work with --%s", name)
		}
	}
	if o.Overwrite != restore.IfChanged && o.Overwrite != restore.Always {
		return usage("--fleet does not work with --overwrite %s: a part that is restored again could keep half a file", o.Overwrite)
	}
	if !filepath.IsAbs(o.Target) || filepath.Clean(o.Target) != o.Target {
		return usage("--fleet needs --target as an absolute path, which the restorers see")
	}
	if _, local := c.app.cfg.IndexPath(); local {
		return usage("--fleet needs the configuration of a fleet (--config FILE); on one machine, leave it out")
	}
	return wrongSetting(backup.CheckSite(f.site))
}

// restoreInFleet begins a restore, or continues the one to the same target, and follows it. stop
// ends the line of progress.
func (x *restoring) restoreInFleet(ctx context.Context, idx index.Index, deps restore.Deps, o restore.Options, stop func()) error {
	if x.kind != backup.Directory {
		return usage("--fleet restores directories; restore a single file without it")
	}
	s := &x.snapshot
	o.Snapshot, o.Path, o.Pages, o.Compare = s.ID, x.path, s.Pages, s.Compare
	of, err := x.beginFleet(ctx, idx, &o)
	if err != nil {
		return err
	}
	x.causes = causeCounter{term: x.app.term}
	if x.path == "" {
		x.tracker.expect(s.ID, s.Counts.Files, s.Counts.Bytes)
	}
	x.sum, err = spread.Follow(ctx, idx, deps, of, &fleetWatcher{restoring: x, said: map[string]bool{}})
	x.elapsed = time.Since(of.Started)
	stop()
	x.causes.end("--json prints all errors.")
	switch {
	case errors.Is(err, process.ErrInterrupted):
		x.app.term.println("Restorers go on with what they have keys for. To continue, run the same\ncommand again; to end the restore, add --abandon.")
		return err
	case err != nil:
		return err
	}
	return x.conclude()
}

// beginFleet returns the restore to the target: the one that is there, if it is the same, or a new
// one.
func (c *restoreCommand) beginFleet(ctx context.Context, idx index.Index, o *restore.Options) (index.Restore, error) {
	request, err := spread.Request{
		Path: []byte(o.Path), Pages: o.Pages, Compare: o.Compare, Overwrite: o.Overwrite, TargetAttributes: o.TargetAttributes, NoSync: o.NoSync, Verify: o.Verify,
	}.Encode()
	if err != nil {
		return index.Restore{}, err
	}
	of := index.Restore{ID: index.NewRestoreID(), Snapshot: o.Snapshot, Site: c.fleet.site, Target: o.Target, Request: request, Started: time.Now()}
	there, ok, err := spread.Find(ctx, idx, of.Site, of.Target)
	switch {
	case err != nil:
		return of, err
	case ok && there.Failed == "" && there.Snapshot == of.Snapshot && bytes.Equal(there.Request, request):
		c.app.note("continuing the restore that was begun %.0f minutes ago", time.Since(there.Started).Minutes())
		return there, nil
	case ok && !there.Ended():
		return of, usage("another restore to %s, of snapshot %s, has not ended: run its command again, or end it with --abandon", display(of.Target), there.Snapshot.Short())
	}
	if err := spread.Keep(ctx, idx, &of); err != nil {
		return of, err
	}
	tasks, err := spread.Plan(ctx, idx, of.Snapshot, o.Path)
	if err != nil {
		return of, err
	}
	err = idx.BeginRestore(ctx, of, tasks)
	if errors.Is(err, backup.ErrExists) {
		err = usage("another restore to %s has just begun", display(of.Target))
	}
	return of, err
}

func (c *restoreCommand) abandonFleet(ctx context.Context, idx index.Index) error {
	there, ok, err := spread.Find(ctx, idx, c.fleet.site, c.target)
	if err != nil {
		return err
	}
	if !ok {
		return absent("no restore to %s at site %s has begun", display(c.target), c.fleet.site)
	}
	if err := idx.EndRestore(ctx, there.ID); err != nil {
		return err
	}
	c.app.note("the restore was ended; restorers stop within seconds. What they have restored stays, and the file .bctl-restore-fleet-%s", there.ID)
	return nil
}

// A fleetWatcher shows how a restore goes on.
type fleetWatcher struct {
	*restoring
	said map[string]bool
	idle time.Time // since when no restorer works; zero: one does
}

// idleAfter is how long no restorer works before that is said.
const idleAfter = 5 * time.Second

// Look implements spread.Watcher.
func (w *fleetWatcher) Look(r *index.Restore, refused []index.Refusal) {
	w.tracker.set(r.Snapshot, r.Files, r.Bytes, 0)
	for _, f := range refused {
		w.say("restorer " + display(f.Worker) + " takes no part: " + display(f.Reason))
	}
	if r.Trouble != "" {
		w.say("a task will be tried again: " + display(r.Trouble))
	}
	switch {
	case r.Working > 0 || r.Ended():
		w.idle = time.Time{}
	case w.idle.IsZero():
		w.idle = time.Now()
	case time.Since(w.idle) > idleAfter:
		w.say("no restorer at site " + cmp.Or(r.Site, backup.DefaultSite) + " works on this restore; waiting for one (bctl restorer)")
	}
}

func (w *fleetWatcher) say(text string) {
	if !w.said[text] {
		w.said[text] = true
		w.app.note("%s", text)
	}
}
