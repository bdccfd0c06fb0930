package retention

import (
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A rule that keeps the newest snapshots, or the newest of each unit.
type rule struct {
	every Every
	count backup.Count  // left
	after time.Time     // only those that are newer
	from  backup.Period // of which after is the result; zero: the rule has a count
	last  unit          // of the snapshot that was kept last
	begun bool          // last is set
}

// takes reports whether the rule keeps the next older snapshot.
func (r *rule) takes(t time.Time, oldest bool) (Reason, bool) {
	if r.from.IsZero() && r.count == 0 || !r.from.IsZero() && !t.After(r.after) {
		return Reason{}, false
	}
	first := r.every == All // of its unit
	if r.every != All {
		at := unitOf(r.every, t)
		first = !r.begun || at != r.last
		r.last, r.begun = at, true
	}
	if !first && !oldest {
		return Reason{}, false
	}
	if r.count > 0 {
		r.count--
	}
	reason := Reason{Cause: ByCount, Every: r.every, Oldest: !first, Period: r.from}
	if !r.from.IsZero() {
		reason.Cause = ByPeriod
	}
	return reason, true
}

// applyRestic adds the reasons of the rules.
func applyRestic(rules *backup.Retention, decisions []Decision, o Options) {
	var counts, periods [6]rule
	newest := reference(decisions, o.Now).In(o.Zone)
	for n, c := range rules.Counts() {
		counts[n] = rule{every: Every(n), count: c.Count}
	}
	for n, p := range rules.Periods() {
		periods[n] = rule{every: Every(n), from: p.Period, after: p.Before(newest)}
	}
	within := set(periods[:1])
	all := slices.Concat(within, set(counts[:]), set(periods[1:]))
	oldest := -1
	for n := range decisions {
		if decisions[n].Snapshot.Good {
			oldest = n
		}
	}
	for n := range decisions {
		d := &decisions[n]
		for _, list := range rules.Tags {
			if hasAll(d.Snapshot.Tags, list) {
				d.Reasons = append(d.Reasons, Reason{Cause: ByTags, Tags: list})
			}
		}
		apply := all
		if !d.Snapshot.Good { // it takes nobody's place
			apply = within
		}
		at := d.Snapshot.Time.In(o.Zone)
		for _, r := range apply {
			if reason, ok := r.takes(at, n == oldest); ok {
				d.Reasons = append(d.Reasons, reason)
			}
		}
		d.Left = leftOf(&counts)
	}
}

// set returns the rules that are set.
func set(rules []rule) (of []*rule) {
	for n := range rules {
		if r := &rules[n]; r.count != 0 || !r.from.IsZero() {
			of = append(of, r)
		}
	}
	return of
}

func leftOf(counts *[6]rule) Left {
	return Left{counts[0].count, counts[1].count, counts[2].count, counts[3].count, counts[4].count, counts[5].count}
}

// reference returns the time of the newest good snapshot or, if none is good, of the newest one.
func reference(decisions []Decision, now time.Time) time.Time {
	if newest := newestGood(decisions, now); !newest.IsZero() {
		return newest
	}
	for n := range decisions {
		if s := &decisions[n].Snapshot; now.IsZero() || s.Time.Before(now) {
			return s.Time
		}
	}
	return time.Time{}
}

// newestGood returns the time of the newest good snapshot that is not dated later than now; zero if
// there is none.
func newestGood(decisions []Decision, now time.Time) time.Time {
	for n := range decisions {
		if s := &decisions[n].Snapshot; s.Good && (now.IsZero() || s.Time.Before(now)) {
			return s.Time
		}
	}
	return time.Time{}
}

func hasAll(tags, of []string) bool {
	return !slices.ContainsFunc(of, func(tag string) bool { return !slices.Contains(tags, tag) })
}
