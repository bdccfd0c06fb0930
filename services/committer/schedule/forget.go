package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
)

const (
	// forgetEvery is how often the rules of a policy are applied to a shard without a new snapshot.
	forgetEvery = 24 * time.Hour
	// forgetFor is how long a tick applies rules before it leaves the other shards to the next
	// tick.
	forgetFor = 2 * time.Second
)

// An applied is the state of a shard in which the rules of its policy were applied last.
type applied struct {
	index.Binding
	good backup.SnapshotID
	at   time.Time
}

// forget forgets the snapshots that the policies of shards do not keep: of each shard after a new
// snapshot, after a change of its policy, and once a day. A policy that is paused forgets nothing.
func (s *Scheduler) forget(ctx context.Context, term index.Term) error {
	if len(s.ids(forgets)) == 0 {
		s.applied = nil
		return nil
	}
	shards, err := s.index.ListShards(ctx, index.ShardFilter{})
	if err != nil {
		return err
	}
	now, err := s.index.Clock(ctx)
	if err != nil {
		return err
	}
	allowed, err := s.allowed(ctx)
	if err != nil {
		return err
	}
	was := s.applied
	s.applied = make(map[backup.ShardID]applied, len(was))
	began := time.Now()
	braked := newStops{}
	defer func() { s.logStops(braked) }()
	var decider *forget.Decider
	for i := range shards {
		shard := &shards[i]
		done, known := was[shard.ID]
		if known {
			s.applied[shard.ID] = done
		}
		t, bound := s.parsed[shard.Plan.Policy]
		next := applied{shard.Plan.Binding, shard.LastGood, now}
		if !bound || !forgets(t) || t.Revision != next.Revision || known && !done.outdated(next) && !allowed[shard.ID] || time.Since(began) > forgetFor {
			continue
		}
		if decider == nil {
			if decider, err = forget.New(ctx, s.index); err != nil {
				return err
			}
		}
		s.beat.Moved()
		switch err := braked.add(shard, t, s.forgetOf(ctx, term, decider, shard, t)); {
		case errors.Is(err, index.ErrNotLeading), errors.Is(err, backup.ErrUnavailable), err != nil && ctx.Err() != nil:
			return err
		case errors.Is(err, index.ErrNotDue): // the next tick applies the changed policy
			continue
		case err != nil:
			s.log.Error("applying the retention of a policy failed", "filer", shard.Filer.Name, "shard", shard.Name, "policy", t.Name, "error", err)
			s.opts.Metrics.Retry(err)
		}
		s.applied[shard.ID] = next
	}
	return nil
}

func forgets(t timetable) bool { return !t.Paused && t.Retention.HasRules() }

// outdated reports whether the rules have to be applied again. A time in the future is that of a
// clock that was ahead.
func (a applied) outdated(next applied) bool {
	return a.Binding != next.Binding || a.good != next.good || next.at.Sub(a.at).Abs() >= forgetEvery
}

// forgetOf applies the rules of a policy to one shard.
func (s *Scheduler) forgetOf(ctx context.Context, term index.Term, decider *forget.Decider, shard *index.ShardStatus, t timetable) error {
	zone, err := time.LoadLocation(t.TimeZone)
	if err != nil {
		return err
	}
	fates, err := decider.Shard(ctx, shard, forget.Rule{Retention: t.Retention, Zone: zone})
	if err != nil {
		return err
	}
	by := forget.ByPolicy(t.Name)
	d := forget.Deletion(fates, shard, by)
	if err := s.index.MayDelete(ctx, d); err != nil {
		return err
	}
	gone := 0
	for i := range fates {
		f := &fates[i]
		if f.Keep {
			continue
		}
		s.beat.Moved()
		err := s.index.ForgetDue(ctx, term, shard.Plan.Binding, f.ID, by, "rules: "+t.Retention.String())
		switch {
		case errors.Is(err, index.ErrKept), errors.Is(err, backup.ErrNotFound): // something has begun to need it, or it was forgotten
			s.log.Debug("snapshot not forgotten", "snapshot", f.ID.Short(), "reason", err)
		case err != nil:
			return fmt.Errorf("forget snapshot %s: %w", f.ID.Short(), err)
		default:
			gone++
		}
	}
	if gone > 0 {
		s.log.Info("snapshots forgotten by a policy", "filer", shard.Filer.Name, "shard", shard.Name, "policy", t.Name, "snapshots", gone)
	}
	if len(d.Snapshots) == 0 {
		return nil
	}
	return s.index.Deleted(ctx, d, true)
}

// newStops are the stops of the brake that are new, by policy: a policy that was changed may be
// stopped for each of its shards.
type newStops map[string]*stopsOf

type stopsOf struct {
	timetable
	shard         *index.ShardStatus // the first one
	stop          int64
	shards        int
	snapshots, of int
}

// add records a new stop, and returns other errors.
func (n newStops) add(shard *index.ShardStatus, t timetable, err error) error {
	var stopped *index.StoppedError
	if !errors.As(err, &stopped) {
		return err
	}
	if stopped.New {
		of := n[t.Name]
		if of == nil {
			of = &stopsOf{timetable: t, shard: shard, stop: stopped.ID}
			n[t.Name] = of
		}
		of.shards, of.snapshots, of.of = of.shards+1, of.snapshots+len(stopped.Snapshots), of.of+stopped.OfSnapshots
	}
	return nil
}

// logStops logs new stops: one line per policy, which names the first shard and its stop.
func (s *Scheduler) logStops(braked newStops) {
	for _, of := range braked {
		s.log.Warn("the brake has stopped a policy until operators confirm it (bctl confirm)", "policy", of.Name, "shards", of.shards,
			"filer", of.shard.Filer.Name, "shard", of.shard.Name, "stop", of.stop, "snapshots", of.snapshots, "of", of.of)
	}
}

// allowed returns the shards of which operators have confirmed a stop.
func (s *Scheduler) allowed(ctx context.Context) (map[backup.ShardID]bool, error) {
	stops, err := s.index.Stops(ctx)
	allowed := map[backup.ShardID]bool{}
	for i := range stops {
		if stops[i].Allowed() {
			allowed[stops[i].Shard] = true
		}
	}
	return allowed, err
}
