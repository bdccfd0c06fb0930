// Package serve runs the services of a fleet: it waits for their dependencies, connects them, and
// announces, measures and stops them.
//
// # Files
//
//	services.go    runs a walker, a reader or a committer
//	pruner.go      runs a pruner
//	scrubber.go    runs a scrubber
//	restorer.go    runs a restorer
//	mirror.go      keeps a mirror
//	waiting.go     waits for dependencies at the start
//	monitoring.go  metrics, health and their server
//	listener.go    the listener of that server
//	readiness.go   whether the service takes work
//	guard.go       takes no work while the store refuses writes, and tests whether it still does
//	announced.go   describes the service to the fleet
//	drained.go     stops a worker while its process continues
//	watchdog.go    notifies systemd
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/process/clock"
	"github.com/bctl/bctl/internal/process/current"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/services/bctl/open"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/committer/schedule"
	"github.com/bctl/bctl/services/reader/read"
	"github.com/bctl/bctl/services/walker/walk"
)

// The services of a fleet may start in any order, and before their dependencies: each waits for
// unavailable dependencies, and reports what it waits for.

const (
	openAgain     = 2 * time.Second
	progressEvery = time.Second
)

// A Runner runs one service until ctx is done, and then stops it gracefully.
type Runner func(ctx context.Context, c *config.Config, log *slog.Logger) error

// A starting is a service before it connects to NATS.
type starting struct {
	*monitoring
	waits      *waiting
	idx        index.Index
	repository backup.RepositoryID
	signer     seal.Signer    // of the repository
	clock      *clock.Watch   // nil: it works with any clock
	current    *current.Watch // nil: it works with an index that is older than its store
	store      *guard         // nil: it needs none
}

// begin waits for the index, and for the store if it is among the needs. Meanwhile the service
// announces what it waits for, if NATS is configured.
func begin(ctx context.Context, c *config.Config, role flow.Role, log *slog.Logger, needs ...string) (*starting, error) {
	m, err := monitor(ctx, c, string(role), log, needs...)
	if err != nil {
		return nil, err
	}
	s := &starting{monitoring: m, waits: &waiting{c: c, m: m, role: role, beside: !slices.Contains(needs, needNATS)}}
	var r backup.Repository
	s.idx, r, err = waitForIndex(ctx, c, s.waits)
	s.repository, s.signer = r.ID, seal.Signer(r.Signer)
	if err == nil && slices.Contains(needs, needClock) {
		s.clock = clock.New(s.idx, time.Now, s.log, m.metrics.Clock())
		m.health.Depends(needClock, s.clockAgrees)
		s.waits.clock = s.clock
	}
	if err == nil && slices.Contains(needs, needStore) {
		s.store, err = waitForStore(ctx, c, s.waits)
	}
	if err == nil && s.clock != nil && s.store != nil {
		err = s.waitForCurrent(ctx, role)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// clockAgrees fails if the clock is known to be wrong. An index that does not answer is reported as
// that.
func (s *starting) clockAgrees(ctx context.Context) error {
	if err := s.clock.Check(ctx); errors.Is(err, clock.ErrOff) {
		return err
	}
	return nil
}

func (s *starting) close() {
	if s.store != nil {
		s.store.Close()
	}
	if s.idx != nil {
		s.idx.Close()
	}
	s.waits.end()
	s.monitoring.close()
}

// Walker runs a walker.
func Walker(ctx context.Context, c *config.Config, log *slog.Logger) error {
	s, err := begin(ctx, c, flow.RoleWalker, log, needNATS, needIndex)
	if err != nil {
		return err
	}
	defer s.close()
	m, idx, log := s.monitoring, s.idx, s.log
	s.waits.end()
	ready := newReadiness(m.log, true)
	conn, report, err := connect(c, m, s.repository, func(context.Context) error { return ready.mayTake() })
	if err != nil {
		return err
	}
	defer conn.Close()
	m.dependOn(conn, idx, nil)
	o := walk.Options{
		Worker: workerName(c), Site: c.Worker.Site, Tasks: c.Worker.Tasks, Directories: c.Worker.Directories,
		StallAfter: c.Worker.StallAfter, StopTimeout: c.Worker.StopTimeout, Log: log,
		Metrics: m.metrics.Walker(), Trace: m.trace, Health: m.health,
	}
	log.Info("walker started")
	a := announce(c, m, conn, idx, ready, flow.RoleWalker)
	a.runWorker(ctx, report, func(ctx context.Context) { walk.New(conn, idx, open.Source(c), report, o).Run(ctx) })
	log.Info("walker stopped")
	return nil
}

// Reader runs a reader.
func Reader(ctx context.Context, c *config.Config, log *slog.Logger) error {
	s, err := begin(ctx, c, flow.RoleReader, log, needNATS, needIndex, needStore)
	if err != nil {
		return err
	}
	defer s.close()
	m, idx, log := s.monitoring, s.idx, s.log
	var key seal.WorkerKey
	object, err := waitFor(ctx, s.waits, theStore, func() (object repo.Object, err error) {
		object, key, err = repo.Load(ctx, s.store, idx, c.WorkerKey)
		return object, err
	})
	if err != nil {
		return err
	}
	s.waits.end()
	ready := newReadiness(m.log, true)
	conn, report, err := connect(c, m, s.repository, func(context.Context) error {
		return cmp.Or(s.store.refused(), ready.mayTake())
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	m.dependOn(conn, idx, s.store)
	parts := read.Parts{Conn: conn, Index: idx, Source: open.Source(c), Store: s.store, Repository: object.Repository, Key: key, Report: report}
	o := read.Options{
		Worker: workerName(c), Site: c.Worker.Site, Batches: c.Worker.Batches, InHand: c.Worker.InHand, Workers: c.Worker.Workers,
		Linger: c.Worker.Linger, StallAfter: c.Worker.StallAfter, StopTimeout: c.Worker.StopTimeout, Log: log,
		Metrics: m.metrics.Reader(), Trace: m.trace, Health: m.health, Refused: s.store.refused,
	}
	if _, err := read.New(parts, o); err != nil {
		return err
	}
	log.Info("reader started", "store", s.store.String())
	a := announce(c, m, conn, idx, ready, flow.RoleReader)
	a.sealsTo = key.Recipients
	a.runWorker(ctx, report, func(ctx context.Context) {
		r, err := read.New(parts, o)
		if err != nil { // it is not, because the same settings were accepted above
			log.Error("service failed", "error", err)
			<-ctx.Done()
			return
		}
		r.Run(ctx)
	})
	log.Info("reader stopped")
	return nil
}

// Committer runs a committer.
func Committer(ctx context.Context, c *config.Config, log *slog.Logger) error {
	s, err := begin(ctx, c, flow.RoleCommitter, log, needNATS, needIndex, needClock, needStore)
	if err != nil {
		return err
	}
	defer s.close()
	m, idx, log := s.monitoring, s.idx, s.log
	keys, recipients, err := waitForCommitterKeys(ctx, c, s.waits, s.store, idx)
	if err != nil {
		return err
	}
	s.waits.end()
	ready := newReadiness(m.log, false)
	conn, _, err := connect(c, m, s.repository, func(context.Context) error { return ready.mayApply() })
	if err != nil {
		return err
	}
	defer conn.Close()
	s.dependOnAll(conn)
	log.Info("committer started", "store", s.store.String())
	leading, holder := s.leads(), conn.Holder(workerName(c))
	scheduler := newScheduler(c, m, leading, holder)
	var beside sync.WaitGroup
	beside.Go(func() { scheduler.Run(ctx) })
	unseen := make(chan []flow.Unseen, 1)
	committer := commit.New(commit.Parts{Conn: conn, Index: leading, Store: s.store, Keys: keys}, commit.Options{
		Worker: workerName(c), Holder: holder, Lease: c.Worker.Lease, QueueLease: c.Worker.QueueLease, Poll: c.Worker.Poll, Queued: c.Worker.Queued,
		StopTimeout: c.Worker.StopTimeout, Log: log, OnSnapshot: scheduler.Look, OnVacant: scheduler.Stand, Unseen: unseen,
		Metrics: m.metrics.Committer(), Trace: m.trace, Health: m.health,
		MayApply:  ready.mayApply,
		MayCommit: func(ctx context.Context) error { return s.store.mayCommit(ctx, ready) },
	})
	a := announce(c, m, conn, idx, ready, flow.RoleCommitter)
	a.sealsTo = recipients
	a.also = func(i *flow.Instance) {
		i.Leads, i.Schedules = committer.Leads(), scheduler.Leads()
		i.MaxRunning, i.MaxRunningPerFiler = scheduler.Limits().Running, scheduler.Limits().RunningPerFiler
	}
	announcing, stop := context.WithCancel(context.WithoutCancel(ctx))
	beside.Go(func() { a.run(announcing) })
	beside.Go(func() { conn.KeepRoster(announcing, committer.Leads, unseen) })
	committer.Run(ctx)
	stop()
	beside.Wait()
	log.Info("committer stopped")
	return nil
}

func newScheduler(c *config.Config, m *monitoring, idx schedule.Index, holder string) *schedule.Scheduler {
	return schedule.New(idx, schedule.Options{
		Worker: workerName(c), Holder: holder, Limits: policy.Limits{Running: c.Worker.MaxRunning, RunningPerFiler: c.Worker.MaxPerFiler}, Log: m.log,
		Metrics: m.metrics.Scheduler(), Health: m.health,
	})
}

// runWorker runs a worker together with its reports, which continue until the worker has handed
// back its work in progress.
func (a *announced) runWorker(ctx context.Context, report *flow.Reporter, work func(context.Context)) {
	beat := a.m.health.Loop("reports", reportsWithin)
	defer beat.Done()
	report.Moved = beat.Moved
	d := newDraining(a.m.log, a.m.metrics.Draining(), a.changed)
	a.drain = d.drain
	a.also = func(i *flow.Instance) {
		report.InHand(i)
		d.describe(i)
	}
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var reports sync.WaitGroup
	reports.Go(func() { report.Run(reporting, progressEvery) })
	reports.Go(func() { a.run(reporting) })
	d.run(ctx, work, a.m.consumers.Moved)
	stop()
	reports.Wait()
}

func connect(c *config.Config, m *monitoring, repository backup.RepositoryID, mayTake func(context.Context) error) (*flow.Conn, *flow.Reporter, error) {
	if !c.Fleet() {
		return nil, nil, fmt.Errorf("a service is part of a fleet and needs NATS: set nats.url (BCTL_NATS): %w", backup.ErrInvalid)
	}
	m.consumers = m.health.Loop("consumers", consumersWithin)
	conn, err := open.ServiceNATS(c, workerName(c), repository, m.log, m.consumers.Moved, m.metrics.Dropped(), mayTake)
	if err != nil {
		return nil, nil, err
	}
	return conn, flow.NewReporter(conn, workerName(c)), nil
}

func workerName(c *config.Config) string {
	if c.Worker.Name != "" {
		return c.Worker.Name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// waitForIndex waits for the index, and until the repository exists in it.
func waitForIndex(ctx context.Context, c *config.Config, waits *waiting) (index.Index, backup.Repository, error) {
	idx, err := waitFor(ctx, waits, "the index", func() (index.Index, error) { return open.Index(ctx, c, false) })
	if err != nil {
		return nil, backup.Repository{}, err
	}
	repository, err := waitFor(ctx, waits, "the repository", func() (backup.Repository, error) {
		if err := idx.CheckSchema(ctx); err != nil {
			return backup.Repository{}, err
		}
		r, err := idx.Repository(ctx)
		if err == nil {
			err = repo.CheckVersion(&r)
		}
		return r, err
	})
	if err != nil {
		return nil, backup.Repository{}, errors.Join(err, idx.Close())
	}
	waits.m.dependOn(nil, idx, nil)
	return idx, repository, nil
}

// waitForCurrent waits until the store answers and the index is as new as it. A pruner may not read
// the objects that show it.
func (s *starting) waitForCurrent(ctx context.Context, role flow.Role) error {
	check := func() error {
		if s.current == nil {
			var signed *backup.Repository
			if role != flow.RolePruner {
				r, err := s.idx.Repository(ctx)
				if err != nil {
					return err
				}
				signed = &r
			}
			s.current = current.New(s.idx, s.store, signed, s.log)
		}
		return s.current.Check(ctx)
	}
	_, err := waitFor(ctx, s.waits, theStore, func() (struct{}, error) {
		err := check()
		if failed := (*store.Error)(nil); errors.As(err, &failed) {
			return struct{}{}, err
		}
		return struct{}{}, nil // the rest concerns the index
	})
	if err == nil {
		_, err = waitFor(ctx, s.waits, "the index", func() (struct{}, error) { return struct{}{}, check() })
	}
	return err
}

// leads returns the index for a service that may lead.
func (s *starting) leads() index.Index { return s.current.Index(s.clock.Index()) }

// waitForStore waits for the store.
func waitForStore(ctx context.Context, c *config.Config, waits *waiting) (*guard, error) {
	m := waits.m
	retries, g := m.metrics.Retries("store"), &guard{log: telemetry.Pair(m.log), role: waits.role}
	s, err := waitFor(ctx, waits, theStore, func() (store.Store, error) {
		return open.ServiceStore(ctx, c, false, m.log, func(err *store.Error) {
			retries.Add(err.Err)
			g.retries(err)
			waits.say(theStore, err)
		})
	})
	if err != nil {
		return nil, err
	}
	g.Store = s
	g.start()
	m.dependOn(nil, nil, g)
	return g, nil
}

// waitForCommitterKeys waits until the store delivers the repository's configuration, and returns
// the keys of a committer, and the recipients to which it seals.
func waitForCommitterKeys(ctx context.Context, c *config.Config, waits *waiting, s store.Store, idx index.Index) (keys journal.Keys, recipients []string, err error) {
	keys, err = waitFor(ctx, waits, theStore, func() (journal.Keys, error) {
		object, key, err := repo.LoadCommitter(ctx, s, idx, c.CommitterKey)
		if err != nil {
			return journal.Keys{}, err
		}
		recipients = object.Recipients
		return open.JournalKeys(&object, key)
	})
	return keys, recipients, err
}

// waitFor retries open until it succeeds, ctx is done, or the error is permanent.
func waitFor[T any](ctx context.Context, waits *waiting, what string, open func() (T, error)) (T, error) {
	for {
		v, err := open()
		if err == nil || !mayPass(err) {
			return v, err
		}
		waits.m.log.Warn("waiting for a dependency", "for", what, "error", err)
		waits.say(what, err)
		select {
		case <-ctx.Done():
			return v, context.Cause(ctx)
		case <-time.After(openAgain):
		}
	}
}

// mayPass reports whether an error at the start can be resolved without a restart: an unavailable
// dependency may recover, a repository may be created or migrated, an index may be restored from a
// newer dump, and a store may get the permissions that it lacks.
func mayPass(err error) bool {
	var refused *store.Error
	if errors.As(err, &refused) && errors.Is(refused, fs.ErrPermission) {
		return true
	}
	return errors.Is(err, backup.ErrUnavailable) || errors.Is(err, backup.ErrNoRepository) || errors.Is(err, index.ErrSchema) || errors.Is(err, repo.ErrIndexOld)
}
