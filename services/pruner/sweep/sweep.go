// Package sweep is the pruner: it deletes what no snapshot needs, pass after pass.
//
// Any number of pruners may run. One of them leads during a pass, and the others wait. A pass
// begins at once, and then whenever a snapshot was forgotten or has ended, or an operator has
// confirmed what the brake has stopped, which the index reports cheaply. Also, one begins after an
// interval, because a hold, a restore in progress or a filter's error may have kept something.
//
// Between passes, a pruner sweeps the store for orphans: one section at a time, so that it has seen
// all of the store after about a day.
package sweep

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/prune"
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
)

// stepWithin is how long the pruner may make no progress. Its longest step reads all places of
// chunks.
const stepWithin = 2 * time.Hour

// Options are the settings of a Sweeper.
type Options struct {
	Worker    string        // name of this process, for display
	Interval  time.Duration // maximum time between two passes
	MaxMemory int           // MiB of the marks
	MaxUnused int           // percent of the stored bytes that may stay unused
	// ObjectLock: objects are locked in the store (package prune).
	ObjectLock bool
	Poll       time.Duration // interval of the cheap test; 0: 30 s, or Interval if that is shorter
	Log        *slog.Logger

	Metrics *telemetry.Pruner // nil: nothing is measured
	Health  *health.Process   // nil: health is not reported
}

// A Sweeper prunes a repository.
type Sweeper struct {
	index  prune.Index
	store  store.Store
	opts   Options
	holder string
	beat   *health.Beat

	done index.PruneWork // as it was before the last complete pass
	last time.Time       // when that ended

	swept time.Time // when this process has swept a section
}

// New returns a Sweeper.
func New(idx prune.Index, s store.Store, o Options) *Sweeper {
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

// Look makes a pass if there may be something to delete. A pass of another pruner is none of this
// one: it looks again later.
func (s *Sweeper) Look(ctx context.Context) error {
	work, err := s.index.PruneWork(ctx)
	if err != nil {
		return err
	}
	age := time.Duration(0)
	if !work.Deleting.IsZero() {
		age = max(0, work.Now.Sub(work.Deleting))
	}
	s.opts.Metrics.Condemned(age)
	if !s.last.IsZero() && work.Forgotten == s.done.Forgotten && work.Ended == s.done.Ended && work.Confirmed == s.done.Confirmed && time.Since(s.last) < s.opts.Interval {
		s.opts.Metrics.Well(time.Now())
		return s.section(ctx)
	}
	var stopped *index.StoppedError
	switch err := s.pass(ctx); {
	case errors.As(err, &stopped):
		if stopped.New {
			s.opts.Log.Warn("the brake has stopped pruning until operators confirm it (bctl confirm)", "stop", stopped.ID, "bytes", stopped.Bytes, "stored", stopped.OfBytes)
		}
	case errors.Is(err, prune.ErrBusy):
		s.opts.Log.Debug("another pruner runs, will look again")
		s.opts.Metrics.Well(time.Now())
		return nil
	case err != nil:
		return err
	}
	s.done, s.last = work, time.Now()
	s.opts.Metrics.Well(s.last)
	return nil
}

func (s *Sweeper) options() prune.Options {
	return prune.Options{
		Index: s.index, Store: s.store, Holder: s.holder, Log: s.opts.Log, MemoryBytes: int64(s.opts.MaxMemory) << 20, MaxUnused: float64(s.opts.MaxUnused) / 100,
		ObjectLock: s.opts.ObjectLock,
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

func (s *Sweeper) pass(ctx context.Context) error {
	began := time.Now()
	result, err := prune.Run(ctx, s.options())
	s.opts.Metrics.Deleted(result.Packs, result.Bytes, result.Versions, result.Snapshots)
	s.opts.Metrics.Thinned(result.Thinned, result.Freed, result.Copied)
	s.opts.Metrics.Locked(result.Extended, result.Locked, result.LockedBytes)
	if err != nil {
		return err
	}
	took := time.Since(began)
	s.opts.Metrics.Passed(took, result.KeptBytes, result.Unused)
	if result.Packs+result.Thinned+result.Snapshots+result.Extended == 0 && result.Versions == 0 {
		s.opts.Log.Debug("nothing to prune", "seconds", took.Seconds())
		return nil
	}
	s.opts.Log.Info("pruned", "packs", result.Packs, "bytes", result.Bytes, "thinned", result.Thinned, "freed", result.Freed, "copied", result.Copied,
		"versions", result.Versions, "snapshots", result.Snapshots, "kept", result.KeptBytes, "unused", result.Unused, "extended", result.Extended, "locked", result.Locked, "seconds", took.Seconds())
	return nil
}
