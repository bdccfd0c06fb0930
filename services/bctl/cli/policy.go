package cli

import (
	"context"
	"errors"
	"fmt"
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
		Long: `A policy says when the shards of some filers are backed up, what is left out,
and how long snapshots are kept. Labels choose the filers. The committers of a
fleet follow policies: a change holds within seconds. On one machine nothing
follows them: a timer (systemd, cron) has to run bctl backup.`,
	})
	cmd.AddCommand(newPolicySet(a), newPolicyLs(a), newPolicyShow(a), newPolicyRm(a), newPolicyNext(a))
	return cmd
}

// policyFlags are the settings of a policy.
type policyFlags struct {
	schedule, timeZone            string
	jitter, recoveryPoint, within time.Duration
	windows, labels               []string
	keep                          backup.Retention
	floor                         int // percent
	pause, resume                 bool
	exclusions                    exclusions
}

func (f *policyFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.schedule, "schedule", "", "`CRON` expression of five fields (\"30 2 * * *\"), or @hourly, @daily, @weekly, @monthly, \"@every 6h\"")
	flags.StringVar(&f.timeZone, "time-zone", "", "time `ZONE` of schedule and windows (Europe/Berlin; default: UTC)")
	timeFlag(flags, &f.jitter, "jitter", "spread the shards over this `TIME` (2h)")
	flags.StringArrayVar(&f.windows, "window", nil, "begin snapshots only in this `WINDOW` (\"mon-fri 20:00-06:00\"; may be repeated)")
	timeFlag(flags, &f.recoveryPoint, "recovery-point", "how old a last good snapshot may get, a `TIME` (26h, 8d); 0: until the shard is due again")
	numberFlag(flags, &f.floor, "floor", 0, 0, 100, "`PERCENT` of a filer's limits that the governor leaves in any case; 0: an eighth")
	numberFlag(flags, &f.keep.Last, "keep-last", 0, 0, most, "keep the newest `N` snapshots of each shard")
	numberFlag(flags, &f.keep.Hourly, "keep-hourly", 0, 0, most, "keep the newest of each of the last `N` hours that have one")
	numberFlag(flags, &f.keep.Daily, "keep-daily", 0, 0, most, "the same of `N` days")
	numberFlag(flags, &f.keep.Weekly, "keep-weekly", 0, 0, most, "the same of `N` weeks")
	numberFlag(flags, &f.keep.Monthly, "keep-monthly", 0, 0, most, "the same of `N` months")
	numberFlag(flags, &f.keep.Yearly, "keep-yearly", 0, 0, most, "the same of `N` years")
	timeFlag(flags, &f.within, "keep-within", "keep those that are not older than this `TIME` (14d)")
	flags.StringArrayVar(&f.labels, "label", nil, "of filers with the label `KEY=VALUE` (may be repeated: with all of them; none: of all filers)")
	flags.BoolVar(&f.pause, "pause", false, "begin nothing until --resume")
	flags.BoolVar(&f.resume, "resume", false, "go on")
	f.exclusions.flags(cmd, "each shard")
}

// apply returns p with the given flags applied.
func (f *policyFlags) apply(cmd *cobra.Command, p backup.Policy) (_ backup.Policy, err error) {
	given := cmd.Flags().Changed
	if given("schedule") {
		p.Schedule = f.schedule
	}
	if given("time-zone") {
		p.TimeZone = f.timeZone
	}
	if given("window") {
		p.Windows = notEmpty(f.windows)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		to    *time.Duration
	}{{"jitter", f.jitter, &p.Jitter}, {"recovery-point", f.recoveryPoint, &p.RecoveryPoint}, {"keep-within", f.within, &p.Retention.Within}} {
		if given(d.flag) {
			*d.to = d.value
		}
	}
	for _, n := range []struct {
		flag  string
		value int
		to    *int
	}{
		{"floor", f.floor, &p.Floor},
		{"keep-last", f.keep.Last, &p.Retention.Last}, {"keep-hourly", f.keep.Hourly, &p.Retention.Hourly},
		{"keep-daily", f.keep.Daily, &p.Retention.Daily}, {"keep-weekly", f.keep.Weekly, &p.Retention.Weekly},
		{"keep-monthly", f.keep.Monthly, &p.Retention.Monthly}, {"keep-yearly", f.keep.Yearly, &p.Retention.Yearly},
	} {
		if given(n.flag) {
			*n.to = n.value
		}
	}
	if given("label") {
		if p.Labels, err = changeLabels(p.Labels, f.labels); err != nil {
			return p, err
		}
	}
	if f.pause && f.resume {
		return p, usage("--pause and --resume are given together")
	}
	p.Paused = p.Paused && !f.resume || f.pause
	p.Selection, err = f.exclusions.apply(cmd, p.Selection)
	return p, err
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
		Long: `Makes a policy, which needs a --schedule, or changes what the flags name of one
that is there, and nothing else. It holds for filers that have all of its
labels; of several such policies the one with the most labels holds, then the
first by name.

A shard is due when its last good snapshot was begun before the schedule's last
occurrence, and begun as soon as a window and the limits of running snapshots
(worker.max_running per site, worker.max_running_per_filer) allow: what has the
nearest deadline comes first. A run that was missed is run once.

--label KEY- removes a label. Windows and exclusions take the place of those
that were there; --window '', --exclude '', --exclude-if-present '' and
--exclude-larger-than 0 empty them. How long snapshots are kept is noted;
nothing is deleted yet.`,
		Example: `  bctl policy set nightly --schedule '30 1 * * *' \
    --time-zone Europe/Berlin --jitter 2h --recovery-point 30h
  bctl policy set weekend --label tier=bronze \
    --schedule '0 20 * * fri' --window 'fri-sun 20:00-20:00'
  bctl policy set nightly --keep-daily 14 --keep-weekly 8 --exclude '*.tmp'
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
			return usage("policy %s is not there, and a new one needs a --schedule", display(name))
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
	if p, err = i.SetPolicy(cmd.Context(), p); err != nil {
		return wrongSetting(err)
	}
	of, err := bindings(cmd.Context(), i)
	if err != nil {
		return err
	}
	if a.json {
		err = a.print(newPolicyJSON(&p, of[p.ID]))
	} else {
		done := "changed"
		if p.Revision == 1 {
			done = "made"
		}
		_, err = fmt.Fprintf(a.out, "policy %s is %s; it holds for %s. bctl policy next tells what is due\n", display(name), done, counted(len(of[p.ID]), "filer"))
	}
	a.notePolicies(1)
	return err
}

// notePolicies prints a note that policies have no effect on one machine.
func (a *app) notePolicies(policies int) {
	if _, local := a.cfg.IndexPath(); !local || a.cfg.Fleet() || policies == 0 {
		return
	}
	a.note("nothing follows policies on one machine, only the committers of a fleet do: have a timer (systemd, cron) run bctl backup")
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
	return backup.Policy{}, fmt.Errorf("policy %s %w: bctl policy set %[1]s --schedule … makes it, bctl policy ls lists what is there", display(name), backup.ErrNotFound)
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
		Long: `Removes a policy. Its filers are not backed up by themselves any more, unless
another policy holds for them. What runs goes on, and snapshots stay.`,
		Example:           `  bctl policy rm nightly`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.policyNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				if _, err := findPolicy(cmd.Context(), i, given[0]); err != nil {
					return err
				}
				if err := i.RemovePolicy(cmd.Context(), given[0]); err != nil {
					return err
				}
				if a.json {
					return a.print(removedPolicyJSON{Policy: given[0]})
				}
				_, err := fmt.Fprintf(a.out, "policy %s is removed; snapshots stay\n", display(given[0]))
				return err
			})
		},
	}
}

// removedPolicyJSON is the output of policy rm.
type removedPolicyJSON struct {
	Policy string `json:"policy"`
}
