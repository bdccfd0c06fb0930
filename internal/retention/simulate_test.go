package retention

import (
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// every yields n times, one per period.
func every(period time.Duration, start time.Time, n int) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for i := range n {
			if !yield(start.Add(time.Duration(i) * period)) {
				return
			}
		}
	}
}

func TestSimulateAYear(t *testing.T) {
	start := time.Date(2026, 1, 1, 1, 30, 0, 0, time.UTC)
	rules := backup.Retention{Daily: 7, Weekly: 4, Monthly: 12}
	s, err := Simulate(rules, nil, every(24*time.Hour, start, 365), Options{})
	if err != nil {
		t.Fatal(err)
	}
	// 25 to 31 December; the Sundays of 3 weeks before this one, of which one is the 28th's;
	// the ends of 11 months.
	want := "2026-12-31T01:30 2026-12-30T01:30 2026-12-29T01:30 2026-12-28T01:30 2026-12-27T01:30 2026-12-26T01:30 2026-12-25T01:30 " +
		"2026-12-20T01:30 2026-12-13T01:30 " +
		"2026-11-30T01:30 2026-10-31T01:30 2026-09-30T01:30 2026-08-31T01:30 2026-07-31T01:30 2026-06-30T01:30 2026-05-31T01:30 " +
		"2026-04-30T01:30 2026-03-31T01:30 2026-02-28T01:30 2026-01-31T01:30"
	var kept []Snapshot
	for _, d := range s.Kept {
		kept = append(kept, d.Snapshot)
	}
	if got := textOf(kept); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s.Made != 365 || s.Max < len(kept) || s.Max > 7+4+12 || s.Mean < 12 || s.Mean > float64(s.Max) || s.MaxAt.Before(start) {
		t.Errorf("%d made, at most %d (%s), mean %v", s.Made, s.Max, s.MaxAt, s.Mean)
	}
}

func TestSimulateCounts(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, err := Simulate(backup.Retention{Last: 3}, nil, every(time.Hour, start, 5), Options{})
	if err != nil || s.Made != 5 || s.Max != 3 || !s.MaxAt.Equal(start.Add(2*time.Hour)) || s.Mean != (1+2+3+3+3)/5. || len(s.Kept) != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := Simulate(backup.Retention{Last: 3}, nil, every(time.Hour, start, 0), Options{}); err != nil || s.Made != 0 || s.Mean != 0 || len(s.Kept) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	// It begins with what is there.
	old := Snapshot{ID: id(1), Time: start.AddDate(-1, 0, 0), Good: true, Held: true, Hold: "case 7"}
	s, err = Simulate(backup.Retention{Last: 1}, []Snapshot{old}, every(time.Hour, start, 2), Options{})
	if err != nil || s.Max != 2 || len(s.Kept) != 2 || s.Kept[1].Snapshot.ID != old.ID {
		t.Errorf("%+v, %v", s, err)
	}
}

// At each step, the simulation is a decision about what the previous one kept.
func TestSimulationIsDecisionAfterDecision(t *testing.T) {
	eachRandom(t, func(t *testing.T, rng *rand.Rand, rules backup.Retention, snapshots []Snapshot, o Options) {
		if rng.IntN(10) > 0 {
			return
		}
		slices.SortFunc(snapshots, newestFirst)
		begin := snapshots[len(snapshots)/2:]
		var times []time.Time
		for _, s := range slices.Backward(snapshots[:len(snapshots)/2]) {
			times = append(times, s.Time)
		}
		got, err := Simulate(rules, begin, slices.Values(times), o)
		if err != nil {
			t.Fatal(err)
		}
		left, most := slices.Clone(begin), 0
		for n, at := range times {
			left = keptOf(mustDecide(t, rules, append(left, Snapshot{ID: simulatedID(n + 1), Time: at, Good: true}), o))
			most = max(most, len(left))
		}
		if len(times) == 0 {
			left = keptOf(mustDecide(t, rules, left, o))
		}
		if len(left) != len(got.Kept) || most != got.Max || got.Made != len(times) {
			t.Errorf("%d and at most %d, not %d and %d", len(got.Kept), got.Max, len(left), most)
		}
		for n := range min(len(left), len(got.Kept)) {
			if left[n].ID != got.Kept[n].Snapshot.ID {
				t.Errorf("%s is kept, not %s", got.Kept[n].Snapshot.Time, left[n].Time)
			}
		}
	})
}

func TestSimulationsThatAreRefused(t *testing.T) {
	defer func(was int) { maxSteps = was }(maxSteps)
	maxSteps = 10_000
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		rules backup.Retention
		begin []Snapshot
		times iter.Seq[time.Time]
		err   error
	}{
		"no rules":  {backup.Retention{}, nil, every(time.Hour, start, 1), ErrKeepsNothing},
		"backwards": {backup.Retention{Last: 1}, nil, every(-time.Hour, start, 2), backup.ErrInvalid},
		"old":       {backup.Retention{Last: 1}, []Snapshot{{Time: start.Add(time.Hour), Good: true}}, every(time.Hour, start, 1), backup.ErrInvalid},
		"too long":  {backup.Retention{Last: backup.Unlimited}, nil, every(time.Minute, start, 525600), ErrTooLong},
	} {
		if s, err := Simulate(test.rules, test.begin, test.times, Options{}); !errors.Is(err, test.err) || s.Made != 0 {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}
