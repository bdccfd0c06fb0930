package retention

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// randomHistory returns snapshots of some weeks to years, some of them of the same time, not good,
// on hold or tagged.
func randomHistory(rng *rand.Rand, most int) (snapshots []Snapshot) {
	start := time.Date(2018+rng.IntN(8), 1, 1, 0, 0, 0, 0, time.UTC)
	over := time.Duration(1+rng.IntN(1200)) * 24 * time.Hour
	for n := range 1 + rng.IntN(most) {
		s := Snapshot{
			ID: id(rng.IntN(1 << 30)), Time: start.Add(time.Duration(rng.Int64N(int64(over)))),
			Held: rng.IntN(12) == 0, InUse: rng.IntN(20) == 0,
		}
		switch rng.IntN(12) {
		case 0:
		case 1:
			s.Bad = true
		default:
			s.Good = true
		}
		if n > 0 && rng.IntN(6) == 0 {
			s.Time = snapshots[rng.IntN(n)].Time
		}
		if rng.IntN(3) == 0 {
			s.Tags = []string{"a", "b"}[:1+rng.IntN(2)]
		}
		snapshots = append(snapshots, s)
	}
	return snapshots
}

func randomCount(rng *rand.Rand) backup.Count {
	return []backup.Count{0, 0, 0, 1, 2, 3, 5, 9, 30, backup.Unlimited}[rng.IntN(10)]
}

func randomPeriod(rng *rand.Rand) backup.Period {
	return []backup.Period{{}, {}, {}, {Hours: 5}, {Days: 9}, {Months: 3}, {Years: 1, Days: 2}}[rng.IntN(7)]
}

func randomRules(rng *rand.Rand, style backup.Style) backup.Retention {
	for {
		r := backup.Retention{
			Style: style, Last: randomCount(rng), Hourly: randomCount(rng), Daily: randomCount(rng),
			Weekly: randomCount(rng), Monthly: randomCount(rng), Yearly: randomCount(rng),
		}
		if style == backup.StyleRestic {
			r.Within, r.WithinHourly, r.WithinDaily = randomPeriod(rng), randomPeriod(rng), randomPeriod(rng)
			r.WithinWeekly, r.WithinMonthly, r.WithinYearly = randomPeriod(rng), randomPeriod(rng), randomPeriod(rng)
			if rng.IntN(4) == 0 {
				r.Tags = [][]string{{"b"}}
			}
		}
		if r.HasRules() {
			return r
		}
	}
}

var zoneNames = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"}

// eachRandom calls check for random histories, rules and time zones.
func eachRandom(t *testing.T, check func(t *testing.T, rng *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options)) {
	t.Helper()
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		zone, err := time.LoadLocation(zoneNames[rng.IntN(len(zoneNames))])
		if err != nil {
			t.Fatal(err)
		}
		style := []backup.Style{backup.StyleRestic, backup.StylePBS}[seed%2]
		rules, snapshots := randomRules(rng, style), randomHistory(rng, 50)
		if check(t, rng, rules, snapshots, Options{Zone: zone, Retired: rng.IntN(4) == 0}); t.Failed() {
			t.Fatalf("seed %d, %s, %s", seed, style, &rules)
		}
	}
}

func mustDecide(t *testing.T, rules backup.Retention, snapshots []Snapshot, o Options) []Decision {
	t.Helper()
	decisions, err := Decide(rules, snapshots, o)
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

func keptOf(decisions []Decision) (kept []Snapshot) {
	for _, d := range decisions {
		if d.Keep {
			kept = append(kept, d.Snapshot)
		}
	}
	return kept
}

func ids(snapshots []Snapshot) map[backup.SnapshotID]bool {
	set := map[backup.SnapshotID]bool{}
	for _, s := range snapshots {
		set[s.ID] = true
	}
	return set
}

// subset fails unless all of a are in b.
func subset(t *testing.T, what string, a, b []Snapshot) {
	t.Helper()
	in := ids(b)
	for _, s := range a {
		if !in[s.ID] {
			t.Errorf("%s: %v of %s is forgotten", what, s.ID, s.Time)
		}
	}
}

func TestEverySnapshotHasOneDecisionWithReasons(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		decisions := mustDecide(t, rules, snapshots, o)
		decided := make([]Snapshot, len(decisions))
		for n, d := range decisions {
			decided[n] = d.Snapshot
		}
		if slices.SortFunc(snapshots, newestFirst); !reflect.DeepEqual(decided, snapshots) {
			t.Errorf("decisions about %v, not about %v", decided, snapshots)
		}
		for n, d := range decisions {
			forgotten := d.Reasons[0].Cause == NoRule || d.Reasons[0].Cause == NotGood
			if forgotten == d.Keep || forgotten && len(d.Reasons) != 1 {
				t.Errorf("kept %t because of %v", d.Keep, d.Reasons)
			}
			if n > 0 && newestFirst(decisions[n-1].Snapshot, d.Snapshot) > 0 {
				t.Error("not the newest first")
			}
		}
	})
}

func TestTheOrderOfTheInputDoesNotMatter(t *testing.T) {
	eachRandom(t, func(t *testing.T, rng *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		want := mustDecide(t, rules, snapshots, o)
		shuffled := slices.Clone(snapshots)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		before := slices.Clone(shuffled)
		if got := mustDecide(t, rules, shuffled, o); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nand, in another order,\n%v", want, got)
		}
		if !reflect.DeepEqual(shuffled, before) {
			t.Error("the input is changed")
		}
	})
}

// Under all rules, at least one snapshot is left, and so are those that must not be forgotten.
func TestWhatIsNeverForgotten(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		decisions := mustDecide(t, rules, snapshots, o)
		good := false // a newer one is
		for _, d := range decisions {
			s := d.Snapshot
			if !d.Keep && (s.Held || s.InUse || !s.Good && !good || s.Good && !good && !o.Retired) {
				t.Errorf("%+v is forgotten", s)
			}
			good = good || s.Good
		}
		if !o.Retired && len(keptOf(decisions)) == 0 {
			t.Error("nothing is kept")
		}
		rules = backup.Retention{Tags: [][]string{{"missing"}}}
		if kept := keptOf(mustDecide(t, rules, snapshots, Options{})); len(kept) == 0 {
			t.Error("a rule that keeps nothing empties the shard")
		}
	})
}

// A greater number keeps all that a smaller one keeps, and a longer period likewise. With Proxmox
// Backup Server's rules that is not so: a greater number takes from the next rule.
func TestMoreKeepsMore(t *testing.T) {
	eachRandom(t, func(t *testing.T, rng *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		rules.Style = backup.StyleRestic
		more := rules
		for _, c := range []*backup.Count{&more.Last, &more.Hourly, &more.Daily, &more.Weekly, &more.Monthly, &more.Yearly} {
			if *c != backup.Unlimited && rng.IntN(2) == 0 {
				*c += backup.Count(rng.IntN(5))
			}
		}
		for _, p := range []*backup.Period{&more.Within, &more.WithinHourly, &more.WithinDaily, &more.WithinWeekly, &more.WithinMonthly, &more.WithinYearly} {
			p.Days += rng.IntN(2) * rng.IntN(100)
		}
		subset(t, more.String(), keptOf(mustDecide(t, rules, snapshots, o)), keptOf(mustDecide(t, more, snapshots, o)))
	})
}

// Forgetting a second time forgets nothing more.
func TestForgettingAgainForgetsNothing(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		kept := keptOf(mustDecide(t, rules, snapshots, o))
		subset(t, "again", kept, keptOf(mustDecide(t, rules, kept, o)))
	})
}

// By the rules of restic, a hold and a snapshot that is not good change the fate of no other one.
func TestHoldsAndBadSnapshotsTakeNobodysPlace(t *testing.T) {
	eachRandom(t, func(t *testing.T, rng *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		rules.Style = backup.StyleRestic
		want := ids(keptOf(mustDecide(t, rules, snapshots, o)))
		for n := range snapshots {
			held := slices.Clone(snapshots)
			held[n].Held, held[n].Hold = true, "case 7"
			for _, d := range mustDecide(t, rules, held, o) {
				if d.Snapshot.ID != snapshots[n].ID && d.Keep != want[d.Snapshot.ID] || d.Snapshot.ID == snapshots[n].ID && !d.Keep {
					t.Fatalf("a hold on %s changes %s to %t", snapshots[n].Time, d.Snapshot.Time, d.Keep)
				}
			}
		}
		if !slices.ContainsFunc(snapshots, func(s Snapshot) bool { return s.Good }) {
			return // then the newest bad one is the reference of keep-within
		}
		good := slices.DeleteFunc(slices.Clone(snapshots), func(s Snapshot) bool { return !s.Good })
		for _, d := range mustDecide(t, rules, good, o) {
			if d.Keep != want[d.Snapshot.ID] {
				t.Errorf("with snapshots that are not good, %s changes to %t", d.Snapshot.Time, want[d.Snapshot.ID])
			}
		}
	})
}

// A snapshot that is marked as bad is kept for as long as it would be if it were good, so that a
// wrong mark can be taken back, and takes the place of no other one. One that has failed is kept
// for a week.
func TestMarksDoNotShortenLives(t *testing.T) {
	eachRandom(t, func(t *testing.T, _ *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		good := slices.Clone(snapshots)
		for n := range good {
			good[n].Good, good[n].Bad = good[n].Good || good[n].Bad, false
		}
		newest := time.Time{}
		for _, s := range snapshots {
			if s.Good && s.Time.After(newest) {
				newest = s.Time
			}
		}
		wouldBeKept := map[backup.SnapshotID]bool{}
		for _, d := range mustDecide(t, rules, good, o) {
			wouldBeKept[d.Snapshot.ID] = slices.ContainsFunc(d.Reasons, byRule)
		}
		for _, d := range mustDecide(t, rules, snapshots, o) {
			switch s := d.Snapshot; {
			case s.Bad && wouldBeKept[s.ID] && !d.Keep:
				t.Errorf("the mark lets %s be forgotten", s.Time)
			case !s.Good && newest.Sub(s.Time) < 6*24*time.Hour && !d.Keep:
				t.Errorf("%s is forgotten, and the newest good one is of %s", s.Time, newest)
			}
		}
	})
}

// Times are those of the zone, not of the snapshots' values.
func TestTheZoneDecides(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	eachRandom(t, func(t *testing.T, _ *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		want := ids(keptOf(mustDecide(t, rules, snapshots, o)))
		for n := range snapshots {
			snapshots[n].Time = snapshots[n].Time.In(berlin)
		}
		if got := ids(keptOf(mustDecide(t, rules, snapshots, o))); !reflect.DeepEqual(got, want) {
			t.Error("the zone of the snapshots matters")
		}
	})
	// 23:30 and 00:30 in Berlin are one day in UTC.
	late := time.Date(2026, 5, 1, 21, 30, 0, 0, time.UTC)
	two := []Snapshot{{ID: id(1), Time: late, Good: true}, {ID: id(2), Time: late.Add(time.Hour), Good: true}, {ID: id(0), Time: late.AddDate(0, 0, -1), Good: true}}
	for zone, want := range map[*time.Location]int{nil: 2, berlin: 3} {
		if kept := keptOf(mustDecide(t, backup.Retention{Daily: 3}, two, Options{Zone: zone})); len(kept) != want {
			t.Errorf("%v: %d are kept, want %d", zone, len(kept), want)
		}
	}
	if kept := keptOf(mustDecide(t, backup.Retention{Daily: 1}, two, Options{Zone: berlin})); len(kept) != 1 {
		t.Errorf("%d are kept", len(kept))
	}
}

func TestEmptyGroup(t *testing.T) {
	for _, rules := range []backup.Retention{{Last: 1}, {Within: backup.Period{Days: 1}}, {Daily: 1, Style: backup.StylePBS}} {
		if decisions, err := Decide(rules, nil, Options{}); err != nil || len(decisions) != 0 {
			t.Errorf("%v, %v", decisions, err)
		}
	}
}

func TestRulesThatKeepNothingAreRefused(t *testing.T) {
	for _, rules := range []backup.Retention{{}, {Style: backup.StylePBS}, {Tags: [][]string{}}} {
		if _, err := Decide(rules, nil, Options{}); !errors.Is(err, ErrKeepsNothing) || !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%+v: %v", rules, err)
		}
		if err := Check(rules); err != nil {
			t.Errorf("a policy without rules keeps all: %v", err)
		}
	}
}

func TestWrongRulesAreRefused(t *testing.T) {
	for _, test := range []struct {
		rules         backup.Retention
		setting, text string
	}{
		{backup.Retention{Last: -2}, "keep/last", "keep: last: -2 is not a number of 0 or more, or unlimited"},
		{backup.Retention{Daily: 7, Yearly: -3}, "keep/yearly", "-3 is not"},
		{backup.Retention{Within: backup.Period{Days: -1}}, "keep/within", "is negative"},
		{backup.Retention{WithinYearly: backup.Period{Years: 1001}}, "keep/within_yearly", "too long"},
		{backup.Retention{Tags: [][]string{{"a"}, {}}}, "keep/tags/1", "empty tag"},
		{backup.Retention{Tags: [][]string{{"a,b"}}}, "keep/tags/0", "comma"},
		{backup.Retention{Tags: [][]string{{" a"}}}, "keep/tags/0", "spaces"},
		{backup.Retention{Tags: [][]string{{"\x00"}}}, "keep/tags/0", "NUL"},
		{backup.Retention{Tags: make([][]string, 65)}, "keep/tags", "65 lists are more than 64"},
		{backup.Retention{Last: 1, Style: "borg"}, "keep/style", `"borg" is not restic or pbs`},
		{backup.Retention{Last: 1, Style: backup.StylePBS, WithinDaily: backup.Period{Days: 1}}, "keep/within_daily", "the style pbs has no periods: omit them, or use the style restic"},
		{backup.Retention{Last: 1, Style: backup.StylePBS, Tags: [][]string{{"a"}}}, "keep/tags", "the style pbs has no tags: omit them, or use the style restic"},
	} {
		_, err := Decide(test.rules, nil, Options{})
		var setting *backup.SettingError
		if !errors.Is(err, backup.ErrInvalid) || !errors.As(err, &setting) || setting.Setting != test.setting || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%+v: %v", test.rules, err)
		}
	}
}

// The reasons of a dry run.
func TestReasonsAreWords(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 3, n, 1, 0, 0, 0, time.UTC) }
	decisions := mustDecide(t, backup.Retention{Last: 1, Daily: 5, Within: backup.Period{Days: 2}, WithinWeekly: backup.Period{Months: 1}, Tags: [][]string{{"a", "b"}}}, []Snapshot{
		{ID: id(9), Time: day(12)},
		{ID: id(8), Time: day(11), Good: true, InUse: true},
		{ID: id(7), Time: day(10), Good: true, Tags: []string{"b", "a"}},
		{ID: id(6), Time: day(5)},
		{ID: id(1), Time: day(4)},
		{ID: id(5), Time: day(5).Add(-time.Hour), Good: true},
		{ID: id(4), Time: day(5).Add(-2 * time.Hour), Good: true},
		{ID: id(3), Time: day(2), Good: true, Held: true, Hold: "case 7"},
		{ID: id(2), Time: day(2).Add(-10 * time.Minute), Good: true},
	}, Options{})
	var got []string
	for _, d := range decisions {
		got = append(got, fmt.Sprint(d.Snapshot.ID[7], " ", d.Keep, " ", d.Reasons, " ", d.Left.Daily))
	}
	want := []string{
		"9 true [within 2d not good, and no good one is newer by 7d] 5",
		"8 true [within 2d last snapshot daily snapshot weekly within 1m a running snapshot is compared with it last good snapshot] 4",
		"7 true [has tags [a, b] within 2d daily snapshot] 3",
		"6 true [not good, and no good one is newer by 7d] 3",
		"5 true [daily snapshot weekly within 1m] 2",
		"4 true [daily snapshot] 1",
		"1 false [not good, and a good one is newer by 7d] 1",
		"3 true [daily snapshot on hold: case 7] 0",
		"2 true [oldest weekly within 1m] 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
