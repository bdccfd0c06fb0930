package retention

import (
	"bytes"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Snapshot is what the decisions depend on.
type Snapshot struct {
	ID    backup.SnapshotID
	Time  time.Time
	Tags  []string
	Good  bool   // committed, and not marked as bad
	Bad   bool   // committed, and marked as bad
	Held  bool   // on hold
	Hold  string // the reason of the hold
	InUse bool   // the base of a running snapshot
}

// Of returns what the decisions depend on, of a snapshot that neither a hold nor a running snapshot
// keeps.
func Of(s *backup.Snapshot) Snapshot {
	committed := s.State == backup.Committed
	return Snapshot{ID: s.ID, Time: s.Started, Tags: s.Tags, Good: committed && s.Bad == "", Bad: committed && s.Bad != ""}
}

// Options are the circumstances of a decision.
type Options struct {
	// Zone is the time zone of hours, days, weeks, months and years; nil: UTC.
	Zone *time.Location
	// If Now is not zero, a snapshot that is dated later is never the reference of keep-within, as
	// in restic. Otherwise all other snapshots could be forgotten because of one wrong date.
	Now time.Time
	// Retired means that the last good snapshot may be forgotten, too.
	Retired bool
}

// A Decision is the fate of one snapshot.
type Decision struct {
	Snapshot Snapshot
	Keep     bool
	Reasons  []Reason // never empty; exactly one if the snapshot is forgotten
	Left     Left     // after this snapshot
}

// Left are the counts of rules that are not used up. Rules that are not set have 0, and those
// without limit have backup.Unlimited.
type Left struct{ Last, Hourly, Daily, Weekly, Monthly, Yearly backup.Count }

// Decide returns the decisions about the snapshots of one shard, the newest first. The order of
// snapshots does not matter. Of a shard that is not retired it keeps at least one snapshot, and a
// good one if there is any. The errors are those of Check, and ErrKeepsNothing if there is no rule.
func Decide(rules backup.Retention, snapshots []Snapshot, o Options) ([]Decision, error) {
	if err := Check(rules); err != nil {
		return nil, err
	}
	if !rules.HasRules() {
		return nil, ErrKeepsNothing
	}
	sorted := slices.Clone(snapshots)
	slices.SortFunc(sorted, newestFirst)
	return decide(nil, &rules, sorted, o), nil
}

func newestFirst(a, b Snapshot) int {
	if c := b.Time.Compare(a.Time); c != 0 {
		return c
	}
	return bytes.Compare(b.ID[:], a.ID[:])
}

// decide is Decide for sorted snapshots and valid rules. It uses the memory of old decisions.
func decide(old []Decision, rules *backup.Retention, sorted []Snapshot, o Options) []Decision {
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	decisions := slices.Grow(old[:0], len(sorted))[:len(sorted)]
	for n := range sorted {
		decisions[n] = Decision{Snapshot: sorted[n], Reasons: decisions[n].Reasons[:0]}
	}
	apply(rules, decisions, o)
	if slices.ContainsFunc(sorted, func(s Snapshot) bool { return s.Bad }) {
		keepBad(rules, decisions, o)
	}
	protect(decisions, o)
	return decisions
}

// apply adds the reasons of the rules.
func apply(rules *backup.Retention, decisions []Decision, o Options) {
	if rules.Style == backup.StylePBS {
		applyPBS(rules, decisions, o.Zone)
	} else {
		applyRestic(rules, decisions, o)
	}
}

// keepBad gives snapshots that are marked as bad the reasons that they would have if they were
// good. So a wrong mark loses nothing: it can be taken back for as long as the snapshot would be
// kept.
func keepBad(rules *backup.Retention, decisions []Decision, o Options) {
	good := make([]Decision, len(decisions))
	for n := range decisions {
		good[n].Snapshot = decisions[n].Snapshot
		good[n].Snapshot.Good = good[n].Snapshot.Good || good[n].Snapshot.Bad
	}
	apply(rules, good, o)
	for n := range decisions {
		if decisions[n].Snapshot.Bad {
			decisions[n].Reasons = good[n].Reasons
		}
	}
}

// If a good snapshot is newer by more than notGoodFor, no rule keeps a snapshot that is not good.
// Until then, somebody may want to see why it failed, or to take the mark back.
var notGoodFor = backup.Period{Days: 7}

// protect adds the reasons that are not rules, and those of forgotten snapshots.
func protect(decisions []Decision, o Options) {
	var replaced time.Time // only later snapshots are kept although they are not good
	if newest := newestGood(decisions, o.Now); !newest.IsZero() {
		replaced = notGoodFor.Before(newest.In(o.Zone))
	}
	good := false // a good one is newer
	for n := range decisions {
		d := &decisions[n]
		s := &d.Snapshot
		if s.Held {
			d.Reasons = append(d.Reasons, Reason{Cause: OnHold, Hold: s.Hold})
		}
		if s.InUse {
			d.Reasons = append(d.Reasons, Reason{Cause: InUse})
		}
		switch {
		case !s.Good && s.Time.After(replaced):
			d.Reasons = append(d.Reasons, Reason{Cause: Unreplaced})
		case s.Good && !good && !o.Retired:
			d.Reasons = append(d.Reasons, Reason{Cause: LastGood})
		}
		good = good || s.Good
		d.Keep = len(d.Reasons) > 0
		switch {
		case d.Keep:
		case s.Good:
			d.Reasons = append(d.Reasons, Reason{Cause: NoRule})
		default:
			d.Reasons = append(d.Reasons, Reason{Cause: NotGood})
		}
	}
}

// A unit identifies an hour, day, week, month or year in a time zone.
type unit int

func unitOf(e Every, t time.Time) unit {
	year, month, day := t.Date()
	switch e {
	case Hour:
		return unit(((year*100+int(month))*100+day)*100 + t.Hour())
	case Day:
		return unit((year*100+int(month))*100 + day)
	case Week:
		year, week := t.ISOWeek()
		return unit(year*100 + week)
	case Month:
		return unit(year*100 + int(month))
	}
	return unit(year)
}
