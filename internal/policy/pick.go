package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Candidate is a shard that is due and may be begun.
type Candidate struct {
	Shard    backup.ShardID
	Filer    backup.FilerID
	Site     string // of the filer
	Due      time.Time
	Deadline time.Time
}

// Limits bound the snapshots that run at a time; 0: no limit.
//
// Running is per site, because a site does not need the places of another: its
// filers are backed up by its own workers. A site whose workers die keeps its
// places, whether its snapshots were taken by then or not, and the other sites
// do not notice.
type Limits struct{ Running, RunningPerFiler int }

// Running is how many snapshots of a filer run already.
type Running struct {
	Filer     backup.FilerID
	Site      string
	Snapshots int
}

// Pick returns the candidates to begin now, those with the nearest deadlines
// first, within the limits. It sorts candidates.
func Pick(candidates []Candidate, running []Running, l Limits) []Candidate {
	slices.SortFunc(candidates, func(a, b Candidate) int {
		return cmp.Or(a.Deadline.Compare(b.Deadline), a.Due.Compare(b.Due), cmp.Compare(a.Shard, b.Shard))
	})
	ofSite := map[string]int{}
	ofFiler := make(map[backup.FilerID]int, len(running))
	for _, r := range running {
		ofFiler[r.Filer] += r.Snapshots
		ofSite[r.Site] += r.Snapshots
	}
	var picked []Candidate
	for _, c := range candidates {
		if l.Running > 0 && ofSite[c.Site] >= l.Running {
			continue
		}
		if l.RunningPerFiler > 0 && ofFiler[c.Filer] >= l.RunningPerFiler {
			continue
		}
		ofSite[c.Site]++
		ofFiler[c.Filer]++
		picked = append(picked, c)
	}
	return picked
}
