package retention

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

func pbs(text string) (r backup.Retention) {
	r.Style = backup.StylePBS
	to := map[string]*backup.Count{"last": &r.Last, "hourly": &r.Hourly, "daily": &r.Daily, "weekly": &r.Weekly, "monthly": &r.Monthly, "yearly": &r.Yearly}
	for _, rule := range strings.Fields(text) {
		name, count, _ := strings.Cut(rule, "=")
		c, err := backup.ParseCount(count)
		if err != nil {
			panic(err)
		}
		*to[name] = c
	}
	return r
}

// at returns good snapshots.
func at(t *testing.T, texts string) (snapshots []Snapshot) {
	t.Helper()
	for n, text := range strings.Fields(texts) {
		when, err := time.Parse("2006-01-02T15:04", text)
		if err != nil {
			t.Fatal(err)
		}
		snapshots = append(snapshots, Snapshot{ID: id(n), Time: when, Good: true})
	}
	return snapshots
}

func textOf(kept []Snapshot) string {
	var texts []string
	for _, s := range kept {
		texts = append(texts, s.Time.Format("2006-01-02T15:04"))
	}
	return strings.Join(texts, " ")
}

// The decisions are those of the tests of Proxmox Backup Server (tests/prune.rs), and of the
// examples of its documentation.
func TestDecisionsAreThoseOfProxmoxBackupServer(t *testing.T) {
	const (
		hours = "2019-11-15T09:39 2019-11-15T10:49 2019-11-15T10:59 2019-11-15T11:39 2019-11-15T11:49 2019-11-15T11:59"
		weeks = "2018-11-15T11:59 2019-11-15T11:59 2019-11-21T11:59 2019-11-22T11:59 2019-11-29T11:59 2019-12-01T11:59 2019-12-02T11:59 2019-12-03T11:59 2019-12-04T11:59"
		days  = "2019-12-02T11:59 2019-12-03T11:59 2019-12-04T11:59 2019-12-04T12:59"
		// "In a week covered by keep-weekly … keep-monthly does not consider backups from that week
		// anymore, even if part of the week is part of an earlier month." 1 March 2021 was a
		// Monday.
		month = "2021-01-20T01:00 2021-02-28T01:00 2021-04-25T01:00 2021-04-26T01:00 2021-04-30T01:00 2021-05-01T01:00 2021-05-02T01:00 2021-05-03T01:00"
	)
	for _, test := range []struct{ snapshots, rules, kept string }{
		{hours, "hourly=3", "2019-11-15T11:59 2019-11-15T10:59 2019-11-15T09:39"},
		{hours, "hourly=2", "2019-11-15T11:59 2019-11-15T10:59"},
		{weeks, "daily=1", "2019-12-04T11:59"},
		{weeks, "last=1 daily=1", "2019-12-04T11:59 2019-12-03T11:59"},
		{weeks, "daily=1 weekly=1", "2019-12-04T11:59 2019-12-01T11:59"},
		{weeks, "daily=1 weekly=1 monthly=1", "2019-12-04T11:59 2019-12-01T11:59 2019-11-22T11:59"},
		{weeks, "monthly=1 yearly=1", "2019-12-04T11:59 2018-11-15T11:59"},
		{days, "last=4", "2019-12-04T12:59 2019-12-04T11:59 2019-12-03T11:59 2019-12-02T11:59"},
		{days, "last=3", "2019-12-04T12:59 2019-12-04T11:59 2019-12-03T11:59"},
		{days, "last=1", "2019-12-04T12:59"},
		{days, "last=2 daily=2", "2019-12-04T12:59 2019-12-04T11:59 2019-12-03T11:59 2019-12-02T11:59"},
		{days, "daily=3", "2019-12-04T12:59 2019-12-03T11:59 2019-12-02T11:59"},
		{days, "daily=2", "2019-12-04T12:59 2019-12-03T11:59"},
		{days, "weekly=5", "2019-12-04T12:59"},
		{days, "daily=1 weekly=5", "2019-12-04T12:59"},
		{days, "monthly=6", "2019-12-04T12:59"},
		{days, "yearly=7", "2019-12-04T12:59"},
		{days, "weekly=5 monthly=6 yearly=7", "2019-12-04T12:59"},
		{days, "last=unlimited", "2019-12-04T12:59 2019-12-04T11:59 2019-12-03T11:59 2019-12-02T11:59"},
		{month, "weekly=2 monthly=1", "2021-05-03T01:00 2021-05-02T01:00 2021-04-25T01:00"},
		{month, "weekly=2 monthly=unlimited", "2021-05-03T01:00 2021-05-02T01:00 2021-04-25T01:00 2021-02-28T01:00 2021-01-20T01:00"},
	} {
		if got := textOf(keptOf(mustDecide(t, pbs(test.rules), at(t, test.snapshots), Options{}))); got != test.kept {
			t.Errorf("%s of %s:\ngot  %s\nwant %s", test.rules, test.snapshots, got, test.kept)
		}
	}
}

// The example of the documentation for daily backups: keep-last=3 and keep-daily=13 keep at least
// two weeks, and the further rules two months, a year and ten years.
func TestTheExampleOfTenYears(t *testing.T) {
	rules := pbs("last=3 daily=13 weekly=8 monthly=11 yearly=9")
	end := time.Date(2035, 6, 17, 21, 0, 0, 0, time.UTC)
	var daily []Snapshot
	for n := range 12 * 366 {
		daily = append(daily, Snapshot{ID: id(n), Time: end.AddDate(0, 0, -n), Good: true})
	}
	kept := keptOf(mustDecide(t, rules, daily, Options{}))
	if len(kept) != 3+13+8+11+9 {
		t.Errorf("%d are kept", len(kept))
	}
	tenth := time.Date(end.Year()-9, 1, 1, 0, 0, 0, 0, time.UTC) // years of the calendar
	for n, least := range map[int]time.Time{3 + 13: end.AddDate(0, 0, -14), 3 + 13 + 8: end.AddDate(0, -2, 0), 3 + 13 + 8 + 11: end.AddDate(-1, 0, 0), 44: tenth} {
		if oldest := kept[n-1].Time; oldest.After(least.AddDate(0, 0, 1)) {
			t.Errorf("the first %d reach to %s, not to %s", n, oldest, least)
		}
	}
}

// Each rule keeps at most its number, of units that no earlier rule has covered, and the newest
// snapshot of each that is not on hold.
func TestEachRuleOfPBSKeepsItsOwn(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		if rules.Style != backup.StylePBS {
			return
		}
		for n := range snapshots {
			snapshots[n].Bad = false // otherwise it has the reasons that it would have if it were good
		}
		decisions := mustDecide(t, rules, snapshots, o)
		for n, c := range rules.Counts() {
			every, count := Every(n), backup.Count(0)
			units := map[unit]int{}
			for _, d := range decisions {
				for _, r := range d.Reasons {
					if r.Cause != ByCount || r.Every > every {
						continue
					}
					if r.Every == every {
						count++
						if every != All {
							units[unitOf(every, d.Snapshot.Time.In(o.Zone))] += 1000
						}
					} else if every != All {
						units[unitOf(every, d.Snapshot.Time.In(o.Zone))]++
					}
				}
			}
			if c.Count != backup.Unlimited && count > c.Count {
				t.Errorf("%s keeps %d, not %d", c.Name, count, c.Count)
			}
			for at, kept := range units {
				if kept > 1000 {
					t.Errorf("%s keeps one more of %d", c.Name, at)
				}
			}
		}
		for _, d := range decisions {
			if byRules := slices.ContainsFunc(d.Reasons, byRule); byRules && (d.Snapshot.Held || !d.Snapshot.Good) {
				t.Errorf("a rule counts %+v", d.Snapshot)
			}
		}
	})
}
