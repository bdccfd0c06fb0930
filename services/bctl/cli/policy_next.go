package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

func newPolicyNext(a *app) *cobra.Command {
	var filer string
	limit := 0
	cmd := &cobra.Command{
		Use:   "next",
		Short: "Show when shards are due, and which are overdue",
		Long: `Lists when each shard that has a policy is due, and its deadline: by then it
should have a good snapshot. The shard that is due first comes first. STATE is

  running   it is being backed up
  waiting   due: begins as soon as the limits of running snapshots allow
  window    due: begins when a window of its policy opens
  paused    its policy is paused
  failed    its newest snapshot failed: the next one begins at DUE
  planned   not due yet

WINDOW is when the window opens in which the shard can begin; - means that one
is open when the shard is due. A narrow terminal shows shorter times; --wide
shows all columns, and all times in full. bctl snapshot ls prints why a snapshot
failed.`,
		Example: `  bctl policy next
  bctl policy next --filer nas1 --limit 10
  bctl policy next --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				if filer != "" {
					if _, err := findFiler(cmd.Context(), i, filer); err != nil {
						return err
					}
				}
				now, err := i.Clock(cmd.Context())
				if err != nil {
					return err
				}
				runs, err := nextRuns(cmd.Context(), i, filer, now)
				if err != nil {
					return err
				}
				if limit > 0 {
					runs = runs[:min(limit, len(runs))]
				}
				err = printList(a, pointers(runs), runTable(now), func(r *nextRun) runJSON { return newRunJSON(r, now) })
				a.notePolicies(len(runs))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&filer, "filer", "", "only shards of this `FILER`")
	numberFlag(cmd.Flags(), &limit, "limit", 50, 0, most, "list the first `N` shards; 0: all")
	a.completeFlag(cmd, "filer", a.filerNames)
	a.wideFlag(cmd)
	return cmd
}

// A nextRun is the time at which a shard is due.
type nextRun struct {
	index.ShardStatus
	policy        string
	state         string
	due, deadline time.Time
	// opens is the start of the window in which the shard can start; zero: a window is open when it
	// is due.
	opens time.Time
}

// nextRuns plans as the scheduler does, with the current labels and policies. Times that the
// scheduler has planned for the same revision of a policy are kept.
func nextRuns(ctx context.Context, i index.Catalog, filer string, now time.Time) ([]nextRun, error) {
	schedules, err := schedulesOf(ctx, i)
	if err != nil {
		return nil, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: filer})
	if err != nil {
		return nil, err
	}
	opens := openings{}
	var runs []nextRun
	for _, s := range shards {
		p, ok := schedules.plan(&s, now)
		if !ok {
			continue
		}
		times := schedules.times[p.ID]
		run := nextRun{ShardStatus: s, policy: p.Name, due: s.Plan.Due, deadline: s.Plan.Deadline}
		run.opens = opens.next(p.ID, times, run.due, now)
		run.state = stateOf(&run, p.Paused, times.Allowed(now), now)
		runs = append(runs, run)
	}
	slices.SortStableFunc(runs, func(a, b nextRun) int { return cmp.Or(a.due.Compare(b.due), a.deadline.Compare(b.deadline)) })
	return runs, nil
}

// schedules are all policies, with their schedules.
type schedules struct {
	policies []backup.Policy
	times    map[backup.PolicyID]*policy.Schedule
}

func schedulesOf(ctx context.Context, i index.Catalog) (*schedules, error) {
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return nil, err
	}
	all := &schedules{policies, make(map[backup.PolicyID]*policy.Schedule, len(policies))}
	for _, p := range policies {
		if all.times[p.ID], err = policy.Parse(p); err != nil {
			return nil, fmt.Errorf("policy %s: %w", display(p.Name), err)
		}
	}
	return all, nil
}

// plan gives a shard the plan that the scheduler would make now, unless it has a valid one, and
// returns its policy. ok is false if it has none.
func (a *schedules) plan(s *index.ShardStatus, now time.Time) (p backup.Policy, ok bool) {
	if p, ok = policy.For(s.Filer.Labels, a.policies); !ok {
		return p, false
	}
	times, plan := a.times[p.ID], &s.Plan
	// If a clock was ahead, the planned time may be too late.
	latest := times.Latest(now)
	if !latest.IsZero() && plan.Due.After(latest) || plan.Binding != (index.Binding{Policy: p.ID, Revision: p.Revision}) {
		plan.Due = time.Time{}
		if !s.Time.IsZero() { // before the first good snapshot, a deadline stays (index.Scheduling.Bind)
			plan.Deadline = time.Time{}
		}
	}
	if plan.Due.IsZero() {
		past := policy.Past{Good: s.Time, Bad: s.Bad, Failed: s.Failed, Deadline: plan.Deadline}
		plan.Due, plan.Deadline = times.Plan(s.ID, past, now)
	}
	return p, true
}

// planAll gives plans to the shards that the scheduler has bound to a policy, so that lists agree
// with policy next in the moment before it plans them. On one machine it binds none.
func planAll(ctx context.Context, i index.Catalog, shards []index.ShardStatus, now time.Time) error {
	bound := func(s index.ShardStatus) bool { return s.Plan.Policy != 0 && !s.Retired }
	if !slices.ContainsFunc(shards, bound) {
		return nil
	}
	all, err := schedulesOf(ctx, i)
	if err != nil {
		return err
	}
	for n := range shards {
		if s := &shards[n]; bound(*s) {
			all.plan(s, now)
		}
	}
	return nil
}

// openings caches when the windows of policies open, by minute, because many shards share the same
// time.
type openings map[opening]time.Time

type opening struct {
	policy backup.PolicyID
	minute int64
}

// next returns the start of the window in which a due shard can start, or zero if a window is open
// then.
func (o openings) next(id backup.PolicyID, times *policy.Schedule, due, now time.Time) time.Time {
	if due.Before(now) {
		due = now
	}
	if times.Allowed(due) {
		return time.Time{}
	}
	key := opening{id, due.Unix() / 60}
	if _, ok := o[key]; !ok {
		o[key] = times.Opens(due)
	}
	return o[key]
}

func stateOf(r *nextRun, paused, allowed bool, now time.Time) string {
	switch {
	case r.Running != (backup.SnapshotID{}):
		return "running"
	case paused:
		return "paused"
	case r.due.After(now) && !r.Failed.IsZero():
		return "failed"
	case r.due.After(now):
		return "planned"
	case !allowed:
		return "window"
	}
	return "waiting"
}

func runTable(now time.Time) table[*nextRun] {
	return table[*nextRun]{
		{name: "DUE", when: func(r *nextRun) forms { return futureForms(r.due, now) }},
		{name: "STATE", text: func(r *nextRun) string { return r.state }},
		{name: "WINDOW", when: func(r *nextRun) forms {
			f := futureForms(r.opens, now)
			f[formBrief] = f[formLeast] // it has the least room, and DUE has the time from which it counts
			return f
		}, leave: 3},
		{name: "DEADLINE", when: func(r *nextRun) forms { return deadlineForms(r.deadline, now) }},
		{name: "LAST GOOD", when: func(r *nextRun) forms {
			if r.LastGood == (backup.SnapshotID{}) {
				return noTime("never")
			}
			return pastForms(r.Time, now)
		}, leave: 2},
		{name: "FILER", text: func(r *nextRun) string { return display(r.Filer.Name) }, cut: truncate},
		{name: "SHARD", text: func(r *nextRun) string { return display(r.Name) }, cut: tail, useful: usefulPath},
		{name: "POLICY", text: func(r *nextRun) string { return display(r.policy) }, cut: truncate, leave: 1},
	}
}

// runJSON is a line of policy next. The names are fixed.
type runJSON struct {
	Filer    string  `json:"filer"`
	Shard    string  `json:"shard"`
	Policy   string  `json:"policy"`
	State    string  `json:"state"`
	Due      *string `json:"due"`
	Opens    *string `json:"window_opens"` // null: a window is open when it is due
	Deadline *string `json:"deadline"`
	Overdue  bool    `json:"overdue"`
	LastGood *string `json:"last_good"` // start of the last good snapshot; null: there is none
	Failed   *string `json:"failed"`    // when the newest snapshot failed; null: it has not
}

func newRunJSON(r *nextRun, now time.Time) runJSON {
	return runJSON{
		Filer: r.Filer.Name, Shard: r.Name, Policy: r.policy, State: r.state, Due: jsonTime(r.due), Opens: jsonTime(r.opens), Deadline: jsonTime(r.deadline),
		Overdue: r.deadline.Before(now), LastGood: jsonTime(r.Time), Failed: jsonTime(r.Failed),
	}
}
