package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// perZone is the number of histories per time zone.
const perZone = 42

// A kind of history returns its times, in any order.
type kind struct {
	name  string
	times func(rng *rand.Rand, zone *time.Location) []time.Time
}

var kinds = []kind{
	{"one", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return spread(rng, date(zone, 2025, 3, 1), 400*day, 1)
	}},
	{"daily", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return regular(rng, date(zone, 2023, 10, 1).Add(time.Duration(rng.IntN(300))*day), day, 20+rng.IntN(30), time.Hour)
	}},
	// The ends of periods are times of snapshots.
	{"exactly daily", func(_ *rand.Rand, zone *time.Location) (times []time.Time) {
		for n := range 50 {
			times = append(times, date(zone, 2025, 9, 20+n).Add(2*time.Hour))
		}
		return times
	}},
	{"exactly hourly", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return regular(rng, date(zone, 2025, 10, 1+rng.IntN(30)), time.Hour, 60, 1)
	}},
	{"hourly", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return regular(rng, date(zone, 2024, 6, 1), time.Hour, 30+rng.IntN(30), 10*time.Minute)
	}},
	{"weekly", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return regular(rng, date(zone, 2019+rng.IntN(4), 2, 1), 7*day, 60, 6*time.Hour)
	}},
	{"sparse", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return spread(rng, date(zone, 2015, 1, 1), 3000*day, 40)
	}},
	{"month", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return spread(rng, date(zone, 2025, 1, 1), 60*day, 45)
	}},
	// The clocks go forward and back in all the zones.
	{"clocks", func(rng *rand.Rand, zone *time.Location) []time.Time {
		var times []time.Time
		for _, at := range [][3]int{{2024, 3, 10}, {2024, 3, 31}, {2024, 4, 7}, {2024, 10, 6}, {2024, 10, 27}, {2024, 11, 3}} {
			times = append(times, spread(rng, date(zone, at[0], at[1], at[2]), 30*time.Hour, 8)...)
		}
		return times
	}},
	{"leap days", func(rng *rand.Rand, zone *time.Location) []time.Time {
		var times []time.Time
		for _, year := range []int{2000, 2020, 2023, 2024} {
			times = append(times, spread(rng, date(zone, year, 2, 27), 4*day, 8)...)
		}
		return append(times, date(zone, 2024, 2, 29).Add(12*time.Hour))
	}},
	// The first and last ISO weeks of a year, 53 of them in 2015, 2020 and 2026.
	{"year ends", func(rng *rand.Rand, zone *time.Location) []time.Time {
		var times []time.Time
		for year := 2014; year < 2025; year++ {
			times = append(times, spread(rng, date(zone, year, 12, 27), 10*day, 5)...)
		}
		return times
	}},
	// Boundaries of hours, days, weeks, months and years, and the seconds beside them.
	{"boundaries", func(rng *rand.Rand, zone *time.Location) []time.Time {
		var times []time.Time
		for range 15 {
			at := date(zone, 2022+rng.IntN(3), 1+rng.IntN(12), 1+rng.IntN(2)*rng.IntN(28))
			times = append(times, at, at.Add(-time.Second), at.Add(time.Duration(rng.IntN(24))*time.Hour))
		}
		return times
	}},
	// Snapshots that are dated in the future.
	{"future", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return append(spread(rng, date(zone, 2025, 1, 1), 100*day, 20), spread(rng, date(zone, 2150, 1, 1), 500*day, rng.IntN(8))...)
	}},
	{"all in future", func(rng *rand.Rand, zone *time.Location) []time.Time {
		return spread(rng, date(zone, 2150, 1, 1), 500*day, 15)
	}},
}

const day = 24 * time.Hour

func date(zone *time.Location, year, month, day int) time.Time {
	return time.Date(year, time.Month(month), day, 0, 0, 0, 0, zone)
}

func regular(rng *rand.Rand, start time.Time, every time.Duration, n int, jitter time.Duration) (times []time.Time) {
	for i := range n {
		times = append(times, start.Add(time.Duration(i)*every+random(rng, jitter)))
	}
	return times
}

func spread(rng *rand.Rand, start time.Time, over time.Duration, n int) (times []time.Time) {
	for range n {
		times = append(times, start.Add(random(rng, over)))
	}
	return times
}

// histories returns groups without decisions. Snapshots of the same time have the same tags: restic
// leaves their order to chance.
func histories(rng *rand.Rand, name string, zone *time.Location) (groups []group) {
	for n := range perZone {
		k := kinds[n%len(kinds)]
		g := group{Zone: name, Kind: fmt.Sprintf("%s %d", k.name, n/len(kinds))}
		times := k.times(rng, zone)
		fine := rng.IntN(4) == 0 // parts of a second
		for i := range times {
			if !fine {
				times[i] = times[i].Truncate(time.Second)
			}
			if rng.IntN(8) == 0 {
				times = append(times, times[i])
			}
		}
		tags := map[int64][]string{}
		for _, at := range times {
			if _, ok := tags[at.UnixNano()]; !ok {
				tags[at.UnixNano()] = randomTags(rng)
			}
			g.Snapshots = append(g.Snapshots, snapshot{at.UTC(), tags[at.UnixNano()]})
		}
		slices.SortFunc(g.Snapshots, func(a, b snapshot) int { return b.Time.Compare(a.Time) })
		groups = append(groups, g)
	}
	return groups
}

func randomTags(rng *rand.Rand) (tags []string) {
	for _, tag := range []string{"a", "b", "c"} {
		if rng.IntN(6) == 0 {
			tags = append(tags, tag)
		}
	}
	return tags
}

func random(rng *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(below)))
}
