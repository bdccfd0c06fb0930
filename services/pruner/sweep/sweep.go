// Package sweep is the pruner: it deletes what no snapshot needs, pass after pass.
//
// Any number of pruners may run. One of them leads during a pass, and the others wait. A pass
// begins whenever a snapshot was forgotten or has ended, a shard was retired, a restore of a
// forgotten snapshot has ended, or an operator has confirmed what the brake has stopped. One query
// shows whether any of that has happened since the last complete pass of any pruner, so an idle
// fleet costs one query per poll. While the last pass was not complete (it failed, the brake has
// stopped it, or memory did not suffice), another one begins after an interval.
//
// Between passes, a pruner sweeps the store for orphans, one section at a time: the whole store in
// about a day.
package sweep

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/process/clock"
	"github.com/bctl/bctl/internal/process/current"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// Defaults of Options.
const (
	DefaultInterval  = time.Hour
	DefaultMaxMemory = 256 // MiB
	DefaultMaxUnused = 10  // percent
	defaultPoll      = 30 * time.Second
	// sectionEvery is the time between two sections of the sweep.
	sectionEvery = 24 * time.Hour / prune.Sections
	measureEvery = 24 * time.Hour
)

// stepWithin is how long the pruner may make no progress. Its longest step reads all places of
// chunks.
const stepWithin = 2 * time.Hour

// Options are the settings of a Sweeper.
type Options struct {
	Worker    string        // name of this process, for display
	Interval  time.Duration // until the next pass after one that was not complete
	MaxMemory int           // MiB of the marks
	MaxUnused int           // percent of the stored bytes that may stay unused
	// ObjectLock: objects are locked in the store (package prune).
	ObjectLock bool
	Parity     parity.Layout // as of prune.Options
	NoParity   bool
	Poll       time.Duration // interval between two calls of Look; 0: 30 s, or Interval if that is shorter
	Log        *slog.Logger

	Metrics *telemetry.Pruner // nil: nothing is measured
	Health  *health.Process   // nil: health is not reported
	Clock   *clock.Watch      // there are no passes while it is off; nil: it is not checked
	Current *current.Watch    // nor while the index is older than its store; nil: it is not checked
	// BeforeDelete is BeforeDelete and BeforeRemove of prune.Options.
	BeforeDelete func(ctx context.Context) error
}

// Index is the part of the index that a Sweeper uses.
type Index interface {
	prune.Index
	prune.ParityIndex
	PruneWork(ctx context.Context) (index.PruneWork, error)
}

// A Sweeper prunes a repository.
type Sweeper struct {
	index  Index
	store  store.Store
	opts   Options
	holder string
	beat   *health.Beat

	done index.PruneState // as it was before the last pass
	last time.Time        // when that ended; zero: there was none, or another one is due

	swept    time.Time // when this process has swept a section
	stop     int64     // the newest of the stops that were measured
	measured time.Time // when that was
	parity   time.Time // when parity was measured; zero: it is to be measured
}

// New returns a Sweeper.
func New(idx Index, s store.Store, o Options) *Sweeper {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.MaxMemory <= 0 {
		o.MaxMemory = DefaultMaxMemory
	}
	if o.MaxUnused <= 0 {
		o.MaxUnused = DefaultMaxUnused
	}
	if o.Poll <= 0 {
		o.Poll = min(defaultPoll, o.Interval)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Metrics.MayStayUnused(float64(o.MaxUnused) / 100)
	o.Metrics.Parity().Wanted(o.Parity.Parity > 0)
	return &Sweeper{index: idx, store: s, opts: o, holder: o.Worker + "-" + rand.Text()[:8]}
}

// Run prunes until ctx is done.
func (s *Sweeper) Run(ctx context.Context) {
	s.beat = s.opts.Health.Loop("prune", stepWithin)
	defer s.beat.Done()
	for {
		s.beat.Moved()
		if err := s.Look(ctx); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("pruning failed, will retry", "error", err)
			s.opts.Metrics.Retry(err)
		}
		loop.Pause(ctx, s.opts.Poll)
		if ctx.Err() != nil {
			return
		}
	}
}

// Look makes a pass if there may be something to delete. If another pruner is making a pass, Look
// returns at once, and the next Look tries again. So it does if this machine's clock is wrong, or
// if the index is older than its store. The Watches log that.
func (s *Sweeper) Look(ctx context.Context) error {
	if err := s.opts.Clock.Check(ctx); err != nil {
		if errors.Is(err, clock.ErrOff) {
			return nil
		}
		return err
	}
	if err := s.opts.Current.Check(ctx); err != nil {
		if errors.Is(err, repo.ErrIndexOld) { // which the Watch logs
			return nil
		}
		return err
	}
	work, err := s.index.PruneWork(ctx)
	if err != nil {
		return err
	}
	s.opts.Metrics.Waiting(age(work.CondemnedSince, work.Now), age(work.RowsSince, work.Now))
	if prune.Idle(work, s.options()) {
		s.opts.Metrics.Space(work.Kept, work.Unused, 0)
		s.opts.Metrics.Parity().Left(0, 0) // or the last pass would not be complete
		return s.rest(ctx)
	}
	if !s.last.IsZero() && work.State == s.done && time.Since(s.last) < s.opts.Interval {
		return s.rest(ctx)
	}
	again, err := s.pass(ctx)
	var stopped *index.StoppedError
	switch {
	case errors.As(err, &stopped):
		if stopped.New {
			s.opts.Log.Warn("the brake has stopped pruning until operators confirm it (bctl confirm)", "stop", stopped.ID, "bytes", stopped.Bytes, "stored", stopped.OfBytes)
		}
	case errors.Is(err, prune.ErrBusy):
		s.opts.Log.Debug("another pruner is making a pass, will try again")
		s.opts.Metrics.Well(time.Now())
		return nil
	case err != nil:
		return err
	}
	s.done, s.last = work.State, time.Now()
	s.opts.Metrics.Well(s.last)
	if again {
		s.last = time.Time{}
	}
	s.parity = time.Time{}
	return s.measureParity(ctx)
}

// age returns how long something has lasted that began at since; 0: it has not begun.
func age(since, now time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since))
}

// rest does what is left to do while there is nothing to delete.
func (s *Sweeper) rest(ctx context.Context) error {
	s.opts.Metrics.Well(time.Now())
	if err := errors.Join(s.measureStopped(ctx), s.measureParity(ctx)); err != nil {
		return err
	}
	return s.section(ctx)
}

// measureStopped finds out how much would become free if the stopped snapshots were forgotten.
// Policies forget all others at once, so no others wait. The measurement takes as long as a pass.
// So it is made only when the stops have changed, at most once a day, and never while there are
// none.
func (s *Sweeper) measureStopped(ctx context.Context) error {
	stops, err := s.index.Stops(ctx)
	if err != nil {
		return err
	}
	var without []backup.SnapshotID
	latest := int64(0)
	for i := range stops {
		if stops[i].Shard != 0 {
			without, latest = append(without, stops[i].Snapshots...), max(latest, stops[i].ID)
		}
	}
	switch {
	case len(without) == 0:
		s.opts.Metrics.Stopped(0)
		s.stop = 0
		return nil
	case latest == s.stop || !s.measured.IsZero() && time.Since(s.measured) < measureEvery:
		return nil
	}
	o := s.options()
	o.DryRun = true
	now, err := prune.Run(ctx, o)
	if err != nil {
		return err
	}
	o.Without = without
	then, err := prune.Run(ctx, o)
	if err != nil {
		return err
	}
	s.opts.Metrics.Stopped(max(0, then.Deletable-now.Deletable))
	s.stop, s.measured = latest, time.Now()
	return nil
}

func (s *Sweeper) options() prune.Options {
	return prune.Options{
		Index: s.index, Store: s.store, Holder: s.holder, Log: s.opts.Log, MemoryBytes: int64(s.opts.MaxMemory) << 20, MaxUnused: float64(s.opts.MaxUnused) / 100,
		ObjectLock: s.opts.ObjectLock, Parity: s.opts.Parity, NoParity: s.opts.NoParity, BeforeDelete: s.opts.BeforeDelete, BeforeRemove: s.opts.BeforeDelete,
		Progress: func(step string) {
			s.beat.Moved()
			s.opts.Log.Debug("pruning", "step", step)
		},
	}
}

// section sweeps a section of the store if it is time to.
func (s *Sweeper) section(ctx context.Context) error {
	if !s.swept.IsZero() && time.Since(s.swept) < sectionEvery {
		return nil
	}
	swept, err := prune.Sweep(ctx, s.options())
	s.opts.Metrics.Swept(swept.Objects, swept.Orphans, swept.Bytes, swept.Unknown, swept.Unidentified)
	if err != nil && !errors.Is(err, prune.ErrBusy) {
		return err
	}
	s.swept = time.Now()
	return nil
}

// pass makes a pass. again: another one may find more at once.
func (s *Sweeper) pass(ctx context.Context) (again bool, err error) {
	began := time.Now()
	o := s.options()
	o.Found = func(r prune.Summary) { s.opts.Metrics.Space(r.KeptBytes, r.Unused, r.Deletable) }
	result, err := prune.Run(ctx, o)
	s.opts.Metrics.Deleted(result.Packs, result.Bytes, result.Versions, result.Snapshots)
	s.opts.Metrics.Thinned(result.Thinned, result.Freed, result.Copied)
	s.opts.Metrics.Locked(result.Extended, result.Locked, result.LockedBytes)
	s.opts.Metrics.Parity().Made(result.Parity.Groups, result.Parity.Bytes, result.Parity.Ended)
	if err != nil {
		return false, err
	}
	s.opts.Metrics.Parity().Left(result.Parity.Late, result.Parity.Held)
	took := time.Since(began)
	s.opts.Metrics.Passed(took)
	s.opts.Metrics.Space(result.KeptBytes, result.Unused, 0)
	if result.Packs+result.Thinned+result.Snapshots+result.Extended == 0 && result.Versions == 0 {
		s.opts.Log.Debug("nothing to prune", "seconds", took.Seconds())
		return result.Again, nil
	}
	s.opts.Log.Info("pruned", "packs", result.Packs, "bytes", result.Bytes, "thinned", result.Thinned, "freed", result.Freed, "copied", result.Copied,
		"versions", result.Versions, "snapshots", result.Snapshots, "kept", result.KeptBytes, "unused", result.Unused, "extended", result.Extended, "locked", result.Locked, "seconds", took.Seconds())
	return result.Again, nil
}
