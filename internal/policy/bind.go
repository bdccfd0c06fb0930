package policy

import (
	"cmp"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// For returns the policy of a filer with these labels: of those whose labels it has all of, the
// one with the most, and of several the first by name. ok is false where there is none.
func For(labels map[string]string, policies []backup.Policy) (p backup.Policy, ok bool) {
	best := -1
	for i := range policies {
		if !hasAll(labels, policies[i].Labels) {
			continue
		}
		if best < 0 || cmp.Or(len(policies[i].Labels)-len(policies[best].Labels), cmp.Compare(policies[best].Name, policies[i].Name)) > 0 {
			best = i
		}
	}
	if best < 0 {
		return backup.Policy{}, false
	}
	return policies[best], true
}

func hasAll(labels, want map[string]string) bool {
	for key, value := range want {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// RetryAfter is after how long a shard is due again whose snapshot has failed.
const RetryAfter = 15 * time.Minute

// A Past is what a plan is made from.
type Past struct {
	Good     time.Time // begin of the last good snapshot; zero: there is none
	Failed   bool      // the newest snapshot has failed since
	Deadline time.Time // of the plan before, which a failure does not move; zero: there was none
}

// Plan returns when a shard is due, which may be in the past, and its deadline. One that was
// never backed up is due at once, and one that has failed not before RetryAfter.
func (s *Schedule) Plan(shard backup.ShardID, past Past, now time.Time) (due, deadline time.Time) {
	due = now
	if !past.Good.IsZero() {
		due = s.Next(shard, past.Good)
	}
	deadline = s.Deadline(shard, due, past.Good)
	if past.Failed {
		if !past.Deadline.IsZero() {
			deadline = past.Deadline
		}
		if again := now.Add(RetryAfter); again.After(due) {
			due = again
		}
	}
	return due, deadline
}
