package cli

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/wire"
)

// An engine makes one snapshot and returns it when it has ended.
type engine func(ctx context.Context, shard backup.Shard, s backup.Snapshot, watch func(backup.Progress)) (backup.Snapshot, error)

func sourceURL(path string) string { return posix.URL(path) }

// engine returns what makes snapshots: this process, or a fleet's services.
func (a *app) engine(r *repository, detach bool) (e engine, stop func(), err error) {
	if a.cfg.Fleet() {
		return a.fleetEngine(r, detach)
	}
	key, err := repo.ReadWorkerKey(a.cfg.WorkerKey, r.object.ID)
	if err != nil {
		return nil, nil, err
	}
	locks, err := a.cfg.LockDir()
	if err != nil {
		return nil, nil, err
	}
	w := &a.cfg.Worker
	o := embedded.Options{
		Index: r.index, Store: r.store, Source: posix.New(posix.Options{}), Repository: r.object.Repository,
		WorkerKey: key, Log: a.log, LockDir: locks,
	}
	o.Walker.Tasks, o.Walker.Directories, o.Walker.Grain = w.Tasks, w.Directories, w.Grain
	o.Reader.Batches, o.Reader.InHand, o.Reader.Workers, o.Reader.Linger = w.Batches, w.InHand, w.Workers, w.Linger
	return func(ctx context.Context, shard backup.Shard, s backup.Snapshot, watch func(backup.Progress)) (backup.Snapshot, error) {
		return embedded.Backup(ctx, o, shard, s, watch)
	}, func() {}, nil
}

// followEvery is how often a fleet's snapshot is looked at.
const followEvery = time.Second

// fleetEngine begins snapshots and follows them; the services do the work.
func (a *app) fleetEngine(r *repository, detach bool) (engine, func(), error) {
	conn, err := wire.ConnectNATS(a.cfg, "bctl backup", a.log)
	if err != nil {
		return nil, nil, err
	}
	begin := func(ctx context.Context, shard backup.Shard, s backup.Snapshot, watch func(backup.Progress)) (backup.Snapshot, error) {
		begun, err := r.index.BeginSnapshot(ctx, shard.ID, s, time.Now())
		if err != nil || detach {
			return begun, err
		}
		unsubscribe, err := conn.SubscribeProgress(func(p *backup.Progress) {
			if p.Snapshot == begun.ID {
				watch(*p)
			}
		})
		if err != nil {
			return begun, err
		}
		defer unsubscribe()
		return a.follow(ctx, r, begun.ID)
	}
	return begin, func() { conn.Close() }, nil
}

// follow waits until a snapshot has ended. An index that does not answer for a while is waited for.
func (a *app) follow(ctx context.Context, r *repository, id backup.SnapshotID) (backup.Snapshot, error) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		s, err := r.index.Snapshot(ctx, id)
		switch {
		case errors.Is(err, backup.ErrUnavailable):
			a.log.Warn("the index does not answer", "error", err)
		case err != nil || s.State != backup.Running:
			return s, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return s, context.Cause(ctx)
		}
	}
}
