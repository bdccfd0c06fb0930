package retention

import (
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// applyPBS adds the reasons of the rules of Proxmox Backup Server.
func applyPBS(rules *backup.Retention, decisions []Decision, zone *time.Location) {
	settled := make([]bool, len(decisions)) // by this or an earlier rule
	for n := range decisions {
		s := &decisions[n].Snapshot
		settled[n] = s.Held || !s.Good
	}
	left := make([][6]backup.Count, len(decisions))
	for n, c := range rules.Counts() {
		left := func(at int, count backup.Count) { left[at][n] = count }
		applyOnePBS(Every(n), c.Count, decisions, settled, zone, left)
	}
	for n, l := range left {
		decisions[n].Left = Left{l[0], l[1], l[2], l[3], l[4], l[5]}
	}
}

// applyOnePBS applies one rule to the snapshots that are not settled. It calls left with what is
// left of count after each snapshot.
func applyOnePBS(every Every, count backup.Count, decisions []Decision, settled []bool, zone *time.Location, left func(at int, count backup.Count)) {
	unitAt := func(n int) unit {
		if every == All {
			return unit(n)
		}
		return unitOf(every, decisions[n].Snapshot.Time.In(zone))
	}
	covered := map[unit]bool{} // by earlier rules
	for n := range decisions {
		if len(decisions[n].Reasons) > 0 {
			covered[unitAt(n)] = true
		}
	}
	kept, full := map[unit]bool{}, false
	for n := range decisions {
		at := unitAt(n)
		switch {
		case full || settled[n] || covered[at]:
		case kept[at]:
			settled[n] = true
		case count == 0:
			full = true
		default:
			kept[at], settled[n] = true, true
			decisions[n].Reasons = append(decisions[n].Reasons, Reason{Cause: ByCount, Every: every})
			if count > 0 {
				count--
			}
		}
		left(n, count)
	}
}
