package serve

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/scrub"
	"github.com/bctl/bctl/internal/store/ratestore"
	"github.com/bctl/bctl/services/scrubber/prove"
)

// Scrubber runs a scrubber. It needs the index and the store, and no key. Like a pruner, it uses
// NATS only to announce itself.
func Scrubber(ctx context.Context, c *config.Config, log *slog.Logger) error {
	if _, local := c.IndexPath(); local && !c.Fleet() {
		return fmt.Errorf("a scrubber is part of a fleet, with an index in Postgres; on one machine, run bctl scrub: %w", backup.ErrInvalid)
	}
	s, err := begin(ctx, c, flow.RoleScrubber, log, needIndex, needStore)
	if err != nil {
		return err
	}
	defer s.close()
	s.waits.end()
	s.dependOnAll(nil)
	s.log.Info("scrubber started", "store", s.store.String())
	_, announcing := s.announceHousekeeper(ctx, c, flow.RoleScrubber)
	defer announcing()
	limited := ratestore.New(s.store, 0, c.Scrubber.BytesPerSecond)
	prove.New(s.idx, limited, prove.Options{
		Worker: workerName(c), Repository: s.repository, Log: s.log, Metrics: s.metrics.Scrubber(), Health: s.health,
		Journal: &scrub.Journal{Store: limited, Signer: s.signer},
	}).Run(ctx)
	s.log.Info("scrubber stopped")
	return nil
}
