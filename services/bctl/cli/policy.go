package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

func newPolicy(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "policy", Short: "Manage backup schedules", Aliases: []string{"policies"},
		Long: `A policy sets when the shards of some filers are backed up, which files are
excluded, and how long snapshots are kept. Labels select the filers. The
committers of a fleet apply policies; a change takes effect within seconds. On
one machine policies have no effect: use a timer (systemd, cron) that runs bctl
backup, bctl forget --policy --prune and bctl drill --due.`,
	})
	cmd.AddCommand(newPolicySet(a), newPolicyLs(a), newPolicyShow(a), newPolicyRm(a), newPolicyNext(a), newPolicySimulate(a))
	return cmd
}

// policyFlags are the settings of a policy.
type policyFlags struct {
	schedule, timeZone    string
	jitter, recoveryPoint time.Duration
	windows, labels       []string
	keep                  keepFlags
	floor                 int // percent
	drill                 time.Duration
	pause, resume         bool
	exclusions            exclusions
}

func (f *policyFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.schedule, "schedule", "", "`CRON` expression of five fields (\"30 2 * * *\"), or @hourly, @daily, @weekly, @monthly, \"@every 6h\"")
	flags.StringVar(&f.timeZone, "time-zone", "", "time `ZONE` of schedule and windows (Europe/Berlin; default: UTC)")
	timeFlag(flags, &f.jitter, "jitter", "spread the shards over this `TIME` (2h)")
	flags.StringArrayVar(&f.windows, "window", nil, "begin snapshots only in this `WINDOW` (\"mon-fri 20:00-06:00\"; may be repeated)")
	timeFlag(flags, &f.recoveryPoint, "recovery-point", "maximum age (`TIME`: 26h, 8d) of the last good snapshot; 0: until the shard is due again")
	numberFlag(flags, &f.floor, "floor", 0, 0, 100, "minimum `PERCENT` of a filer's limits that the governor leaves; 0: an eighth")
	flags.Var(&parsed[time.Duration]{&f.drill, "", "string", parseDrillEvery}, "drill", "drill each shard this `OFTEN`: daily, weekly, monthly, or a time (8d); 0: never")
	f.keep.flags(flags)
	flags.StringArrayVar(&f.labels, "label", nil, "apply to filers with all labels `KEY=VALUE` (may be repeated; without: to all filers)")
	flags.BoolVar(&f.pause, "pause", false, "start no backups until --resume")
	flags.BoolVar(&f.resume, "resume", false, "start backups again")
	f.exclusions.flags(cmd, "each shard")
}

// apply returns p with the given flags applied.
func (f *policyFlags) apply(cmd *cobra.Command, p backup.Policy) (_ backup.Policy, err error) {
	given := cmd.Flags().Changed
	setIf(given("schedule"), &p.Schedule, f.schedule)
	setIf(given("time-zone"), &p.TimeZone, f.timeZone)
	setIf(given("window"), &p.Windows, notEmpty(f.windows))
	setIf(given("jitter"), &p.Jitter, f.jitter)
	setIf(given("recovery-point"), &p.RecoveryPoint, f.recoveryPoint)
	setIf(given("floor"), &p.Floor, f.floor)
	setIf(given("drill"), &p.Drill, f.drill)
	if err := f.keep.apply(given, &p.Retention); err != nil {
		return p, err
	}
	if given("label") {
		if p.Labels, err = changeLabels(p.Labels, f.labels); err != nil {
			return p, err
		}
	}
	if f.pause && f.resume {
		return p, usage("--pause and --resume exclude each other: give one of them")
	}
	p.Paused = p.Paused && !f.resume || f.pause
	p.Selection, err = f.exclusions.apply(cmd, p.Selection)
	return p, err
}

// parseDrillEvery parses how often drills are wanted.
func parseDrillEvery(text string) (time.Duration, error) {
	switch text {
	case "daily":
		return day, nil
	case "weekly":
		return 7 * day, nil
	case "monthly":
		return 30 * day, nil
	}
	every, err := parseTime(text)
	if err != nil {
		return 0, wrongValue("is not daily, weekly, monthly or a time (8d, 36h; 0: never)")
	}
	return every, nil
}

// timeText formats a duration as parseTime reads it: "1d12h", "90s", "0".
func timeText(d time.Duration) string {
	days, rest := d/day, d%day
	text := rest.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	switch {
	case d == 0:
		return "0"
	case days == 0:
		return text
	case rest == 0:
		return fmt.Sprintf("%dd", days)
	}
	return fmt.Sprintf("%dd%s", days, text)
}

func newPolicySet(a *app) *cobra.Command {
	f := &policyFlags{}
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Create or change a policy",
		Long: `Creates a policy, which needs a --schedule, or changes the settings that the
flags name and no others. A policy applies to filers that have all of its
labels. If several match, the one with the most labels applies, then the first
by name.

A shard is due if its last good snapshot was started before the most recent time
in the schedule. Its backup starts as soon as a window and the limits of running
snapshots (worker.max_running per site, worker.max_running_per_filer) allow. The
shard with the nearest deadline starts first. A missed run is made up once.

--label KEY- removes a label. Windows and exclusions replace the previous ones;
--window '', --exclude '', --exclude-if-present '' and --exclude-larger-than 0
clear them.

The rules (--keep-…) select the snapshots of each shard that are kept. The
others are forgotten after the next snapshot. Without a rule, all are kept. bctl
forget --policy --dry-run shows beforehand what would be forgotten.

--drill says how often a test restore proves that each shard can be restored.
The machine on which bctl drill --due runs makes these drills.`,
		Example: `  bctl policy set nightly --schedule '30 1 * * *' \
    --time-zone Europe/Berlin --jitter 2h --recovery-point 30h
  bctl policy set weekend --label tier=bronze \
    --schedule '0 20 * * fri' \
    --window 'fri 20:00-24:00' --window 'sat,sun 00:00-24:00'
  bctl policy set nightly --keep-daily 14 --keep-weekly 8 --exclude '*.tmp'
  bctl policy set nightly --drill weekly
  bctl policy set nightly --pause`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.policyNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error { return a.setPolicy(cmd, i, f, given[0]) })
		},
	}
	f.flags(cmd)
	return cmd
}

func (a *app) setPolicy(cmd *cobra.Command, i index.Index, f *policyFlags, name string) error {
	was, err := findPolicy(cmd.Context(), i, name)
	p := was
	if errors.Is(err, backup.ErrNotFound) {
		if f.schedule == "" {
			return usage("policy %s does not exist; to create it, give a --schedule", display(name))
		}
		p, err = backup.Policy{Name: name}, nil
	}
	if err != nil {
		return err
	}
	if p, err = f.apply(cmd, p); err != nil {
		return err
	}
	if err := a.checkPolicy(p, was); err != nil {
		return err
	}
	noteUncovered, err := a.watchCoverage(cmd.Context(), i)
	if err != nil {
		return err
	}
	changed, done := !reflect.DeepEqual(p, was), "unchanged"
	if changed {
		if p, err = i.SetPolicy(cmd.Context(), p, operator()); err != nil {
			return wrongSetting(err)
		}
		if done = "changed"; p.Revision == 1 {
			done = "created"
		}
	}
	of, err := bindings(cmd.Context(), i)
	if err != nil {
		return err
	}
	object := newPolicyJSON(&p, of[p.ID])
	object.Changed = &changed
	err = a.result(object, "policy %s is %s; it applies to %s. bctl policy next lists the shards that are due\n",
		display(name), done, counted(len(of[p.ID]), "filer"))
	a.notePolicies(1)
	return errors.Join(err, noteUncovered())
}

// notePolicies prints a note that policies have no effect on one machine.
func (a *app) notePolicies(policies int) {
	if _, local := a.cfg.IndexPath(); !local || a.cfg.Fleet() || policies == 0 {
		return
	}
	a.note("policies have no effect on one machine: use a timer (systemd, cron) that runs bctl backup, bctl forget --policy --prune and bctl drill --due")
}

// findPolicy returns the policy with the given name.
func findPolicy(ctx context.Context, i index.Policies, name string) (backup.Policy, error) {
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return backup.Policy{}, err
	}
	for _, p := range policies {
		if p.Name == name {
			return p, nil
		}
	}
	return backup.Policy{}, fmt.Errorf("policy %s %w: create it with bctl policy set %[1]s --schedule …, or list policies with bctl policy ls", display(name), backup.ErrNotFound)
}

// bindings returns the filers of each policy, sorted by name.
func bindings(ctx context.Context, i index.Catalog) (map[backup.PolicyID][]index.FilerStatus, error) {
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return nil, err
	}
	filers, err := i.ListFilers(ctx, index.FilerFilter{})
	if err != nil {
		return nil, err
	}
	of := map[backup.PolicyID][]index.FilerStatus{}
	for _, f := range filers {
		if p, ok := policy.For(f.Labels, policies); ok {
			of[p.ID] = append(of[p.ID], f)
		}
	}
	return of, nil
}

func (a *app) policyNames(ctx context.Context, i index.Catalog, _ *cobra.Command, _ []string) ([]string, error) {
	policies, err := i.ListPolicies(ctx)
	var found []string
	for n := range policies {
		found = append(found, policies[n].Name)
	}
	return found, err
}

func newPolicyRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a policy",
		Long: `Removes a policy. Its filers are no longer backed up automatically, unless
another policy applies to them. Running snapshots continue, and existing
snapshots remain.`,
		Example:           `  bctl policy rm nightly`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.policyNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				if _, err := findPolicy(cmd.Context(), i, given[0]); err != nil {
					return err
				}
				noteUncovered, err := a.watchCoverage(cmd.Context(), i)
				if err != nil {
					return err
				}
				if err := i.RemovePolicy(cmd.Context(), given[0], operator()); err != nil {
					return err
				}
				if err := noteUncovered(); err != nil {
					return err
				}
				return a.result(removedPolicyJSON{Policy: given[0]}, "policy %s is removed; its snapshots remain\n", display(given[0]))
			})
		},
	}
}

// removedPolicyJSON is the output of policy rm.
type removedPolicyJSON struct {
	Policy string `json:"policy"`
}
