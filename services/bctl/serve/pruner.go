package serve

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/store/ratestore"
	"github.com/bctl/bctl/services/pruner/sweep"
)

// Pruner runs a pruner. It needs the index and the store, and no key. It takes no work from
// anybody, so it does not use NATS.
func Pruner(ctx context.Context, c *config.Config, log *slog.Logger) error {
	if _, local := c.IndexPath(); local && !c.Fleet() {
		return fmt.Errorf("a pruner is part of a fleet, with an index in Postgres: %w", backup.ErrInvalid)
	}
	s, err := begin(ctx, c, "pruner", log, needIndex, needStore)
	if err != nil {
		return err
	}
	defer s.close()
	s.waits.end()
	s.dependOn(nil, s.idx, s.store)
	s.log.Info("pruner started", "store", s.store.String())
	limited := ratestore.New(s.store, c.Pruner.RequestsPerSecond, c.Pruner.BytesPerSecond)
	sweep.New(s.idx, limited, sweep.Options{
		Worker: workerName(c), Interval: c.Pruner.Interval, MaxMemory: c.Pruner.MaxMemory, MaxUnused: c.Pruner.MaxUnused, ObjectLock: c.ObjectLock(),
		Log: s.log, Metrics: s.metrics.Pruner(), Health: s.health,
	}).Run(ctx)
	s.log.Info("pruner stopped")
	return nil
}
