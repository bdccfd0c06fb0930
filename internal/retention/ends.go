package retention

import (
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// An End is how long rules keep a snapshot.
type End struct {
	// At is when the rules are applied that do not keep the snapshot any more.
	At time.Time
	// Open: the rules keep it until they change, or for so long that it is not computed.
	Open bool
}

// furthest bounds the search for an end: what is kept for longer has an open end.
const furthest = 100 * 366 * 24 * time.Hour

// Ends returns how long the rules keep each of the snapshots, if a good one is made at each time
// that next returns: the first one after its argument, or zero if there is none. It leaves out
// those that the rules do not keep now. now is the time as of which it predicts. Without rules, all
// ends are open, as are those of snapshots on hold. The errors are those of Check.
//
// An end is where every rule has given up a snapshot. It needs no simulation of all times between:
//
//   - A rule that counts hours, days … has given up the newest snapshot of one when N newer ones
//     have a snapshot. The next one begins at a boundary of the calendar, so that N steps suffice.
//   - The newest snapshot of all may be replaced as that of its hour, day … by the next one.
//   - A rule of a period gives up a snapshot when one is made that is newer by the period.
//
// A snapshot may be kept for longer, because it becomes the oldest one when older ones are
// forgotten. So ends are computed again from time to time.
//
// With the style pbs, whose rules depend on each other, Ends simulates the next year.
func Ends(rules backup.Retention, snapshots []Snapshot, next func(after time.Time) time.Time, now time.Time, o Options) (map[backup.SnapshotID]End, error) {
	if err := Check(rules); err != nil {
		return nil, err
	}
	ends := map[backup.SnapshotID]End{}
	if !rules.HasRules() {
		for i := range snapshots {
			ends[snapshots[i].ID] = End{Open: true}
		}
		return ends, nil
	}
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	o.Now = now
	sorted := slices.Clone(snapshots)
	slices.SortFunc(sorted, newestFirst)
	decisions := decide(nil, &rules, sorted, o)
	f := &forecast{rules: &rules, next: next, now: now, zone: o.Zone}
	for n := range sorted {
		if sorted[n].Good {
			f.good = append(f.good, &sorted[n])
		}
	}
	f.first = next(f.reference())
	if rules.Style == backup.StylePBS {
		return f.simulate(decisions, o), nil
	}
	newest, newerUnits := f.counted()
	for n := range decisions {
		if d := &decisions[n]; d.Keep {
			ends[d.Snapshot.ID] = f.end(d, newest, newerUnits[d.Snapshot.ID])
		}
	}
	return ends, nil
}

// A forecast is one call of Ends.
type forecast struct {
	rules *backup.Retention
	next  func(time.Time) time.Time
	now   time.Time
	zone  *time.Location
	good  []*Snapshot // newest first
	first time.Time   // of the next snapshot; zero: there is none

	units [6][]time.Time // by Every: when the n-th further unit gets its first snapshot
}

// reference returns the time after which the next snapshot is made.
func (f *forecast) reference() time.Time {
	if len(f.good) > 0 && f.good[0].Time.After(f.now) {
		return f.good[0].Time
	}
	return f.now
}

// counted returns the newest good snapshot, and for each good one how many units, such as days, of
// each kind have a newer one.
func (f *forecast) counted() (newest *Snapshot, newer map[backup.SnapshotID][6]int) {
	newer = map[backup.SnapshotID][6]int{}
	var units [6]int
	for n, s := range f.good {
		var count [6]int
		for every := All; every <= Year; every++ {
			switch {
			case n == 0:
			case every == All, unitOf(every, s.Time.In(f.zone)) != unitOf(every, f.good[n-1].Time.In(f.zone)):
				units[every]++
			}
			count[every] = units[every]
		}
		newer[s.ID] = count
	}
	if len(f.good) > 0 {
		newest = f.good[0]
	}
	return newest, newer
}

// end returns the latest end of the reasons for which a snapshot is kept.
func (f *forecast) end(d *Decision, newest *Snapshot, newer [6]int) (end End) {
	isNewest := newest != nil && d.Snapshot.ID == newest.ID
	for _, r := range d.Reasons {
		var e End
		switch r.Cause {
		case ByCount:
			// The oldest snapshot is kept beside the newest one of its unit, and takes a further
			// count.
			n := newer[r.Every]
			if r.Oldest {
				n++
			}
			e = f.given(r.Every, f.rules.Counts()[r.Every].Count, n)
		case ByPeriod:
			e = f.outside(r.Period, d.Snapshot.Time)
		case Unreplaced:
			e = f.outside(notGoodFor, d.Snapshot.Time)
		case LastGood:
			e = f.at(f.first)
		default: // tags, holds; the base of a running snapshot
			e = End{Open: true}
		}
		if isNewest && (r.Cause == ByCount || r.Cause == ByPeriod) && !r.Oldest && f.replaced(r.Every, newest.Time) {
			e = f.replacedEnd(r, e, newer)
		}
		end = later(end, e)
	}
	return end
}

// replacedEnd returns the end of the newest snapshot by a rule of a unit, end, if the next one
// replaces it as that of its unit. If it is the only one, it is then kept as the oldest.
func (f *forecast) replacedEnd(r Reason, end End, newer [6]int) End {
	switch count := f.rules.Counts()[r.Every].Count; {
	case len(f.good) > 1:
		return f.at(f.first)
	case r.Cause == ByPeriod:
		return end
	case count == 1:
		return f.at(f.first)
	default:
		return f.given(r.Every, count, newer[r.Every]+1)
	}
}

func (f *forecast) at(t time.Time) End { return End{At: t, Open: t.IsZero()} }

func later(a, b End) End {
	if a.Open || !b.Open && b.At.Before(a.At) {
		return a
	}
	return b
}

// replaced reports whether the next snapshot is of the same unit.
func (f *forecast) replaced(every Every, newest time.Time) bool {
	return every != All && !f.first.IsZero() && unitOf(every, f.first.In(f.zone)) == unitOf(every, newest.In(f.zone))
}

// given returns when a rule that counts gives up a snapshot of which n newer units count.
func (f *forecast) given(every Every, count backup.Count, n int) End {
	if count == backup.Unlimited {
		return End{Open: true}
	}
	return f.unit(every, max(int(count)-n, 1))
}

// unit returns when the n-th unit after that of the newest snapshot gets its first snapshot.
func (f *forecast) unit(every Every, n int) End {
	units := f.units[every]
	for len(units) < n {
		var t time.Time
		switch {
		case len(units) > 0 && every == All:
			t = f.next(units[len(units)-1])
		case len(units) > 0:
			t = f.next(following(every, units[len(units)-1].In(f.zone)).Add(-time.Nanosecond))
		case len(f.good) > 0 && f.replaced(every, f.good[0].Time):
			t = f.next(following(every, f.first.In(f.zone)).Add(-time.Nanosecond))
		default:
			t = f.first
		}
		if t.IsZero() || t.Sub(f.now) > furthest {
			return End{Open: true}
		}
		units = append(units, t)
		f.units[every] = units
	}
	return End{At: units[n-1]}
}

// following returns the beginning of the next unit.
func following(every Every, t time.Time) time.Time {
	year, month, day := t.Date()
	zone := t.Location()
	switch every {
	case Hour:
		// Not by the wall clock, which may repeat an hour, or skip one.
		next := t.Truncate(time.Minute)
		for unitOf(Hour, next) == unitOf(Hour, t) {
			next = next.Add(time.Minute)
		}
		return next
	case Day:
		return time.Date(year, month, day+1, 0, 0, 0, 0, zone)
	case Week: // begins on Monday
		return time.Date(year, month, day+7-(int(t.Weekday())+6)%7, 0, 0, 0, 0, zone)
	case Month:
		return time.Date(year, month+1, 1, 0, 0, 0, 0, zone)
	}
	return time.Date(year+1, 1, 1, 0, 0, 0, 0, zone)
}

// outside returns when a snapshot is not in the period any more.
func (f *forecast) outside(p backup.Period, t time.Time) End {
	t = t.In(f.zone)
	end := t.AddDate(p.Years, p.Months, p.Days).Add(time.Duration(p.Hours) * time.Hour)
	if end.Sub(f.now) > furthest {
		return End{Open: true}
	}
	// Months have different lengths: the period before the end may begin some days earlier or
	// later.
	at := f.first
	if begin := end.AddDate(0, 0, -4); at.Before(begin) && !at.IsZero() {
		at = f.next(begin)
	}
	for !at.IsZero() && p.Before(at.In(f.zone)).Before(t) {
		at = f.next(at)
	}
	return f.at(at)
}

// simulatedFor is how far ahead the rules of Proxmox Backup Server are simulated.
const simulatedFor = 366 * 24 * time.Hour

// simulate makes the snapshots of the next year, and notes when each of the given ones is
// forgotten.
func (f *forecast) simulate(decisions []Decision, o Options) map[backup.SnapshotID]End {
	ends := map[backup.SnapshotID]End{}
	var kept []Snapshot
	for n := range decisions {
		if decisions[n].Keep {
			kept = append(kept, decisions[n].Snapshot)
			ends[decisions[n].Snapshot.ID] = End{Open: true}
		}
	}
	o.Now = time.Time{}
	given, steps := len(kept), 0
	for t, n := f.first, 1; given > 0 && !t.IsZero() && t.Sub(f.now) < simulatedFor; t, n = f.next(t), n+1 {
		if steps += len(kept) + 1; steps > maxSteps/100 {
			break
		}
		kept = slices.Insert(kept, 0, Snapshot{ID: simulatedID(n), Time: t, Good: true})
		decisions = decide(decisions, f.rules, kept, o)
		kept = kept[:0]
		for n := range decisions {
			d := &decisions[n]
			if d.Keep {
				kept = append(kept, d.Snapshot)
			} else if _, known := ends[d.Snapshot.ID]; known {
				ends[d.Snapshot.ID] = End{At: t}
				given--
			}
		}
	}
	return ends
}
