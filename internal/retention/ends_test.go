package retention

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// each returns the schedule of one snapshot per period, some minutes after its beginning.
func each(period, offset time.Duration) func(time.Time) time.Time {
	return func(after time.Time) time.Time { return after.Add(-offset).UTC().Truncate(period).Add(period + offset) }
}

// The ends are those that a simulation finds, for random rules, histories and schedules. They never
// come later. Few come sooner, because a snapshot may become the oldest one, which rules keep for
// longer.
func TestEndsAreThoseOfASimulation(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	checked, sooner := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 16))
		rules := randomEndRules(r)
		if !rules.HasRules() {
			continue
		}
		next := each([]time.Duration{time.Hour, 6 * time.Hour, 24 * time.Hour}[r.IntN(3)], 7*time.Minute)
		o := Options{Zone: []*time.Location{time.UTC, berlin}[r.IntN(2)]}
		var kept []Snapshot
		at := time.Date(2026, 1, 1+r.IntN(400), r.IntN(24), 0, 0, 0, time.UTC)
		for n := range 1 + r.IntN(60) {
			at = next(at)
			kept = append(kept, Snapshot{ID: id(n + 1), Time: at, Good: r.IntN(20) > 0})
			decisions, err := Decide(rules, kept, o)
			if err != nil {
				t.Fatal(err)
			}
			kept = kept[:0]
			for _, d := range decisions {
				if d.Keep {
					kept = append(kept, d.Snapshot)
				}
			}
		}
		now := at.Add(time.Minute)
		ends, err := Ends(rules, kept, next, now, o)
		if err != nil {
			t.Fatal(err)
		}
		decisions, err := Decide(rules, kept, o)
		if err != nil {
			t.Fatal(err)
		}
		f := &forecast{rules: &rules, next: next, now: now, first: next(now), zone: o.Zone}
		for id, want := range f.simulate(decisions, o) {
			got := ends[id]
			if want.Open && !got.Open && got.At.Sub(now) < simulatedFor {
				continue // the simulation would take too long
			}
			switch {
			case got == want || want.Open:
				checked++
				continue
			case !got.Open && got.At.Before(want.At):
				sooner++
				continue
			}
			t.Errorf("seed %d, rules %s: snapshot %v of %s ends %v, want %v (now %v)", seed, rules.String(), id, timeOf(kept, id), got, want, now)
		}
	}
	if checked < 1000 || sooner > checked/50 {
		t.Errorf("%d ends agree, and %d come sooner", checked, sooner)
	}
}

func timeOf(snapshots []Snapshot, id backup.SnapshotID) string {
	for _, s := range snapshots {
		if s.ID == id {
			return s.Time.Format(time.DateTime)
		}
	}
	return ""
}

func randomEndRules(r *rand.Rand) (rules backup.Retention) {
	for _, c := range []*backup.Count{&rules.Last, &rules.Hourly, &rules.Daily, &rules.Weekly, &rules.Monthly, &rules.Yearly} {
		if r.IntN(3) == 0 {
			*c = backup.Count(1 + r.IntN(8))
		}
	}
	for _, p := range []*backup.Period{&rules.Within, &rules.WithinHourly, &rules.WithinDaily, &rules.WithinWeekly, &rules.WithinMonthly} {
		if r.IntN(5) == 0 {
			*p = backup.Period{Months: r.IntN(3), Days: r.IntN(9), Hours: 1 + r.IntN(30)}
		}
	}
	return rules
}

func TestEnds(t *testing.T) {
	start := time.Date(2026, 3, 2, 1, 0, 0, 0, time.UTC) // a Monday
	daily := each(24*time.Hour, time.Hour)
	var snapshots []Snapshot
	for n := range 10 {
		snapshots = append(snapshots, Snapshot{ID: id(n + 1), Time: start.AddDate(0, 0, n), Good: true})
	}
	now := snapshots[9].Time.Add(time.Hour)
	snapshots[4].Held = true
	ends := func(rules backup.Retention, next func(time.Time) time.Time) string {
		t.Helper()
		ends, err := Ends(rules, snapshots, next, now, Options{})
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for n := range snapshots {
			switch end, kept := ends[snapshots[n].ID]; {
			case !kept:
				text += "- "
			case end.Open:
				text += "open "
			default:
				text += end.At.Format("2.1 ")
			}
		}
		return text
	}
	never := func(time.Time) time.Time { return time.Time{} }
	for _, test := range []struct {
		rules backup.Retention
		next  func(time.Time) time.Time
		want  string
	}{
		{backup.Retention{}, daily, "open open open open open open open open open open "},
		{backup.Retention{Last: 3}, daily, "- - - - open - - 12.3 13.3 14.3 "},
		{backup.Retention{Daily: 2, Weekly: 2}, daily, "- - - - open - 16.3 - 12.3 13.3 "},
		{backup.Retention{Within: backup.Period{Days: 3}}, daily, "- - - - open - - 12.3 13.3 14.3 "},
		{backup.Retention{Last: 3, Style: backup.StylePBS}, daily, "- - - - open - - 12.3 13.3 14.3 "},
		{backup.Retention{Last: 3}, never, "- - - - open - - open open open "},
		{backup.Retention{Yearly: backup.Unlimited}, daily, "open - - - open - - - - 12.3 "},
	} {
		if got := ends(test.rules, test.next); got != test.want {
			t.Errorf("%s: %s, want %s", test.rules.String(), got, test.want)
		}
	}
	if _, err := Ends(backup.Retention{Last: -2}, nil, daily, now, Options{}); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("wrong rules: %v", err)
	}
}

// The end of a snapshot that is kept for ten years takes no simulation of ten years.
func BenchmarkEnds(b *testing.B) {
	hourly := each(time.Hour, 0)
	rules := backup.Retention{Hourly: 24, Daily: 7, Weekly: 4, Monthly: 12, Yearly: 10}
	s, err := Simulate(rules, nil, every(time.Hour, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 8760), Options{})
	if err != nil {
		b.Fatal(err)
	}
	var kept []Snapshot
	for _, d := range s.Kept {
		kept = append(kept, d.Snapshot)
	}
	for b.Loop() {
		if ends, err := Ends(rules, kept, hourly, kept[0].Time, Options{}); err != nil || len(ends) != len(kept) {
			b.Fatal(fmt.Sprint(len(ends), err))
		}
	}
}
