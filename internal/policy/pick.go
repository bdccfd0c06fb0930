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
	Due      time.Time
	Deadline time.Time
}

// Limits bound the snapshots that run at a time; 0: no limit.
type Limits struct{ Running, RunningPerFiler int }

// Pick returns the candidates to begin now, those with the nearest deadlines
// first, within the limits. running is the number of snapshots that run already, by
// filer. It sorts candidates.
func Pick(candidates []Candidate, running map[backup.FilerID]int, l Limits) []Candidate {
	slices.SortFunc(candidates, func(a, b Candidate) int {
		return cmp.Or(a.Deadline.Compare(b.Deadline), a.Due.Compare(b.Due), cmp.Compare(a.Shard, b.Shard))
	})
	all := 0
	ofFiler := make(map[backup.FilerID]int, len(running))
	for filer, n := range running {
		ofFiler[filer] = n
		all += n
	}
	var picked []Candidate
	for _, c := range candidates {
		if l.Running > 0 && all >= l.Running {
			break
		}
		if l.RunningPerFiler > 0 && ofFiler[c.Filer] >= l.RunningPerFiler {
			continue
		}
		all++
		ofFiler[c.Filer]++
		picked = append(picked, c)
	}
	return picked
}
