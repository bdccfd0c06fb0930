package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/run"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/services/bctl/embedded"
)

func sourceURL(path string) string { return posix.URL(path) }

// parts are what backups in this process work with.
func (a *app) parts(r *repository) (embedded.Options, error) {
	key, err := repo.ReadWorkerKey(a.cfg.WorkerKey, r.object.ID)
	if err != nil {
		return embedded.Options{}, err
	}
	locks, err := a.cfg.LockDir()
	if err != nil {
		return embedded.Options{}, err
	}
	w := &a.cfg.Worker
	o := embedded.Options{
		Index: r.index, Store: r.store, Source: posix.New(posix.Options{}), Repository: r.object.Repository,
		WorkerKey: key, Log: a.log, LockDir: locks,
	}
	o.Walker.Tasks, o.Walker.Directories, o.Walker.Grain = w.Tasks, w.Directories, w.Grain
	o.Reader.Batches, o.Reader.InHand, o.Reader.Workers, o.Reader.Linger = w.Batches, w.InHand, w.Workers, w.Linger
	return o, nil
}

// here backs the shards up in this process, one after the other.
func (c *backupCommand) here(ctx context.Context, r *repository, targets []target, report *report) error {
	o, err := c.app.parts(r)
	if err != nil {
		return err
	}
	for n := range targets {
		t := &targets[n]
		started := time.Now()
		s, err := c.one(ctx, o, t)
		switch {
		case err == nil:
			err = report.ended(context.WithoutCancel(ctx), &s, time.Since(started))
		case errors.Is(context.Cause(ctx), run.ErrInterrupted):
			c.app.term.println("The snapshot of " + display(t.shard.Name) + " is not complete. The next bctl backup of it goes on where this one stopped.")
			return context.Cause(ctx)
		default:
			err = report.failed(t, err)
		}
		if err != nil {
			return err
		}
	}
	return report.result()
}

// one backs one shard up.
func (c *backupCommand) one(ctx context.Context, o embedded.Options, t *target) (backup.Snapshot, error) {
	before, err := o.Index.Snapshots(ctx, index.SnapshotFilter{
		Filer: t.filer, Shard: t.shard.Name, States: []backup.State{backup.Committed}, Limit: 1,
	})
	if err != nil {
		return backup.Snapshot{}, err
	}
	progress := newTracker()
	if len(before) > 0 {
		progress.expect(backup.SnapshotID{}, before[0].Counts.Files, before[0].Counts.Bytes)
	}
	stop := c.app.animate(progress.line)
	defer stop()
	s, err := embedded.Backup(ctx, o, t.shard, c.request(), func(p backup.Progress) {
		p.Snapshot = backup.SnapshotID{} // there is one only
		progress.add(p)
	})
	if err != nil {
		return s, fmt.Errorf("back up %s: %w", display(t.shard.Name), err)
	}
	return s, nil
}
