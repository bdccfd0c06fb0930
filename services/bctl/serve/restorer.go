package serve

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/services/restorer/write"
)

// Restorer runs a restorer. It needs the index and the store, and no key file. Like a pruner, it
// uses NATS only to announce itself.
func Restorer(ctx context.Context, c *config.Config, log *slog.Logger) error {
	if _, local := c.IndexPath(); local && !c.Fleet() {
		return fmt.Errorf("a restorer is part of a fleet, with an index in Postgres; on one machine, run bctl restore: %w", backup.ErrInvalid)
	}
	targets, err := write.ParseTargets(c.Restorer.Targets)
	if err != nil {
		return err
	}
	s, err := begin(ctx, c, flow.RoleRestorer, log, needIndex, needStore)
	if err != nil {
		return err
	}
	defer s.close()
	s.waits.end()
	s.dependOnAll(nil)
	r, err := write.New(s.idx, s.store, write.Options{
		Worker: workerName(c), Site: c.Worker.Site, Targets: targets, Repository: s.repository, Tasks: c.Restorer.Tasks, Lease: c.Worker.Lease,
		Log: s.log, Metrics: s.metrics.Restorer(), Health: s.health,
	})
	if err != nil {
		return err
	}
	s.log.Info("restorer started", "store", s.store.String(), "site", c.Worker.Site, "targets", targets)
	_, announcing := s.announceHousekeeper(ctx, c, flow.RoleRestorer)
	defer announcing()
	r.Run(ctx)
	s.log.Info("restorer stopped")
	return nil
}
