package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store/ratestore"
	"github.com/bctl/bctl/services/bctl/open"
	"github.com/bctl/bctl/services/pruner/sweep"
)

// Pruner runs a pruner. It needs the index and the store, and no key. It takes no work from
// anybody: it uses NATS, if that is configured, only to announce itself, and works without it.
func Pruner(ctx context.Context, c *config.Config, log *slog.Logger) error {
	if _, local := c.IndexPath(); local && !c.Fleet() {
		return fmt.Errorf("a pruner is part of a fleet, with an index in Postgres: %w", backup.ErrInvalid)
	}
	s, err := begin(ctx, c, flow.RolePruner, log, needIndex, needClock, needStore)
	if err != nil {
		return err
	}
	defer s.close()
	layout, none, err := parity.ParseSetting(c.Pruner.Parity)
	if err != nil {
		return fmt.Errorf("pruner.parity: %w", err)
	}
	s.waits.end()
	s.dependOnAll(nil)
	s.log.Info("pruner started", "store", s.store.String())
	nats, announcing := s.announceHousekeeper(ctx, c, flow.RolePruner)
	defer announcing()
	limited := ratestore.New(s.store, c.Pruner.RequestsPerSecond, c.Pruner.BytesPerSecond)
	sweep.New(s.leads(), limited, sweep.Options{
		Worker: workerName(c), Interval: c.Pruner.Interval, MaxMemory: c.Pruner.MaxMemory, MaxUnused: c.Pruner.MaxUnused, ObjectLock: c.ObjectLock(), Parity: layout, NoParity: none,
		Log: s.log, Metrics: s.metrics.Pruner(), Health: s.health, Clock: s.clock, Current: s.current,
		BeforeDelete: func(ctx context.Context) error { return withCause(prune.AwaitRecorded(ctx, s.idx), nats) },
	}).Run(ctx)
	s.log.Info("pruner stopped")
	return nil
}

// withCause adds to the error of prune.AwaitRecorded that NATS does not answer this process either.
// Without NATS, no committer leads.
func withCause(err error, nats func() error) error {
	if !errors.Is(err, prune.ErrNotRecorded) {
		return err
	}
	if away := nats(); away != nil {
		return fmt.Errorf("%w; this pruner does not reach NATS either: %w", err, away)
	}
	return err
}

// announceHousekeeper checks whether a pruner, a scrubber or a restorer is ready, and announces it
// if NATS is configured, until stop is called. Operators then see that it runs, and whether it is
// ready. nats returns why NATS is unavailable; nil if it is not, or is not configured.
func (s *starting) announceHousekeeper(ctx context.Context, c *config.Config, role flow.Role) (nats func() error, stop func()) {
	nats = func() error { return nil }
	ready := newReadiness(s.log, false)
	run, leave := func(ctx context.Context) { ready.look(ctx, s.monitoring) }, func() {}
	if c.Fleet() {
		conn, err := open.ServiceNATS(c, workerName(c), s.repository, s.log, nil, nil, nil)
		if err != nil {
			s.log.Warn("this service runs without NATS: bctl worker ls does not list it", "error", err)
		} else {
			a := announce(c, s.monitoring, conn, s.idx, ready, role)
			a.also = func(*flow.Instance) {}
			run, leave, nats = a.run, conn.Close, conn.Ready
		}
	}
	announcing, end := context.WithCancel(context.WithoutCancel(ctx))
	var owned sync.WaitGroup
	owned.Go(func() { run(announcing) })
	return nats, func() {
		end()
		owned.Wait()
		leave()
	}
}
