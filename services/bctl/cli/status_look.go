package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
)

const (
	// ofLate is how long a failed snapshot is shown, unless its shard has had a good one since.
	ofLate = 24 * time.Hour
	// maxFailed is the maximum number of failed snapshots that are requested.
	maxFailed = 500
)

// A failure is a shard whose newest snapshots have failed.
type failure struct {
	backup.Snapshot     // the newest
	times           int // failures since its last good snapshot
}

// looked holds the answers of the index and NATS.
type looked struct {
	crew    crew
	running []backup.Snapshot
	failed  []backup.Snapshot
	work    []index.Work
	filers  []index.FilerStatus
	slots   map[string]int // running snapshots of each site, of all filers
	shards  []index.ShardStatus
	due     []nextRun
	// policies are those of the fleet, if all of its filers are shown.
	policies []backup.Policy
	stops    []*stopOf
	holds    []index.Hold
	purges   []index.PurgeState
	waits    prune.Backlog
	scrub    index.Scrub
	restores []index.Restore // if all filers are shown
}

// look queries the index and NATS concurrently. The number of queries does not depend on the number
// of running snapshots.
func (c *statusCommand) look(ctx context.Context, i index.Index) (*overview, error) {
	now, err := i.Clock(ctx)
	if err != nil {
		return nil, err
	}
	var l looked
	group, asking := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		l.running, err = i.Snapshots(asking, index.SnapshotFilter{Filer: c.filer, States: onlyRunning})
		return err
	})
	group.Go(func() (err error) {
		l.failed, err = i.Snapshots(asking, index.SnapshotFilter{Filer: c.filer, States: []backup.State{backup.Failed}, Since: now.Add(-ofLate), Limit: maxFailed})
		return err
	})
	group.Go(func() (err error) { l.work, err = i.InHand(asking, now, maxWork); return err })
	group.Go(func() (err error) {
		if l.filers, err = i.ListFilers(asking, index.FilerFilter{Name: c.filer}); err != nil {
			return err
		}
		l.crew = c.muster.ask(asking, sitesOf(l.filers))
		if l.crew.asked && l.crew.err == nil && len(l.crew.of(flow.RolePruner, "")) == 0 {
			if l.waits, err = waitsForPruner(asking, i); err != nil {
				return err
			}
		}
		all := l.filers
		if c.filer != "" { // others compete for the slots of its site
			if all, err = i.ListFilers(asking, index.FilerFilter{}); err != nil {
				return err
			}
		}
		l.slots = slotsOf(all)
		return nil
	})
	group.Go(func() (err error) {
		l.shards, err = i.ListShards(asking, index.ShardFilter{Filer: c.filer})
		return err
	})
	group.Go(func() error {
		stops, err := i.Stops(asking)
		if err != nil {
			return err
		}
		l.stops, err = describeStops(asking, i, stops)
		return err
	})
	group.Go(func() (err error) { l.holds, err = i.Holds(asking); return err })
	group.Go(func() (err error) { l.purges, err = pendingPurges(asking, i); return err })
	group.Go(func() (err error) { l.scrub, err = i.Scrub(asking); return err })
	group.Go(func() error { return c.lookAtRestores(asking, i, &l) })
	if c.app.cfg.Fleet() { // on one machine, policies have no effect
		group.Go(func() error { return c.lookAhead(asking, i, &l, now) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	c.app.markInterrupted(ctx, i, l.running)
	s := newOverview(&l, now)
	if err := s.expect(ctx, i); err != nil {
		return nil, err
	}
	return s, nil
}

func (c *statusCommand) lookAtRestores(ctx context.Context, i index.Index, l *looked) (err error) {
	if c.filer == "" {
		l.restores, err = i.Restores(ctx)
	}
	return err
}

// lookAhead queries what the scheduler will do.
func (c *statusCommand) lookAhead(ctx context.Context, i index.Index, l *looked, now time.Time) (err error) {
	if l.due, err = nextRuns(ctx, i, c.filer, now); err == nil && c.filer == "" {
		l.policies, err = i.ListPolicies(ctx)
	}
	return err
}

// newOverview combines the answers.
func newOverview(l *looked, now time.Time) *overview {
	s := &overview{
		at: now, crew: &l.crew, slots: l.slots, heardAt: l.crew.heard, silent: silentWorkers(l.crew.services), fleet: l.crew.asked,
		restores: sharedRestores(l.restores, now), cut: len(l.work) == maxWork, filers: map[string]*index.FilerStatus{}, stalled: map[filerWork]int{},
	}
	byID := make(map[backup.SnapshotID]*inProgress, len(l.running))
	for n := range l.running {
		p := &inProgress{Snapshot: l.running[n], at: now}
		byID[p.ID] = p
		s.running = append(s.running, p)
	}
	takeReadings(l.crew.services, byID)
	for _, w := range l.work {
		if p := byID[w.Snapshot]; p != nil && p.State != interrupted { // no process has it in progress
			s.assigned(p, w)
		}
	}
	for n := range l.filers {
		f := &l.filers[n]
		s.filers[f.Name] = f
		if f.Running > 0 && isSpared(f) { // otherwise its latency is that of an earlier snapshot
			s.spared = append(s.spared, *f)
		}
	}
	cover := coverageOf(l.shards, l.policies)
	s.lacks = slices.Concat(l.crew.lacks(sitesOf(l.filers)), l.crew.lacksPruner(&l.waits), alarmed(l.holds, l.shards), braked(l.stops, s.filers), purgesPending(l.purges, l.shards), lacksProofs(&l.scrub), lacksRestorers(s.restores), cover.lacksPolicies())
	for _, p := range s.running {
		p.still = s.standsStill(p)
		p.full = p.BatchesSettled < p.BatchesAnnounced && l.crew.storeFull(backup.SiteName(p.Filer.Site))
	}
	s.due = slices.DeleteFunc(l.due, func(r nextRun) bool { return r.state == "running" || r.due.After(now) })
	s.failed = failures(l.failed, l.shards)
	return s
}

// alarmed warns of the shards whose files look encrypted, until somebody has acknowledged that.
func alarmed(holds []index.Hold, shards []index.ShardStatus) (list []lack) {
	for _, h := range holds {
		n := slices.IndexFunc(shards, func(s index.ShardStatus) bool { return s.ID == h.Shard })
		if h.Alarm == (backup.SnapshotID{}) || n < 0 {
			continue
		}
		list = append(list, lack{What: "alarm", Warns: true, Text: fmt.Sprintf("files of %s %s look encrypted: %s (bctl churn %s)",
			display(shards[n].Filer.Name), display(shards[n].Name), display(h.Reason), h.Alarm.Short())})
	}
	return list
}

// braked warns of the deletions that wait for operators: those of the repository, and of shards of
// these filers.
func braked(stops []*stopOf, filers map[string]*index.FilerStatus) (list []lack) {
	for _, g := range groupStops(stops) {
		all := len(g.stops)
		g.stops = slices.DeleteFunc(g.stops, func(s *stopOf) bool { return !s.Waits() || s.Shard != 0 && filers[s.filer] == nil })
		if len(g.stops) == 0 {
			continue
		}
		by, how := "", fmt.Sprintf("bctl confirm %d", g.stops[0].ID)
		switch {
		case len(g.stops) < all && all > 1: // it would confirm those of other filers, too
			by, how = " by policy "+display(g.policy), "bctl confirm ls --policy "+display(g.policy)
		case all > 1:
			by, how = " by policy "+display(g.policy), "bctl confirm --policy "+display(g.policy)
		}
		list = append(list, lack{What: "brake", Text: fmt.Sprintf("deletion of %s of %s%s %s (%s)", g.what(), g.where(), by, g.state(), how), Warns: true})
	}
	return list
}

// slotsOf returns the number of running snapshots of each site.
func slotsOf(filers []index.FilerStatus) map[string]int {
	slots := map[string]int{}
	for n := range filers {
		slots[backup.SiteName(filers[n].Site)] += filers[n].Running
	}
	return slots
}

// sitesOf returns the sites with filers to back up.
func sitesOf(filers []index.FilerStatus) (sites []string) {
	for n := range filers {
		if f := &filers[n]; f.Shards > 0 || f.Running > 0 {
			sites = append(sites, backup.SiteName(f.Site))
		}
	}
	slices.Sort(sites)
	return slices.Compact(sites)
}

// assigned records work that is with a worker or queued.
func (s *overview) assigned(p *inProgress, w index.Work) {
	p.work = append(p.work, w)
	role, of := roleOf(&w), &p.read
	if role == flow.RoleWalker {
		of = &p.tasks
	}
	of.add(&w)
	if s.isSilent(&w) != nil {
		p.lost++
	}
	if !w.Stalled.IsZero() {
		s.stalled[filerWork{p.Filer.Name, role}]++
	}
}

// expect requests the counts of the previous snapshots.
func (s *overview) expect(ctx context.Context, i index.Index) error {
	ids := make([]backup.SnapshotID, len(s.running))
	for n, p := range s.running {
		ids[n] = p.ID
	}
	base, err := i.BaseCounts(ctx, ids)
	for _, p := range s.running {
		p.base, p.known = base[p.ID]
	}
	return err
}

// failures returns the shards that have failed since their last good snapshot, the latest failure
// first.
func failures(failed []backup.Snapshot, shards []index.ShardStatus) (list []failure) {
	good := make(map[backup.ShardID]backup.SnapshotNumber, len(shards))
	for n := range shards {
		good[shards[n].ID] = shards[n].Number
	}
	at := map[backup.ShardID]int{}
	for n := range failed { // oldest first
		f := &failed[n]
		last, ok := good[f.Shard.ID]
		if !ok || f.Number < last { // it is retired, or has had a good one since
			continue
		}
		if n, ok := at[f.Shard.ID]; ok {
			list[n].Snapshot = *f
			list[n].times++
			continue
		}
		at[f.Shard.ID] = len(list)
		list = append(list, failure{*f, 1})
	}
	slices.SortStableFunc(list, func(a, b failure) int { return cmp.Compare(b.Ended.UnixNano(), a.Ended.UnixNano()) })
	return list
}
