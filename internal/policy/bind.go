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

// Ahead is how far in the future a time may lie before it is taken for one that a clock has written which was
// ahead then. The clock of a database may go back by less when another server takes over.
const Ahead = time.Minute

// InFuture reports whether something that has happened lies in the future: then nobody knows when it was.
func InFuture(happened, now time.Time) bool { return happened.After(now.Add(Ahead)) }

// A Past is what a plan is made from.
type Past struct {
	Good     time.Time // begin of the last good snapshot; zero: there is none
	Failed   bool      // the newest snapshot has failed since
	Deadline time.Time // of the plan before, which a failure does not move; zero: there was none
}

// Plan returns when a shard is due, which may be in the past, and its deadline. One that was
// never backed up is due at once, and one that has failed not before RetryAfter. A shard whose last
// good snapshot lies in the future is due at once as well.
func (s *Schedule) Plan(shard backup.ShardID, past Past, now time.Time) (due, deadline time.Time) {
	if InFuture(past.Good, now) {
		past.Good = time.Time{}
	}
	due = now
	if !past.Good.IsZero() {
		due = s.Next(shard, past.Good)
	}
	deadline = s.Deadline(shard, due, past.Good)
	if past.Failed {
		if !past.Deadline.IsZero() && past.Deadline.Before(deadline) { // a clock that was ahead may have made a later one
			deadline = past.Deadline
		}
		if again := now.Add(RetryAfter); again.After(due) {
			due = again
		}
	}
	return due, deadline
}

// Latest returns a bound: no shard is due later by a plan that was made by now. A plan
// beyond it was made by a clock that was ahead. Zero: there is no bound.
func (s *Schedule) Latest(now time.Time) time.Time {
	last := *s
	last.jitter = 0
	next := last.Next(0, now.Add(Ahead))
	if next.IsZero() {
		return time.Time{}
	}
	if next = next.Add(s.jitter); next.Before(now.Add(Ahead + RetryAfter)) {
		return now.Add(Ahead + RetryAfter)
	}
	return next
}
