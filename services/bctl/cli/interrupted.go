package cli

import (
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// interrupted is how a snapshot is shown that the index has as running, and that no process on this machine makes. The
// next backup of the shard, or bctl cancel, ends it. In a fleet there is no such state: the services go on.
const interrupted backup.State = "interrupted"

// markInterrupted gives the snapshots among found that are interrupted that state. Where it cannot be known, they stay running.
func (a *app) markInterrupted(ctx context.Context, c index.Catalog, found []backup.Snapshot) {
	if _, local := a.cfg.IndexPath(); !local || a.cfg.Fleet() {
		return
	}
	locks, err := a.cfg.LockDir()
	if err != nil {
		return
	}
	for n := range found {
		s := &found[n]
		if s.State != backup.Running {
			continue
		}
		if made, err := embedded.IsBackingUp(locks, s.Shard); err != nil || made {
			continue
		}
		// It may have ended since the index was asked, and its process with it.
		if now, err := c.Snapshot(ctx, s.ID); err == nil && now.State == backup.Running {
			s.State = interrupted
		}
	}
}

// shownState is the state of one snapshot.
func (a *app) shownState(ctx context.Context, c index.Catalog, s backup.Snapshot) backup.State {
	one := []backup.Snapshot{s}
	a.markInterrupted(ctx, c, one)
	return one[0].State
}

// A stateFilter is --state. The index does not know which of the running snapshots are interrupted.
type stateFilter []backup.State

func parseStates(names []string) (states stateFilter, err error) {
	known := []backup.State{backup.Running, interrupted, backup.Committed, backup.Failed, backup.Deleting}
	for _, name := range names {
		if !slices.Contains(known, backup.State(name)) {
			return nil, usage("--state %s is not running, interrupted, committed, failed or deleting", name)
		}
		states = append(states, backup.State(name))
	}
	return states, nil
}

// indexed are the states to ask the index for.
func (f stateFilter) indexed() (states []backup.State) {
	for _, s := range f {
		if s == interrupted {
			s = backup.Running
		}
		if !slices.Contains(states, s) {
			states = append(states, s)
		}
	}
	return states
}

// tellsApart reports whether some of what the index has as running is not wanted.
func (f stateFilter) tellsApart() bool {
	return slices.Contains(f, backup.Running) != slices.Contains(f, interrupted)
}

// wanted returns those of found that are wanted.
func (f stateFilter) wanted(found []backup.Snapshot) []backup.Snapshot {
	return slices.DeleteFunc(found, func(s backup.Snapshot) bool { return !slices.Contains(f, s.State) })
}
