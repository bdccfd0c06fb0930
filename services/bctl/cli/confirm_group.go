package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
)

// A policy that was changed may be stopped for each of its shards. These stops are shown, and can
// be confirmed, together.

// A stopGroup is stops of one policy in the same state, or one other stop.
type stopGroup struct {
	policy string // "" if it is another stop
	stops  []*stopOf
}

// groupStops groups stops, in the order of their first ones.
func groupStops(stops []*stopOf) (groups []*stopGroup) {
	type key struct{ policy, state string }
	by := map[key]*stopGroup{}
	for _, s := range stops {
		of := key{forget.PolicyOf(&s.Deletion), s.state()}
		if g := by[of]; g != nil && of.policy != "" {
			g.stops = append(g.stops, s)
			continue
		}
		by[of] = &stopGroup{of.policy, []*stopOf{s}}
		groups = append(groups, by[of])
	}
	return groups
}

// eachStop makes a group of each stop.
func eachStop(stops []*stopOf) (groups []*stopGroup) {
	for _, s := range stops {
		groups = append(groups, &stopGroup{forget.PolicyOf(&s.Deletion), []*stopOf{s}})
	}
	return groups
}

func (g *stopGroup) id() string {
	if len(g.stops) > 1 {
		return "-"
	}
	return strconv.FormatInt(g.stops[0].ID, 10)
}

func (g *stopGroup) where() string {
	if len(g.stops) > 1 {
		return counted(len(g.stops), "shard")
	}
	return g.stops[0].where()
}

func (g *stopGroup) state() string { return g.stops[0].state() }

// sum adds up the stops. now is set if it is known of any of them.
func (g *stopGroup) sum() *stopOf {
	if len(g.stops) == 1 {
		return g.stops[0]
	}
	sum := &stopOf{Stop: g.stops[0].Stop}
	sum.Snapshots, sum.OfSnapshots = nil, 0
	for _, s := range g.stops {
		sum.Snapshots = append(sum.Snapshots, s.Snapshots...)
		sum.OfSnapshots += s.OfSnapshots
		if s.now == nil && sum.now == nil {
			continue
		}
		sum.now = cmp.Or(sum.now, &index.Deletion{})
		now := cmp.Or(s.now, &s.Deletion)
		sum.now.Snapshots, sum.now.OfSnapshots = append(sum.now.Snapshots, now.Snapshots...), sum.now.OfSnapshots+now.OfSnapshots
	}
	return sum
}

func (g *stopGroup) what() string { return g.sum().what() }

// whatNow is what, and what the run would delete now, if that has changed.
func (g *stopGroup) whatNow() string { return g.sum().whatNow() }

func groupTable(now time.Time) table[*stopGroup] {
	return table[*stopGroup]{
		{name: "ID", text: (*stopGroup).id, right: true},
		{name: "OF", text: (*stopGroup).where, cut: tail, useful: usefulPath},
		{name: "DELETES", text: (*stopGroup).whatNow},
		{name: "SINCE", text: func(g *stopGroup) string { return happened(g.stops[0].Since, now) }, brief: func(g *stopGroup) string { return shortTime(g.stops[0].Since) }, leave: 2},
		{name: "BY", text: func(g *stopGroup) string { return display(g.stops[0].By) }, cut: truncate, leave: 1},
		{name: "STATE", text: (*stopGroup).state, cut: truncate, useful: usefulPath},
	}
}

// lookNow finds out what policies would forget now of the shards for which the brake has stopped
// them. Of other runs it is not known.
func lookNow(ctx context.Context, i index.Index, stops []*stopOf) error {
	policies, err := i.ListPolicies(ctx)
	if err != nil || len(stops) == 0 {
		return err
	}
	rules := map[string]forget.Rule{}
	for n := range policies {
		p := &policies[n]
		zone, err := time.LoadLocation(p.TimeZone)
		if err == nil && !p.Paused && p.Retention.HasRules() {
			rules[p.Name] = forget.Rule{Retention: p.Retention, Zone: zone}
		}
	}
	shards, err := shardsByID(ctx, i)
	if err != nil {
		return err
	}
	decider, err := forget.New(ctx, i)
	if err != nil {
		return err
	}
	for _, s := range stops {
		policy, shard := forget.PolicyOf(&s.Deletion), shards[s.Shard]
		if policy == "" || shard == nil {
			continue
		}
		now := index.Deletion{OfSnapshots: s.OfSnapshots} // the policy forgets nothing of it any more
		if rule, ok := rules[policy]; ok && shard.Policy == policy {
			fates, err := decider.Shard(ctx, shard, rule)
			if err != nil {
				return err
			}
			now = forget.Deletion(fates, shard, s.By)
		}
		s.now = &now
	}
	return nil
}

// ofPolicy returns the stops of a policy that wait for operators.
func ofPolicy(stops []*stopOf, policy string) (waiting []*stopOf) {
	for _, s := range stops {
		if forget.PolicyOf(&s.Deletion) == policy && s.Waits() {
			waiting = append(waiting, s)
		}
	}
	return waiting
}

// judgePolicy confirms or rejects all stops of a policy that wait for operators. A stop that is
// gone meanwhile, because its run has changed, is passed over.
func (c *confirmCommand) judgePolicy(ctx context.Context, i index.Index) error {
	stops, err := i.Stops(ctx)
	if err != nil {
		return err
	}
	all, err := describeStops(ctx, i, stops)
	if err != nil {
		return err
	}
	done := &stopGroup{policy: c.policy}
	for _, s := range ofPolicy(all, c.policy) {
		err := c.judge(ctx, i, &s.Stop)
		switch {
		case errors.Is(err, backup.ErrNotFound):
		case err != nil:
			return wrongSetting(err)
		default:
			done.stops = append(done.stops, s)
		}
	}
	if len(done.stops) == 0 {
		return absent("no deletion of policy %s waits for operators (bctl confirm ls lists those that were stopped)", display(c.policy))
	}
	if c.app.json || len(done.stops) == 1 {
		for _, s := range done.stops {
			if err := c.print(s); err != nil {
				return err
			}
		}
		return nil
	}
	if c.reject {
		_, err = fmt.Fprintf(c.app.out, "the deletions of %s of %s are rejected, and remain stopped (bctl confirm ls shows their numbers)\n", done.what(), done.where())
	} else {
		_, err = fmt.Fprintf(c.app.out, "the deletions of %s in %s are confirmed; %s\n", done.what(), done.where(), done.stops[0].next())
	}
	return err
}
