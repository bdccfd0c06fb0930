package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/reader/read"
	"github.com/bctl/bctl/services/walker/walk"
)

// The services of a fleet may start in any order, and before what they depend
// on: each waits for what is not there yet, and says what it waits for.

const (
	openAgain     = 2 * time.Second
	progressEvery = time.Second
)

// A Runner runs one service until ctx is done, and then stops it gracefully.
type Runner func(ctx context.Context, c *config.Config, log *slog.Logger) error

// RunWalker runs a walker.
func RunWalker(ctx context.Context, c *config.Config, log *slog.Logger) error {
	idx, _, err := waitForIndex(ctx, c, log)
	if err != nil {
		return err
	}
	defer idx.Close()
	conn, report, err := connect(c, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	w := walk.New(conn, idx, posix.New(posix.Options{}), report, walk.Options{
		Worker: workerName(c), Site: c.Worker.Site, Tasks: c.Worker.Tasks, Directories: c.Worker.Directories,
		Grain: c.Worker.Grain, StallAfter: c.Worker.StallAfter, StopTimeout: c.Worker.StopTimeout, Log: log,
	})
	log.Info("walker started", "worker", workerName(c))
	runWithReports(ctx, report, w.Run)
	log.Info("walker stopped", "worker", workerName(c))
	return nil
}

// RunReader runs a reader.
func RunReader(ctx context.Context, c *config.Config, log *slog.Logger) error {
	idx, repository, err := waitForIndex(ctx, c, log)
	if err != nil {
		return err
	}
	defer idx.Close()
	key, err := repo.ReadWorkerKey(c.WorkerKey, repository.ID)
	if err != nil {
		return err
	}
	s, err := waitForStore(ctx, c, log)
	if err != nil {
		return err
	}
	defer s.Close()
	conn, report, err := connect(c, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := read.New(read.Parts{
		Conn: conn, Index: idx, Source: posix.New(posix.Options{}), Store: s, Repository: repository, Key: key, Report: report,
	}, read.Options{
		Worker: workerName(c), Site: c.Worker.Site, Batches: c.Worker.Batches, InHand: c.Worker.InHand, Workers: c.Worker.Workers,
		Linger: c.Worker.Linger, StallAfter: c.Worker.StallAfter, StopTimeout: c.Worker.StopTimeout, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("reader started", "worker", workerName(c), "store", s.String())
	runWithReports(ctx, report, r.Run)
	log.Info("reader stopped", "worker", workerName(c))
	return nil
}

// RunCommitter runs a committer.
func RunCommitter(ctx context.Context, c *config.Config, log *slog.Logger) error {
	idx, repository, err := waitForIndex(ctx, c, log)
	if err != nil {
		return err
	}
	defer idx.Close()
	sealer, err := seal.NewSealer(repository.Recipients)
	if err != nil {
		return err
	}
	s, err := waitForStore(ctx, c, log)
	if err != nil {
		return err
	}
	defer s.Close()
	conn, _, err := connect(c, log)
	if err != nil {
		return err
	}
	defer conn.Close()
	log.Info("committer started", "worker", workerName(c), "store", s.String())
	commit.New(commit.Parts{Conn: conn, Index: idx, Store: s, Sealer: sealer}, commit.Options{
		Worker: workerName(c), Lease: c.Worker.Lease, QueueLease: c.Worker.QueueLease, Poll: c.Worker.Poll, Queued: c.Worker.Queued,
		StopTimeout: c.Worker.StopTimeout, Log: log,
	}).Run(ctx)
	log.Info("committer stopped", "worker", workerName(c))
	return nil
}

// runWithReports runs a service together with its reports, which go on until
// the service has handed back what it had in hand.
func runWithReports(ctx context.Context, report *flow.Reporter, run func(context.Context)) {
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var reports sync.WaitGroup
	reports.Go(func() { report.Run(reporting, progressEvery) })
	run(ctx)
	stop()
	reports.Wait()
}

func connect(c *config.Config, log *slog.Logger) (*flow.Conn, *flow.Reporter, error) {
	if !c.Fleet() {
		return nil, nil, fmt.Errorf("a service is part of a fleet and needs NATS: set nats.url (BCTL_NATS): %w", backup.ErrInvalid)
	}
	conn, err := ConnectNATS(c, workerName(c), log)
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

// waitForIndex waits for the index, and for somebody to have made the
// repository in it.
func waitForIndex(ctx context.Context, c *config.Config, log *slog.Logger) (index.Index, backup.Repository, error) {
	idx, err := waitFor(ctx, log, "the index", func() (index.Index, error) { return OpenIndex(ctx, c, false) })
	if err != nil {
		return nil, backup.Repository{}, err
	}
	r, err := waitFor(ctx, log, "the repository", func() (backup.Repository, error) {
		if err := idx.CheckSchema(ctx); err != nil {
			return backup.Repository{}, err
		}
		return idx.Repository(ctx)
	})
	if err != nil {
		return nil, r, errors.Join(err, idx.Close())
	}
	return idx, r, nil
}

// waitForStore waits for the store.
func waitForStore(ctx context.Context, c *config.Config, log *slog.Logger) (store.Store, error) {
	return waitFor(ctx, log, "the store", func() (store.Store, error) { return OpenStore(ctx, c, false, log) })
}

// waitFor tries until it works, ctx is done, or the error is one that will stay.
func waitFor[T any](ctx context.Context, log *slog.Logger, what string, open func() (T, error)) (T, error) {
	for {
		v, err := open()
		if err == nil || !mayPass(err) {
			return v, err
		}
		log.Warn("waiting for "+what, "error", err)
		select {
		case <-ctx.Done():
			return v, context.Cause(ctx)
		case <-time.After(openAgain):
		}
	}
}

// mayPass reports whether an error at the start is one that others will mend:
// what is down comes up, and a repository is made or migrated.
func mayPass(err error) bool {
	return errors.Is(err, backup.ErrUnavailable) || errors.Is(err, backup.ErrNoRepository) || errors.Is(err, index.ErrSchema)
}
