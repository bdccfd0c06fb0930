package cli

import (
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// interrupted is the displayed state of a snapshot that the index has as running, but that no
// process on this machine is making. The next backup of the shard, or bctl cancel, ends it. In a
// fleet there is no such state, because the services continue.
const interrupted backup.State = "interrupted"

// markInterrupted sets the state of the snapshots among found that are interrupted. If this cannot
// be determined, they stay running.
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
		// It may have ended, and its process with it, since the index was read.
		if now, err := c.Snapshot(ctx, s.ID); err == nil && now.State == backup.Running {
			s.State = interrupted
		}
	}
}

// shownState returns the displayed state of one snapshot.
func (a *app) shownState(ctx context.Context, c index.Catalog, s backup.Snapshot) backup.State {
	one := []backup.Snapshot{s}
	a.markInterrupted(ctx, c, one)
	return one[0].State
}

// A stateFilter is the value of --state. The index does not know which of the running snapshots are
// interrupted.
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

// indexed returns the states to request from the index.
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

// tellsApart reports whether the filter excludes some snapshots that the index has as running.
func (f stateFilter) tellsApart() bool {
	return slices.Contains(f, backup.Running) != slices.Contains(f, interrupted)
}

// wanted returns the snapshots in found that the filter includes.
func (f stateFilter) wanted(found []backup.Snapshot) []backup.Snapshot {
	return slices.DeleteFunc(found, func(s backup.Snapshot) bool { return !slices.Contains(f, s.State) })
}
