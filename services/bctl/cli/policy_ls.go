package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newPolicyLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List policies",
		Long: `Lists policies, how many filers and shards each holds for, and how many of the
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
	if a.json {
		for n := range policies {
			if err := a.print(newPolicyJSON(&policies[n], of[policies[n].ID])); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([]policyRow, len(policies))
	for n := range policies {
		filers := of[policies[n].ID]
		rows[n] = policyRow{Policy: &policies[n], filers: len(filers)}
		rows[n].shards, rows[n].overdue = countShards(filers)
	}
	return writeLines(a.out, policyTable.lines(rows, a.width()))
}

// A policyRow is a policy, and the number of filers and shards to which it applies.
type policyRow struct {
	*backup.Policy
	filers, shards, overdue int
}

var policyTable = table[policyRow]{
	{name: "POLICY", text: func(p policyRow) string { return display(p.Name) }, cut: truncate, useful: usefulPath},
	{name: "SCHEDULE", text: func(p policyRow) string { return scheduleText(p.Policy) }, cut: truncate, useful: usefulPath},
	{name: "TIME ZONE", text: func(p policyRow) string { return zoneText(p.Policy) }, leave: 3},
	{name: "WINDOWS", text: func(p policyRow) string { return windowText(p.Policy) }, cut: truncate, useful: usefulPath, leave: 2},
	{name: "RECOVERY POINT", text: func(p policyRow) string { return recoveryText(p.Policy) }, right: true, leave: 5},
	{name: "FILERS", text: func(p policyRow) string { return humanize.Comma(int64(p.filers)) }, right: true, leave: 4},
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

// retentionText returns "14 daily, 8 weekly, all of 30d".
func retentionText(r *backup.Retention) string {
	var parts []string
	for _, n := range []struct {
		count int
		name  string
	}{{r.Last, "last"}, {r.Hourly, "hourly"}, {r.Daily, "daily"}, {r.Weekly, "weekly"}, {r.Monthly, "monthly"}, {r.Yearly, "yearly"}} {
		if n.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.count, n.name))
		}
	}
	if r.Within > 0 {
		parts = append(parts, "all of "+timeText(r.Within))
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ", ")
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
	t := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	row("policy", "%s", display(p.Name))
	if p.Paused {
		row("paused", "yes: nothing is begun; bctl policy set --resume goes on")
	}
	row("schedule", "%s, %s", p.Schedule, zoneText(p))
	if p.Jitter > 0 {
		row("jitter", "%s", timeText(p.Jitter))
	}
	row("windows", "%s", windowText(p))
	row("recovery point", "%s", recoveryText(p))
	row("floor", "%s", floorText(p.Floor))
	row("keep", "%s", retentionText(&p.Retention))
	exclusionRows(row, &p.Selection)
	if len(p.Labels) > 0 {
		row("labels", "%s", display(labelText(p.Labels)))
	}
	shards, overdue := countShards(filers)
	row("shards", "%d, %d of them overdue", shards, overdue)
	for n := range filers {
		row("filer", "%s", display(filers[n].Name))
	}
	return t.Flush()
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
	FloorPercent int               `json:"floor_percent"`
	Keep         keepJSON          `json:"keep"`
	Selection    backup.Selection  `json:"selection"`
	Labels       map[string]string `json:"labels"`
	Filers       []string          `json:"filers"`
	Shards       int               `json:"shards"`
	Overdue      int               `json:"overdue"`
}

type keepJSON struct {
	Last          int     `json:"last"`
	Hourly        int     `json:"hourly"`
	Daily         int     `json:"daily"`
	Weekly        int     `json:"weekly"`
	Monthly       int     `json:"monthly"`
	Yearly        int     `json:"yearly"`
	WithinSeconds float64 `json:"within_seconds"`
}

func newPolicyJSON(p *backup.Policy, filers []index.FilerStatus) policyJSON {
	r := p.Retention
	j := policyJSON{
		Policy: p.Name, Revision: p.Revision, Paused: p.Paused, Schedule: p.Schedule, TimeZone: zoneText(p), JitterSeconds: p.Jitter.Seconds(),
		Windows: append([]string{}, p.Windows...), RecoveryPointSeconds: p.RecoveryPoint.Seconds(), FloorPercent: p.Floor,
		Keep:      keepJSON{r.Last, r.Hourly, r.Daily, r.Weekly, r.Monthly, r.Yearly, r.Within.Seconds()},
		Selection: p.Selection, Labels: p.Labels, Filers: make([]string, len(filers)),
	}
	if j.Labels == nil {
		j.Labels = map[string]string{}
	}
	j.Shards, j.Overdue = countShards(filers)
	for n := range filers {
		j.Filers[n] = filers[n].Name
	}
	return j
}

// floorText describes the part of the limits that the governor always leaves to a policy's filers.
func floorText(percent int) string {
	part := "an eighth"
	if percent > 0 {
		part = fmt.Sprintf("%d%%", percent)
	}
	return part + " of a filer's limits, unless it has its own; more near a deadline"
}
