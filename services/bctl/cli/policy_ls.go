package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newPolicyLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List policies",
		Long: `Lists policies, how many filers and shards each applies to, and how many of the
shards are overdue: past their deadlines without a good snapshot.`,
		Example: `  bctl policy ls
  bctl policy ls --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				policies, err := i.ListPolicies(cmd.Context())
				if err != nil {
					return err
				}
				of, err := bindings(cmd.Context(), i)
				if err != nil {
					return err
				}
				err = a.listPolicies(policies, of)
				a.notePolicies(len(policies))
				return err
			})
		},
	}
	a.wideFlag(cmd)
	return cmd
}

func (a *app) listPolicies(policies []backup.Policy, of map[backup.PolicyID][]index.FilerStatus) error {
	rows := make([]policyRow, len(policies))
	for n := range policies {
		filers := of[policies[n].ID]
		rows[n] = policyRow{Policy: &policies[n], filers: filers}
		rows[n].shards, rows[n].overdue = countShards(filers)
	}
	return printList(a, rows, policyTable, func(p policyRow) policyJSON { return newPolicyJSON(p.Policy, p.filers) })
}

// A policyRow is a policy, and the filers and the number of shards to which it applies.
type policyRow struct {
	*backup.Policy
	filers          []index.FilerStatus
	shards, overdue int
}

var policyTable = table[policyRow]{
	{name: "POLICY", text: func(p policyRow) string { return display(p.Name) }, cut: truncate, useful: usefulPath},
	{name: "SCHEDULE", text: func(p policyRow) string { return scheduleText(p.Policy) }, cut: truncate, useful: usefulPath},
	{name: "TIME ZONE", text: func(p policyRow) string { return zoneText(p.Policy) }, leave: 3},
	{name: "WINDOWS", text: func(p policyRow) string { return windowText(p.Policy) }, cut: truncate, useful: usefulPath, leave: 2},
	{name: "RECOVERY POINT", text: func(p policyRow) string { return recoveryText(p.Policy) }, right: true, leave: 5},
	{name: "FILERS", text: func(p policyRow) string { return humanize.Comma(int64(len(p.filers))) }, right: true, leave: 4},
	{name: "SHARDS", text: func(p policyRow) string { return humanize.Comma(int64(p.shards)) }, right: true},
	{name: "OVERDUE", text: func(p policyRow) string { return humanize.Comma(int64(p.overdue)) }, right: true},
	{name: "LABELS", text: func(p policyRow) string { return display(labelText(p.Labels)) }, cut: truncate, useful: usefulPath, leave: 1},
}

func countShards(filers []index.FilerStatus) (shards, overdue int) {
	for n := range filers {
		shards += filers[n].Shards
		overdue += filers[n].Overdue
	}
	return shards, overdue
}

func scheduleText(p *backup.Policy) string {
	if p.Paused {
		return p.Schedule + " (paused)"
	}
	return p.Schedule
}

func zoneText(p *backup.Policy) string {
	if p.TimeZone == "" {
		return "UTC"
	}
	return p.TimeZone
}

func windowText(p *backup.Policy) string {
	if len(p.Windows) == 0 {
		return "always"
	}
	return strings.Join(p.Windows, "; ")
}

func recoveryText(p *backup.Policy) string {
	if p.RecoveryPoint == 0 {
		return "next run"
	}
	return timeText(p.RecoveryPoint)
}

func newPolicyShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show a policy, and the filers that it applies to",
		Example: `  bctl policy show nightly
  bctl policy show nightly --json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.policyNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				p, err := findPolicy(cmd.Context(), i, given[0])
				if err != nil {
					return err
				}
				of, err := bindings(cmd.Context(), i)
				if err != nil {
					return err
				}
				a.notePolicies(1)
				if a.json {
					return a.print(newPolicyJSON(&p, of[p.ID]))
				}
				return a.describePolicy(&p, of[p.ID])
			})
		},
	}
}

func (a *app) describePolicy(p *backup.Policy, filers []index.FilerStatus) error {
	return a.details(func(row rowFunc) {
		row("policy", "%s", display(p.Name))
		if p.Paused {
			row("paused", "yes: no backup starts; bctl policy set --resume ends the pause")
		}
		row("schedule", "%s, %s", p.Schedule, zoneText(p))
		if p.Jitter > 0 {
			row("jitter", "%s", timeText(p.Jitter))
		}
		row("windows", "%s", windowText(p))
		row("recovery point", "%s", recoveryText(p))
		row("floor", "%s", floorText(p.Floor))
		row("drill", "%s", drillText(p.Drill))
		row("keep", "%s", display(p.Retention.String()))
		exclusionRows(row, &p.Selection)
		if len(p.Labels) > 0 {
			row("labels", "%s", display(labelText(p.Labels)))
		}
		shards, overdue := countShards(filers)
		row("shards", "%d, %d of them overdue", shards, overdue)
		for n := range filers {
			row("filer", "%s", display(filers[n].Name))
		}
	})
}

// policyJSON is a line of policy ls. The names are fixed.
type policyJSON struct {
	Policy        string   `json:"policy"`
	Revision      int64    `json:"revision"`
	Paused        bool     `json:"paused"`
	Schedule      string   `json:"schedule"`
	TimeZone      string   `json:"time_zone"`
	JitterSeconds float64  `json:"jitter_seconds"`
	Windows       []string `json:"windows"`
	// RecoveryPointSeconds is 0 for: until the shard is due again.
	RecoveryPointSeconds float64 `json:"recovery_point_seconds"`
	// FloorPercent is 0 for an eighth of the filers' limits.
	FloorPercent int `json:"floor_percent"`
	// DrillSeconds is 0 for: no drills.
	DrillSeconds float64           `json:"drill_seconds"`
	Keep         keepJSON          `json:"keep"`
	Selection    backup.Selection  `json:"selection"`
	Labels       map[string]string `json:"labels"`
	Filers       []string          `json:"filers"`
	Shards       int               `json:"shards"`
	Overdue      int               `json:"overdue"`
	Changed      *bool             `json:"changed,omitempty"` // after a command that may change it
}

type keepJSON struct {
	Last    backup.Count `json:"last"` // -1: unlimited
	Hourly  backup.Count `json:"hourly"`
	Daily   backup.Count `json:"daily"`
	Weekly  backup.Count `json:"weekly"`
	Monthly backup.Count `json:"monthly"`
	Yearly  backup.Count `json:"yearly"`
	// WithinSeconds is null if the length of the period depends on the calendar.
	WithinSeconds *float64     `json:"within_seconds"`
	Within        string       `json:"within,omitempty"`
	WithinHourly  string       `json:"within_hourly,omitempty"`
	WithinDaily   string       `json:"within_daily,omitempty"`
	WithinWeekly  string       `json:"within_weekly,omitempty"`
	WithinMonthly string       `json:"within_monthly,omitempty"`
	WithinYearly  string       `json:"within_yearly,omitempty"`
	Tags          [][]string   `json:"tags,omitempty"`
	Style         backup.Style `json:"style,omitempty"`
}

func newKeepJSON(r *backup.Retention) keepJSON {
	j := keepJSON{
		Last: r.Last, Hourly: r.Hourly, Daily: r.Daily, Weekly: r.Weekly, Monthly: r.Monthly, Yearly: r.Yearly,
		Within: periodText(r.Within), WithinHourly: periodText(r.WithinHourly), WithinDaily: periodText(r.WithinDaily),
		WithinWeekly: periodText(r.WithinWeekly), WithinMonthly: periodText(r.WithinMonthly), WithinYearly: periodText(r.WithinYearly),
		Tags: r.Tags, Style: r.Style,
	}
	if d, ok := r.Within.Duration(); ok {
		seconds := d.Seconds()
		j.WithinSeconds = &seconds
	}
	return j
}

// periodText returns "" for a period that is not set.
func periodText(p backup.Period) string {
	if p.IsZero() {
		return ""
	}
	return p.String()
}

func newPolicyJSON(p *backup.Policy, filers []index.FilerStatus) policyJSON {
	j := policyJSON{
		Policy: p.Name, Revision: p.Revision, Paused: p.Paused, Schedule: p.Schedule, TimeZone: zoneText(p), JitterSeconds: p.Jitter.Seconds(),
		Windows: append([]string{}, p.Windows...), RecoveryPointSeconds: p.RecoveryPoint.Seconds(), FloorPercent: p.Floor,
		DrillSeconds: p.Drill.Seconds(),
		Keep:         newKeepJSON(&p.Retention),
		Selection:    p.Selection, Labels: jsonLabels(p.Labels), Filers: make([]string, len(filers)),
	}
	j.Shards, j.Overdue = countShards(filers)
	for n := range filers {
		j.Filers[n] = filers[n].Name
	}
	return j
}

// drillText describes how often a policy wants drills.
func drillText(every time.Duration) string {
	if every == 0 {
		return "never"
	}
	return "each shard every " + timeText(every) + ", where bctl drill --due runs"
}

// floorText describes the part of the limits that the governor always leaves to a policy's filers.
func floorText(percent int) string {
	part := "an eighth"
	if percent > 0 {
		part = fmt.Sprintf("%d%%", percent)
	}
	return part + " of a filer's limits, if the filer has no floor of its own; higher near a deadline"
}
