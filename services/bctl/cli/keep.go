package cli

import (
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
)

// keepFlags are the rules that select the snapshots to keep.
type keepFlags struct {
	rules backup.Retention
	tags  []string
}

func (f *keepFlags) flags(flags *pflag.FlagSet) {
	r := &f.rules
	countFlag(flags, &r.Last, "keep-last", "keep the newest `N` snapshots of each shard (or unlimited)")
	countFlag(flags, &r.Hourly, "keep-hourly", "keep the newest of each of the last `N` hours that have one")
	countFlag(flags, &r.Daily, "keep-daily", "keep the newest of each of the last `N` days that have one")
	countFlag(flags, &r.Weekly, "keep-weekly", "keep the newest of each of the last `N` weeks that have one")
	countFlag(flags, &r.Monthly, "keep-monthly", "keep the newest of each of the last `N` months that have one")
	countFlag(flags, &r.Yearly, "keep-yearly", "keep the newest of each of the last `N` years that have one")
	periodFlag(flags, &r.Within, "keep-within", "keep all that are at most this `PERIOD` (14d, 1y6m) older than the newest")
	periodFlag(flags, &r.WithinHourly, "keep-within-hourly", "keep the newest of each hour of this `PERIOD`")
	periodFlag(flags, &r.WithinDaily, "keep-within-daily", "keep the newest of each day of this `PERIOD`")
	periodFlag(flags, &r.WithinWeekly, "keep-within-weekly", "keep the newest of each week of this `PERIOD`")
	periodFlag(flags, &r.WithinMonthly, "keep-within-monthly", "keep the newest of each month of this `PERIOD`")
	periodFlag(flags, &r.WithinYearly, "keep-within-yearly", "keep the newest of each year of this `PERIOD`")
	flags.StringArrayVar(&f.tags, "keep-tag", nil, "keep those with all of these `TAGS` (a,b); if repeated, those that match any list")
	flags.Var(&parsed[backup.Style]{&r.Style, "", "string", func(text string) (backup.Style, error) {
		s, err := backup.ParseStyle(text)
		if err != nil {
			return s, wrongValue("is not restic or pbs")
		}
		return s, nil
	}}, "keep-style", "how the rules work together: `STYLE` is restic (default) or pbs (as in Proxmox Backup Server)")
}

// countFlag adds a flag for a number of snapshots.
func countFlag(flags *pflag.FlagSet, to *backup.Count, name, usage string) {
	flags.Var(&parsed[backup.Count]{to, "0", "int", func(text string) (backup.Count, error) {
		c, err := backup.ParseCount(text)
		if err != nil {
			return c, wrongValue("is not a number of 0 or more, or unlimited")
		}
		return c, nil
	}}, name, usage)
}

// periodFlag adds a flag for a period of the calendar.
func periodFlag(flags *pflag.FlagSet, to *backup.Period, name, usage string) {
	flags.Var(&parsed[backup.Period]{to, "", "string", func(text string) (backup.Period, error) {
		p, err := backup.ParsePeriod(text)
		if err != nil {
			return p, wrongValue("is not years, months, days and hours in this order (14d, 36h, 1y5m7d2h; at most 1000y, 12000m, 100000d, 2400000h)")
		}
		return p, nil
	}}, name, usage)
}

// apply sets the given flags in r.
func (f *keepFlags) apply(given func(flag string) bool, r *backup.Retention) error {
	setIf(given("keep-last"), &r.Last, f.rules.Last)
	setIf(given("keep-hourly"), &r.Hourly, f.rules.Hourly)
	setIf(given("keep-daily"), &r.Daily, f.rules.Daily)
	setIf(given("keep-weekly"), &r.Weekly, f.rules.Weekly)
	setIf(given("keep-monthly"), &r.Monthly, f.rules.Monthly)
	setIf(given("keep-yearly"), &r.Yearly, f.rules.Yearly)
	setIf(given("keep-within"), &r.Within, f.rules.Within)
	setIf(given("keep-within-hourly"), &r.WithinHourly, f.rules.WithinHourly)
	setIf(given("keep-within-daily"), &r.WithinDaily, f.rules.WithinDaily)
	setIf(given("keep-within-weekly"), &r.WithinWeekly, f.rules.WithinWeekly)
	setIf(given("keep-within-monthly"), &r.WithinMonthly, f.rules.WithinMonthly)
	setIf(given("keep-within-yearly"), &r.WithinYearly, f.rules.WithinYearly)
	setIf(given("keep-style"), &r.Style, f.rules.Style)
	if given("keep-tag") {
		r.Tags = nil
		for _, text := range notEmpty(f.tags) {
			list, err := backup.ParseTags(text)
			if err != nil {
				return usage("--keep-tag %q is not a list of tags, separated by commas", text)
			}
			r.Tags = append(r.Tags, list)
		}
	}
	return nil
}

// checkTags fails unless a rule can select each of the tags of a new snapshot: --keep-tag takes
// lists, separated by commas.
func checkTags(tags []string) error {
	for _, tag := range tags {
		if list, err := backup.ParseTags(tag); err != nil || len(list) != 1 || list[0] != tag {
			return usage("--tag %q is no tag: it is empty, or has a comma or spaces around it, so no --keep-tag could name it (for several tags, repeat --tag)", tag)
		}
	}
	return nil
}
