package cli

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/retention"
)

func newPolicySimulate(a *app) *cobra.Command {
	var keep keepFlags
	var price float64
	cmd := &cobra.Command{
		Use:   "simulate NAME",
		Short: "Show what a policy would keep over the next year",
		Long: `Simulates one year: a good snapshot of each shard at each time in the schedule
of the policy, and its rules after each. It begins with the snapshots that
exist. Nothing is changed. The rules that you give (--keep-…) replace those of
the policy with the same name; 0 removes one.

The first table has a line per shard: the snapshots that are kept now, and after
the year, with the oldest of these. The second has a line per month. Dates are
those of this machine's time zone.

ADDED is an estimate of the bytes that the backups add to the store: per
snapshot the mean of the shard's 10 newest good snapshots, without its first,
which stores everything. LEFT is how much of that the kept snapshots added. It
is the least that remains after bctl prune: they also need what forgotten
snapshots added, unless it has changed again. - means that no such snapshot was
measured.

After the tables are the totals. Those of bytes count the measured shards only.
"at most" is an upper limit: what the whole store has now, and all that is
ADDED, as if nothing were freed. With --price-per-gb-month, it is also a cost:
each month costs the PRICE times the mean of the bytes at its beginning and its
end, in units of 10⁹ bytes. Requests and traffic are not in it.`,
		Example: `  bctl policy simulate nightly
  bctl policy simulate nightly --price-per-gb-month 0.02
  bctl policy simulate nightly --keep-daily 14 --keep-monthly 0
  bctl policy simulate nightly --json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.policyNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			// A wrong flag is an error for every policy.
			if err := keep.apply(cmd.Flags().Changed, &backup.Retention{}); err != nil {
				return err
			}
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				p, err := findPolicy(cmd.Context(), i, given[0])
				if err != nil {
					return err
				}
				if err := keep.apply(cmd.Flags().Changed, &p.Retention); err != nil {
					return err
				}
				if err := wrongSetting(retention.Check(p.Retention)); err != nil {
					return err
				}
				s, err := a.simulate(cmd.Context(), i, &p)
				if err != nil {
					return err
				}
				s.price = price
				return a.printSimulation(s)
			})
		},
	}
	keep.flags(cmd.Flags())
	priceFlag(cmd.Flags(), &price)
	a.wideFlag(cmd)
	return cmd
}

// A simulation is what a policy would keep over the next year.
type simulation struct {
	policy *backup.Policy
	shards []shardCourse
	months []monthCourse
	total  simulationTotal
	stored int64   // bytes in the store now, of all policies
	price  float64 // of a gigabyte for a month; 0: unknown
}

// A simulationTotal is the sum of all shards. Its bytes are those of the measured shards.
type simulationTotal struct {
	shards, measured int
	now, made, kept  int // snapshots
	added, left      int64
}

type shardCourse struct {
	index.ShardStatus
	forget.Course
}

// A monthCourse is the sum of all shards in a month.
type monthCourse struct {
	forget.Month
	added    int64 // bytes
	measured bool  // added is known of at least one shard
}

// simulate simulates each shard to which p applies. A policy without rules keeps all snapshots.
func (a *app) simulate(ctx context.Context, i index.Index, p *backup.Policy) (*simulation, error) {
	a.interruptible.Store(true)
	decider, err := forget.New(ctx, i)
	if err != nil {
		return nil, err
	}
	plans, err := schedulesOf(ctx, i)
	if err != nil {
		return nil, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{})
	if err != nil {
		return nil, err
	}
	times := plans.times[p.ID]
	rule := forget.Rule{Retention: p.Retention}
	if rule.Zone, err = time.LoadLocation(p.TimeZone); err != nil {
		return nil, err
	}
	if !p.Retention.HasRules() {
		rule.Last = backup.Unlimited
	}
	s := &simulation{policy: p}
	if s.stored, err = storedPacks(ctx, i); err != nil {
		return nil, err
	}
	var ends []time.Time
	for n := range 12 {
		ends = append(ends, decider.Now().AddDate(0, n+1, 0))
		s.months = append(s.months, monthCourse{Month: forget.Month{Until: ends[n]}})
	}
	for n := range shards {
		shard := &shards[n]
		if bound, ok := plans.plan(shard, decider.Now()); ok && bound.ID == p.ID {
			s.shards = append(s.shards, shardCourse{ShardStatus: *shard})
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for n := range s.shards {
		group.Go(func() (err error) {
			c, opens := &s.shards[n], openings{}
			c.Course, err = decider.Simulate(ctx, &c.ShardStatus, rule, ends, func(after time.Time) iter.Seq[time.Time] {
				return opens.starts(p.ID, times, &c.ShardStatus, after)
			})
			if err != nil {
				return fmt.Errorf("%s %s: %w", display(c.Filer.Name), display(c.Name), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for n := range s.shards {
		s.add(&s.shards[n])
	}
	return s, nil
}

// add adds a shard to the sums.
func (s *simulation) add(c *shardCourse) {
	t := &s.total
	t.shards++
	t.now += c.Now
	t.made += c.Made
	t.kept += len(c.Kept)
	if c.Measured > 0 {
		t.measured++
		t.added += c.added()
		t.left += c.left()
	}
	for n, m := range c.Months {
		to := &s.months[n]
		to.Made += m.Made
		to.Kept += m.Kept
		to.added += int64(m.Made) * c.EachBytes
		to.measured = to.measured || c.Measured > 0
	}
}

// starts returns the times at which the snapshots of a shard begin, if each is good: at once when
// it is due and a window is open.
func (o openings) starts(id backup.PolicyID, times *policy.Schedule, shard *index.ShardStatus, after time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		due := shard.Plan.Due
		for !due.IsZero() {
			if due.Before(after) {
				due = after
			}
			start := due
			if !times.Allowed(due) {
				if start = o.next(id, times, due, due); start.IsZero() {
					return
				}
			}
			if !yield(start) {
				return
			}
			after, due = start, times.Next(shard.ID, start)
		}
	}
}

// simulatedShardJSON is a line of policy simulate. The names are fixed.
type simulatedShardJSON struct {
	Type          string  `json:"type"` // shard
	Filer         string  `json:"filer"`
	Shard         string  `json:"shard"`
	Now           int     `json:"now"`  // snapshots
	Made          int     `json:"made"` // in the year
	Kept          int     `json:"kept"` // at its end
	Oldest        *string `json:"oldest"`
	Newest        *string `json:"newest"`
	Measured      int     `json:"measured"`       // snapshots of which the bytes are the mean
	SnapshotBytes *int64  `json:"snapshot_bytes"` // null: unknown
	AddedBytes    *int64  `json:"added_bytes"`
	LeftBytes     *int64  `json:"left_bytes"` // at least
}

// simulatedMonthJSON is a line of policy simulate, for all shards.
type simulatedMonthJSON struct {
	Type       string  `json:"type"` // month
	Until      *string `json:"until"`
	Made       int     `json:"made"`
	Kept       int     `json:"kept"`
	AddedBytes *int64  `json:"added_bytes"` // of the measured shards; null: there is none
}

// simulationTotalJSON is the last line of policy simulate.
type simulationTotalJSON struct {
	Type           string `json:"type"` // total
	Policy         string `json:"policy"`
	Paused         bool   `json:"paused"`
	Shards         int    `json:"shards"`
	MeasuredShards int    `json:"measured_shards"`
	Now            int    `json:"now"`
	Made           int    `json:"made"`
	Kept           int    `json:"kept"`
	AddedBytes     *int64 `json:"added_bytes"` // of the measured shards; null: there is none
	LeftBytes      *int64 `json:"left_bytes"`
	StoredBytes    int64  `json:"stored_bytes"` // now, of all policies
	MostBytes      *int64 `json:"most_bytes"`   // after the year; null: no shard is measured
	// The price of 10⁹ bytes for a month, and what the year costs at most; null: unknown.
	PricePerGBMonth *float64 `json:"price_per_gb_month"`
	MostCost        *float64 `json:"most_cost"`
}

func newSimulationTotalJSON(s *simulation) simulationTotalJSON {
	t := &s.total
	measured := t.measured > 0
	return simulationTotalJSON{
		"total", s.policy.Name, s.policy.Paused, t.shards, t.measured, t.now, t.made, t.kept, known(t.added, measured), known(t.left, measured),
		s.stored, known(s.most(), measured), known(s.price, s.price > 0), known(s.cost(), measured && s.price > 0),
	}
}

func (a *app) printSimulation(s *simulation) error {
	if a.json {
		for n := range s.shards {
			if err := a.print(newSimulatedShardJSON(&s.shards[n])); err != nil {
				return err
			}
		}
		for _, m := range s.months {
			if err := a.print(simulatedMonthJSON{"month", jsonTime(m.Until), m.Made, m.Kept, known(m.added, m.measured)}); err != nil {
				return err
			}
		}
		return a.print(newSimulationTotalJSON(s))
	}
	if len(s.shards) == 0 {
		_, err := fmt.Fprintf(a.out, "policy %s applies to no shard\n", display(s.policy.Name))
		return err
	}
	if err := writeLines(a.out, simulatedShards.lines(pointers(s.shards), a.width())); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.out); err != nil {
		return err
	}
	if err := writeLines(a.out, simulatedMonths.lines(pointers(s.months), a.width())); err != nil {
		return err
	}
	rules := "no rules: all are kept"
	if s.policy.Retention.HasRules() {
		rules = "rules: " + s.policy.Retention.String()
	}
	t := &s.total
	if _, err := fmt.Fprintf(a.out, "\n%s\ntotal: %s; %s now, %d made, %d kept; added %s, left %s\n", rules,
		counted(t.shards, "shard"), counted(t.now, "snapshot"), t.made, t.kept, knownSize(t.added, t.measured > 0), knownSize(t.left, t.measured > 0)); err != nil {
		return err
	}
	if err := a.printMost(s); err != nil {
		return err
	}
	if s.policy.Paused {
		a.note("policy %s is paused: this is what it would do if it were not", display(s.policy.Name))
	}
	switch unmeasured := t.shards - t.measured; unmeasured {
	case 0:
	case 1:
		a.note("the bytes of 1 shard are unknown: only its first snapshot exists, or none")
	default:
		a.note("the bytes of %d shards are unknown: only their first snapshots exist, or none", unmeasured)
	}
	return nil
}

func newSimulatedShardJSON(c *shardCourse) simulatedShardJSON {
	j := simulatedShardJSON{
		Type: "shard", Filer: c.Filer.Name, Shard: c.Name, Now: c.Now, Made: c.Made, Kept: len(c.Kept), Measured: c.Measured,
		SnapshotBytes: known(c.EachBytes, c.Measured > 0), AddedBytes: known(c.added(), c.Measured > 0), LeftBytes: known(c.left(), c.Measured > 0),
	}
	if len(c.Kept) > 0 {
		j.Newest, j.Oldest = jsonTime(c.Kept[0].Time), jsonTime(c.Kept[len(c.Kept)-1].Time)
	}
	return j
}

func (c *shardCourse) added() int64 { return int64(c.Made) * c.EachBytes }
func (c *shardCourse) left() int64  { return int64(c.NewKept) * c.EachBytes }

func known[T int64 | float64](n T, measured bool) *T {
	if !measured {
		return nil
	}
	return &n
}

func knownSize(n int64, measured bool) string {
	if !measured {
		return "-"
	}
	return size(n)
}

var simulatedShards = table[*shardCourse]{
	{name: "FILER", text: func(c *shardCourse) string { return display(c.Filer.Name) }, cut: truncate},
	{name: "SHARD", text: func(c *shardCourse) string { return display(c.Name) }, cut: tail, useful: usefulPath},
	{name: "NOW", text: func(c *shardCourse) string { return fmt.Sprint(c.Now) }, right: true},
	{name: "MADE", text: func(c *shardCourse) string { return fmt.Sprint(c.Made) }, right: true, leave: 1},
	{name: "KEPT", text: func(c *shardCourse) string { return fmt.Sprint(len(c.Kept)) }, right: true},
	{name: "OLDEST", text: func(c *shardCourse) string {
		if len(c.Kept) == 0 {
			return "-"
		}
		return dateOf(c.Kept[len(c.Kept)-1].Time)
	}},
	{name: "ADDED", text: func(c *shardCourse) string { return knownSize(c.added(), c.Measured > 0) }, right: true},
	{name: "LEFT", text: func(c *shardCourse) string { return knownSize(c.left(), c.Measured > 0) }, right: true},
}

var simulatedMonths = table[*monthCourse]{
	{name: "UNTIL", text: func(m *monthCourse) string { return dateOf(m.Until) }},
	{name: "MADE", text: func(m *monthCourse) string { return fmt.Sprint(m.Made) }, right: true},
	{name: "KEPT", text: func(m *monthCourse) string { return fmt.Sprint(m.Kept) }, right: true},
	{name: "ADDED", text: func(m *monthCourse) string { return knownSize(m.added, m.measured) }, right: true},
}
