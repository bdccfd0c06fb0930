package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Candidate is a shard that is due and whose snapshot may begin.
type Candidate struct {
	Shard    backup.ShardID
	Filer    backup.FilerID
	Site     string // of the filer
	Due      time.Time
	Deadline time.Time
}

// Limits bound the snapshots that run at a time; 0 is no limit.
//
// Running is a limit per site, because sites do not compete for slots: the filers of a site are
// backed up by the site's own workers. If the workers of a site die, its running snapshots keep the
// slots of this site, and other sites are not affected.
type Limits struct{ Running, RunningPerFiler int }

// Running is the number of running snapshots of a filer.
type Running struct {
	Filer     backup.FilerID
	Site      string
	Snapshots int
}

// Pick returns the candidates to begin now, earliest deadlines first, within the limits. It sorts
// candidates.
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
