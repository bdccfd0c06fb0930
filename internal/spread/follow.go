package spread

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/restore"
)

const (
	// keysEvery is the interval between searches for tasks without keys.
	keysEvery = 100 * time.Millisecond
	// lookEvery is the interval between looks at the progress.
	lookEvery = 500 * time.Millisecond
	// keysAtATime bounds the tasks whose keys are looked up concurrently.
	keysAtATime = 4
	// readingLease is how long a restore keeps its snapshot after the operator's process has died,
	// if no restorer works on it.
	readingLease = 10 * time.Minute
	renewReading = time.Minute
)

// An Index is the part of the index that the operator's process uses.
type Index interface {
	index.Restoring
	restore.Catalog
	BeginReading(ctx context.Context, reading backup.PackID, id backup.SnapshotID, lease time.Duration) error
}

// Keep keeps a restore's snapshot from being forgotten for some minutes.
func Keep(ctx context.Context, x Index, r *index.Restore) error {
	return x.BeginReading(ctx, backup.PackID(r.ID), r.Snapshot, readingLease)
}

// maxNamed bounds the problems that are named in all.
const maxNamed = 100_000

// Find returns the restore to a target at a site that has not ended, or whose result was not read.
func Find(ctx context.Context, x index.Restoring, site, target string) (r index.Restore, ok bool, err error) {
	all, err := x.Restores(ctx)
	for _, r := range all {
		if r.Site == site && r.Target == target {
			return r, true, err
		}
	}
	return r, false, err
}

// ErrEnded reports that the restore is no longer in the index.
var ErrEnded = errors.New("the restore was ended")

// A Watcher is told how a restore goes on.
type Watcher interface {
	// Look is called about twice a second, with the restorers that see another target.
	Look(r *index.Restore, refused []index.Refusal)
	// Problem is called at the end, for each problem.
	Problem(p backup.Problem)
}

// Follow gives keys to restorers until the restore has ended, and returns what it did. d is what an
// ordinary restore needs. It deletes the restore from the index when its result is known.
func Follow(ctx context.Context, x Index, d restore.Deps, of index.Restore, w Watcher) (restore.Summary, error) {
	request, err := DecodeRequest(of.Request)
	if err != nil {
		return restore.Summary{}, err
	}
	if err := Keep(ctx, x, &of); err != nil {
		return restore.Summary{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	following, stop := context.WithCancel(gctx)
	defer stop()
	keys := newKeyring(d, x, of, string(request.Path))
	g.Go(func() error { return giveKeys(following, x, keys, of.ID) })
	g.Go(func() error {
		loop.Every(following, renewReading, func() { _ = Keep(following, x, &of) }) // the next call may succeed
		return nil
	})
	g.Go(func() error {
		defer stop()
		return await(gctx, x, of.ID, w)
	})
	if err := g.Wait(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return restore.Summary{}, err
	}
	return conclude(ctx, x, of.ID, w)
}

// giveKeys gives keys to the attempts that have none, until ctx is done.
func giveKeys(ctx context.Context, x Index, keys *keyring, id index.RestoreID) error {
	for ; ctx.Err() == nil; loop.Pause(ctx, keysEvery) {
		tasks, err := x.TasksWithoutKeys(ctx, id, keysAtATime)
		if err != nil {
			if err := mayPass(ctx, err); err != nil {
				return err
			}
			continue
		}
		var g errgroup.Group
		for i := range tasks {
			g.Go(func() error {
				sealed, err := keys.sealed(ctx, &tasks[i])
				if err == nil {
					err = x.GiveKeys(ctx, tasks[i].Row, tasks[i].Attempt, sealed)
				}
				return mayPass(ctx, err)
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// mayPass returns nil if the error may pass, or is due to the end of ctx.
func mayPass(ctx context.Context, err error) error {
	if ctx.Err() == nil && !errors.Is(err, backup.ErrUnavailable) {
		return err
	}
	return nil
}

// await returns when the restore has ended.
func await(ctx context.Context, x Index, id index.RestoreID, w Watcher) error {
	for ; ; loop.Pause(ctx, lookEvery) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r, refused, err := look(ctx, x, id)
		if err != nil {
			if err := mayPass(ctx, err); err != nil {
				return err
			}
			continue
		}
		w.Look(r, refused)
		if r.Failed != "" {
			return fmt.Errorf("a restorer has failed %d times: %s", index.MaxRestoreFailures, r.Failed)
		}
		if r.Ended() {
			return nil
		}
	}
}

func look(ctx context.Context, x Index, id index.RestoreID) (*index.Restore, []index.Refusal, error) {
	all, err := x.Restores(ctx)
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		if all[i].ID == id {
			refused, err := x.Refusals(ctx, id)
			return &all[i], refused, err
		}
	}
	return nil, nil, ErrEnded
}

// conclude sums up the results of all tasks, and deletes the restore. While the index does not
// answer, it tries again.
func conclude(ctx context.Context, x Index, id index.RestoreID, w Watcher) (restore.Summary, error) {
	for ; ; loop.Pause(ctx, lookEvery) {
		sum, problems, err := results(ctx, x, id)
		if err == nil {
			err = x.EndRestore(ctx, id)
		}
		if err == nil {
			for _, p := range problems {
				w.Problem(p)
			}
			return sum, nil
		}
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
		if err := mayPass(ctx, err); err != nil {
			return sum, err
		}
	}
}

// results reads the results of all tasks.
func results(ctx context.Context, x Index, id index.RestoreID) (sum restore.Summary, problems []backup.Problem, err error) {
	unnamed, tasks := int64(0), 0
	err = eachTask(ctx, x, id, func(t *index.RestoreTask) error {
		if tasks++; t.Kind == index.RestoreBegin {
			return nil
		}
		if !t.Settled {
			return fmt.Errorf("task %d of a restore that has ended is not settled: %w", t.Row, backup.ErrCorrupt)
		}
		r, err := DecodeResult(t.Result)
		if err != nil {
			return err
		}
		sum.Add(&r.Summary)
		for _, p := range r.Problems {
			if len(problems) == maxNamed {
				break
			}
			unnamed--
			problems = append(problems, backup.Problem{Path: string(p.Path), Op: p.Op, Err: p.Err})
		}
		unnamed += r.Summary.Problems
		return nil
	})
	switch {
	case err != nil:
		return sum, nil, err
	case tasks == 0:
		return sum, nil, ErrEnded
	}
	if sum.OwnersNotSet > 0 {
		sum.Problems++
		problems = append(problems, restore.OwnersProblem(sum.OwnersNotSet))
	}
	if unnamed > 0 {
		problems = append(problems, backup.Problem{Op: "restore", Err: fmt.Sprintf("%d further problems are not named here; an ordinary bctl restore to the same target names all", unnamed)})
	}
	return sum, problems, nil
}
