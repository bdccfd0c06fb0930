package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

func newFilerLs(a *app) *cobra.Command {
	var labels []string
	var retired bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List filers and their state",
		Long: `Lists filers. WALK and READ are the tasks and batches assigned to the workers of
its site and the limit, as in 3/32; bctl status shows which of them wait. "3/8
of 32" means that the governor has reduced the limit of 32 to 8, because the
filer has become slow. STAT and OPEN are the latencies of these calls now and
when the filer is idle. Each shard has a last good snapshot; LAST GOOD is when
the oldest of them was begun. Each shard with a policy has a deadline for its
next good snapshot; DEADLINE is the first of them. After that time the filer is
OVERDUE. A narrow terminal shows shorter times; --wide shows all columns, and
all times in full.`,
		Example: `  bctl filer ls
  bctl filer ls --label env=prod
  bctl filer ls --retired --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter := index.FilerFilter{Retired: retired}
			var err error
			if filter.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			return a.listFilers(cmd.Context(), filter)
		},
	}
	labelFlag(cmd, &labels)
	cmd.Flags().BoolVar(&retired, "retired", false, "include retired filers")
	a.wideFlag(cmd)
	return cmd
}

func (a *app) listFilers(ctx context.Context, filter index.FilerFilter) error {
	return a.withIndex(ctx, toRead, func(i index.Index) error {
		found, err := i.ListFilers(ctx, filter)
		if err != nil {
			return err
		}
		now, err := i.Clock(ctx)
		if err != nil {
			return err
		}
		return printList(a, pointers(found), filerTable(now), newFilerJSON)
	})
}

func filerTable(now time.Time) table[*index.FilerStatus] {
	return table[*index.FilerStatus]{
		{name: "FILER", text: func(f *index.FilerStatus) string { return display(f.Name) }, cut: truncate, useful: usefulPath},
		{name: "SITE", text: func(f *index.FilerStatus) string { return f.Site }, leave: 6},
		{name: "SHARDS", text: func(f *index.FilerStatus) string { return humanize.Comma(int64(f.Shards)) }, right: true, leave: 8},
		{name: "RUNNING", text: func(f *index.FilerStatus) string { return humanize.Comma(int64(f.Running)) }, right: true, leave: 7},
		{name: "WALK", text: walkText, right: true, leave: 5},
		{name: "READ", text: readText, right: true, leave: 4},
		{name: "STAT", text: statText, right: true, leave: 3},
		{name: "OPEN", text: openText, right: true, leave: 2},
		{name: "LAST GOOD", when: func(f *index.FilerStatus) forms { return lastGoodForms(f, now) }},
		{name: "DEADLINE", when: func(f *index.FilerStatus) forms {
			return deadlineForms(f.Deadline, now).each(func(text string) string { return filerDeadline(f, text) })
		}},
		{name: "LABELS", text: func(f *index.FilerStatus) string { return display(labelText(f.Labels)) }, cut: truncate, useful: usefulPath, leave: 1},
	}
}

func walkText(f *index.FilerStatus) string {
	return slots(f.Tasks, f.Load.WalkSlots, f.Limits.WithDefaults().WalkTasks)
}

func readText(f *index.FilerStatus) string {
	return slots(f.Batches, f.Load.ReadSlots, f.Limits.WithDefaults().ReadBatches)
}

func statText(f *index.FilerStatus) string { return latency(f.Load.WalkLatency, f.Load.WalkIdle) }
func openText(f *index.FilerStatus) string { return latency(f.Load.ReadLatency, f.Load.ReadIdle) }

// slots returns the open work and its maximum: the limit, or the slots that the governor leaves of
// it.
func slots(inHand, allowed, limit int) string {
	if allowed == 0 || allowed >= limit {
		return fmt.Sprintf("%d/%d", inHand, limit)
	}
	return fmt.Sprintf("%d/%d of %d", inHand, allowed, limit)
}

// latency returns "1.2/0.4 ms": the current and the idle latency.
func latency(now, idle time.Duration) string {
	if now == 0 && idle == 0 {
		return "-"
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf("%.3g/%.3g ms", ms(now), ms(idle))
}

// lastGood returns the start of the oldest of the last good snapshots of the filer's shards.
func lastGood(f *index.FilerStatus, now time.Time) string {
	switch {
	case f.Shards == 0:
		return "-"
	case f.Newest.IsZero():
		return "never"
	case f.Oldest.IsZero():
		return "never (one " + agoText(f.Newest, now) + ")"
	case policy.InFuture(f.Newest, now):
		return happened(f.Newest, now)
	}
	return happened(f.Oldest, now)
}

// lastGoodForms are the forms of lastGood.
func lastGoodForms(f *index.FilerStatus, now time.Time) (all forms) {
	switch {
	case f.Retired:
		return noTime("retired")
	case f.Shards == 0:
		return noTime("-")
	case !f.Newest.IsZero() && policy.InFuture(f.Newest, now):
		all = pastForms(f.Newest, now)
	case f.Oldest.IsZero():
		all = noTime("never")
	default:
		all = pastForms(f.Oldest, now)
	}
	all[formFull] = lastGood(f, now)
	return all
}

// filerDeadline adds the number of overdue shards to the earliest deadline of a filer's shards.
func filerDeadline(f *index.FilerStatus, text string) string {
	if f.Overdue > 1 {
		text += fmt.Sprintf(" (%d shards)", f.Overdue)
	}
	return text
}

// workJSON is a number per kind of work.
type workJSON struct {
	WalkTasks   int `json:"walk_tasks"`
	ReadBatches int `json:"read_batches"`
}

// filerJSON is a line of filer ls. The names are fixed.
type filerJSON struct {
	Filer              string            `json:"filer"`
	Site               string            `json:"site"`
	Labels             map[string]string `json:"labels"`
	Limits             workJSON          `json:"limits"`
	Slots              workJSON          `json:"slots"` // allowed by the governor
	InHand             workJSON          `json:"in_hand"`
	ReadBytesPerSecond int64             `json:"read_bytes_per_second"` // 0: no limit
	FloorPercent       int               `json:"floor_percent"`         // 0: the policy's value
	Compare            string            `json:"compare"`
	Selection          backup.Selection  `json:"selection"`
	Retired            bool              `json:"retired"`
	Shards             int               `json:"shards"`
	Running            int               `json:"running"`
	StatSeconds        float64           `json:"stat_seconds"`
	StatIdleSeconds    float64           `json:"stat_idle_seconds"`
	OpenSeconds        float64           `json:"open_seconds"`
	OpenIdleSeconds    float64           `json:"open_idle_seconds"`
	OldestGood         *string           `json:"oldest_good"`
	NewestGood         *string           `json:"newest_good"`
	Deadline           *string           `json:"deadline"`          // the earliest of its shards
	Overdue            int               `json:"overdue"`           // shards
	Changed            *bool             `json:"changed,omitempty"` // after a command that may change it
}

func newFilerJSON(f *index.FilerStatus) filerJSON {
	limits := f.Limits.WithDefaults()
	j := filerJSON{
		Filer: f.Name, Site: f.Site, Labels: jsonLabels(f.Labels), Limits: workJSON{limits.WalkTasks, limits.ReadBatches},
		Slots: workJSON{limits.WalkTasks, limits.ReadBatches}, InHand: workJSON{f.Tasks, f.Batches},
		ReadBytesPerSecond: limits.ReadBytesPerSecond, FloorPercent: limits.Floor, Compare: f.Compare.String(), Selection: f.Selection,
		Retired: f.Retired, Shards: f.Shards, Running: f.Running,
		StatSeconds: f.Load.WalkLatency.Seconds(), StatIdleSeconds: f.Load.WalkIdle.Seconds(),
		OpenSeconds: f.Load.ReadLatency.Seconds(), OpenIdleSeconds: f.Load.ReadIdle.Seconds(),
		OldestGood: jsonTime(f.Oldest), NewestGood: jsonTime(f.Newest),
		Deadline: jsonTime(f.Deadline), Overdue: f.Overdue,
	}
	if s := f.Load.WalkSlots; s > 0 {
		j.Slots.WalkTasks = min(s, limits.WalkTasks)
	}
	if s := f.Load.ReadSlots; s > 0 {
		j.Slots.ReadBatches = min(s, limits.ReadBatches)
	}
	return j
}

func newFilerShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show a filer's settings and state",
		Example: `  bctl filer show nas1
  bctl filer show nas1 --json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.filerNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				f, err := findFiler(cmd.Context(), i, given[0])
				if err != nil {
					return err
				}
				if a.json {
					return a.print(newFilerJSON(&f))
				}
				now, err := i.Clock(cmd.Context())
				if err != nil {
					return err
				}
				return a.describeFiler(&f, now)
			})
		},
	}
}

func (a *app) describeFiler(f *index.FilerStatus, now time.Time) error {
	return a.details(func(row rowFunc) {
		limits := f.Limits.WithDefaults()
		row("filer", "%s", display(f.Name))
		if f.Retired {
			row("retired", "yes: it is not backed up; bctl filer add registers it again")
		}
		row("site", "%s", f.Site)
		if len(f.Labels) > 0 {
			row("labels", "%s", display(labelText(f.Labels)))
		}
		row("shards", "%d, %d of them being backed up", f.Shards, f.Running)
		row("last good snapshot", "%s", lastGood(f, now))
		row("deadline", "%s", filerDeadline(f, deadlineText(f.Deadline, now)))
		row("walk tasks", "%s assigned", slots(f.Tasks, f.Load.WalkSlots, limits.WalkTasks))
		row("read batches", "%s assigned", slots(f.Batches, f.Load.ReadSlots, limits.ReadBatches))
		if limits.ReadBytesPerSecond > 0 {
			row("read rate", "at most %s/s", size(limits.ReadBytesPerSecond))
		}
		if limits.Floor > 0 {
			row("floor", "at least %d%% of the limits, more near a deadline", limits.Floor)
		}
		row("stat", "%s (now/idle)", latency(f.Load.WalkLatency, f.Load.WalkIdle))
		row("open", "%s (now/idle)", latency(f.Load.ReadLatency, f.Load.ReadIdle))
		row("compare", "size,%s", f.Compare)
		exclusionRows(row, &f.Selection)
	})
}
