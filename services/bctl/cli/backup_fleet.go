package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/services/bctl/open"
)

const (
	// followFirst is the first pause between queries for a fleet's snapshots. The pauses grow to
	// followEvery.
	followFirst = 50 * time.Millisecond
	followEvery = time.Second
	// beginning is the number of snapshots started concurrently.
	beginning = 8
	// reachWithin is how long the command waits for NATS before it reports that.
	reachWithin = 5 * time.Second
	// maxHints is the maximum number of ids in a hint to the user.
	maxHints = 3
)

// backUpInFleet starts a snapshot of each shard and follows them. The services do the work, whether
// or not a command follows.
func (c *backupCommand) backUpInFleet(ctx context.Context, r *repository, targets []target, report *report) error {
	c.app.interruptible.Store(true)
	progress := newTracker()
	log := c.app.log
	if c.detach { // it does not wait, and reports once
		log = slog.New(slog.DiscardHandler)
	}
	conn, err := open.NATS(c.app.cfg, "bctl backup", r.object.ID, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := c.reach(ctx, conn); err != nil {
		return err
	}
	services := &muster{conn: conn}
	if !c.detach {
		unsubscribe, err := conn.SubscribeProgress(progress.addKnown)
		if err != nil {
			return err
		}
		defer unsubscribe()
	}
	begun, err := c.begin(ctx, r.index, targets, report)
	if err == nil && c.detach {
		return report.detached(begun)
	}
	f := &follower{index: r.index, log: c.app.log.Warn, ended: func(s *backup.Snapshot) error {
		progress.end(s.ID, &s.Counts)
		return report.ended(context.WithoutCancel(ctx), s, lasted(s), given{})
	}}
	if err == nil {
		c.expect(ctx, r.index, begun, progress)
		quiet := c.app.lookOut(ctx, services, begun)
		defer quiet()
		stop := c.app.animate(progress.line)
		defer stop()
		err = f.follow(ctx, begun)
		stop()
	}
	if errors.Is(context.Cause(ctx), process.ErrInterrupted) && err != nil {
		c.detachedBy(f.left(begun), len(targets))
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	return report.result()
}

// lookOut reports, while the command waits for these snapshots, what the fleet lacks to make them.
func (a *app) lookOut(ctx context.Context, services *muster, begun []backup.Snapshot) (stop func()) {
	l := &lookout{
		app: a, ask: services.ask,
		snapshots: map[backup.SnapshotID]string{},
		advice:    "the backup continues as soon as they are available; Ctrl-C leaves it to the services, and bctl status shows what it waits for",
	}
	for n := range begun {
		s := &begun[n]
		l.sites = append(l.sites, backup.SiteName(s.Filer.Site))
		l.snapshots[s.ID] = display(s.Filer.Name) + " " + display(s.Shard.Name)
	}
	slices.Sort(l.sites)
	l.sites = slices.Compact(l.sites)
	return l.watch(ctx, lookoutEvery)
}

// reach waits briefly for NATS. Without NATS a snapshot is started all the same: the services may
// reach NATS, and continue on their own when they do. The user only has to know what the command
// waits for. Queues of another repository indicate a mistake in the settings.
func (c *backupCommand) reach(ctx context.Context, conn *flow.Conn) error {
	err := conn.Reach(ctx, reachWithin)
	switch {
	case err == nil || errors.Is(err, flow.ErrOtherRepository):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if c.detach {
		c.app.note("%v; the services may wait for it, too, and make the snapshots when it answers (bctl doctor tests NATS)", err)
		return nil
	}
	c.app.term.println(fmt.Sprintf("%v\nIs nats.url right? No progress can be shown until NATS answers, and the services may be waiting for it, too.\n"+
		"Ctrl-C ends the waiting, and leaves the snapshot to the services; bctl doctor tests NATS.", err))
	return nil
}

// begin starts a snapshot of each shard. If several shards are given, a snapshot that is already
// running counts as started.
func (c *backupCommand) begin(ctx context.Context, i index.Catalog, targets []target, report *report) ([]backup.Snapshot, error) {
	var mu sync.Mutex
	var begun []backup.Snapshot
	group := errgroup.Group{}
	group.SetLimit(beginning)
	for n := range targets {
		t := &targets[n]
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			// The result must be known even if an interrupt arrives at this moment.
			s, err := i.BeginSnapshot(context.WithoutCancel(ctx), t.shard.ID, c.request(), time.Time{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, backup.ErrRunning) && len(targets) == 1:
				return fmt.Errorf("back up %s: %w: %s (bctl status shows its progress, bctl cancel %[3]s ends it)", t, err, s.ID.Short())
			case errors.Is(err, backup.ErrRunning):
				c.app.term.println(fmt.Sprintf("%s is being backed up already, as %s", t, s.ID.Short()))
			case err != nil:
				return report.notBegun("", fmt.Errorf("back up %s: %w", t, err))
			}
			begun = append(begun, s)
			return nil
		})
	}
	err := group.Wait()
	return begun, err
}

// lasted returns the duration of a snapshot that has ended.
func lasted(s *backup.Snapshot) time.Duration {
	return s.Ended.Sub(s.Started)
}

// expect passes the expected and the completed work to the progress line. Progress is only
// informative, so an unavailable index is ignored.
func (c *backupCommand) expect(ctx context.Context, i index.Catalog, begun []backup.Snapshot, progress *tracker) {
	ids := make([]backup.SnapshotID, len(begun))
	for n := range begun {
		ids[n] = begun[n].ID
	}
	base, err := i.BaseCounts(ctx, ids)
	if err != nil {
		c.app.log.Warn("the expected amount of work is unknown: reading the last snapshot failed", "error", err)
	}
	for n := range begun {
		s := &begun[n]
		progress.expect(s.ID, base[s.ID].Files, base[s.ID].Bytes)
		progress.set(s.ID, s.Counts.Files, s.Counts.Bytes, s.Counts.Errors)
	}
}

// detachedBy reports which snapshots continue after bctl was interrupted.
func (c *backupCommand) detachedBy(running []backup.Snapshot, asked int) {
	if len(running) == 0 {
		c.app.term.println("No snapshot was begun.")
		return
	}
	ids, what := "", "the snapshot"
	for n := range running[:min(len(running), maxHints)] {
		ids += " " + running[n].ID.Short()
	}
	if len(running) > maxHints {
		ids += " …"
	}
	if asked > 1 {
		what = fmt.Sprintf("%d of %d snapshots", len(running), asked)
	}
	c.app.term.println(fmt.Sprintf("Detached: the services continue %s.\nTo follow, use bctl status --watch; to end, bctl cancel%s.", what, ids))
}

// A follower waits until snapshots have ended. It queries the index once for all running snapshots,
// and then only for those that have ended since.
type follower struct {
	index index.Catalog
	log   func(msg string, args ...any)
	ended func(*backup.Snapshot) error // called again after backup.ErrUnavailable

	done map[backup.SnapshotID]bool
}

// follow calls ended for each snapshot. If the index is unavailable for a time, it waits.
func (f *follower) follow(ctx context.Context, snapshots []backup.Snapshot) error {
	f.done = map[backup.SnapshotID]bool{}
	// Short snapshots are noticed immediately, and long ones are not queried too often.
	pause := followFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for len(f.done) < len(snapshots) {
		err := f.look(ctx, snapshots)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, backup.ErrUnavailable):
			f.log("the index does not answer", "error", err)
		case err != nil:
			return err
		}
		if len(f.done) == len(snapshots) {
			break
		}
		select {
		case <-timer.C:
			pause = min(pause*3/2, followEvery)
			timer.Reset(pause)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (f *follower) look(ctx context.Context, snapshots []backup.Snapshot) error {
	filter := index.SnapshotFilter{States: onlyRunning}
	if len(snapshots) == 1 {
		filter.IDPrefix = snapshots[0].ID.String()
	}
	found, err := f.index.Snapshots(ctx, filter)
	if err != nil {
		return err
	}
	running := make(map[backup.SnapshotID]bool, len(found))
	for n := range found {
		running[found[n].ID] = true
	}
	for n := range snapshots {
		s := snapshots[n]
		if running[s.ID] || f.done[s.ID] {
			continue
		}
		now, err := f.index.Snapshot(ctx, s.ID)
		switch {
		case errors.Is(err, backup.ErrNotFound): // ended, and removed since
			s.State, s.Reason = backup.Deleting, "it was removed"
		case err != nil:
			return err
		default:
			s = now
		}
		if err := f.ended(&s); err != nil {
			return err
		}
		f.done[s.ID] = true
	}
	return nil
}

// left returns the snapshots that have not ended.
func (f *follower) left(snapshots []backup.Snapshot) (running []backup.Snapshot) {
	for n := range snapshots {
		if !f.done[snapshots[n].ID] {
			running = append(running, snapshots[n])
		}
	}
	return running
}
