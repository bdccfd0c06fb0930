package policy

import (
	"cmp"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// For returns the policy of a filer with these labels. A policy applies if the filer has all of its
// labels. If several apply, the one with the most labels is chosen, and of those the first by
// name. ok is false if none applies.
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

// RetryAfter is the time after which a shard whose snapshot has failed is due again.
const RetryAfter = 15 * time.Minute

// Ahead is how far in the future a recorded time may be before it counts as written by a clock that
// was ahead. The clock of a database may go back by less than that when another server takes over.
const Ahead = time.Minute

// InFuture reports whether a recorded event is in the future, which means that its time is unknown.
func InFuture(happened, now time.Time) bool { return happened.After(now.Add(Ahead)) }

// A Past is the input for a plan.
type Past struct {
	Good     time.Time // start of the last good snapshot; zero: there is none
	Bad      bool      // a snapshot that is newer than the last good one was marked as bad
	Failed   time.Time // when the newest snapshot failed; zero: it has not
	Deadline time.Time // of the previous plan; zero: there was none
}

// Plan returns when a shard is due, which may be in the past, and its deadline. A shard that was
// never backed up is due at once, and so is one whose last good snapshot was marked as bad. A shard
// whose newest snapshot has failed is due no earlier than RetryAfter after that. A shard whose last
// good snapshot is in the future counts as never backed up. A failure does not postpone a deadline,
// and neither does a change of the policy before the first good snapshot.
func (s *Schedule) Plan(shard backup.ShardID, past Past, now time.Time) (due, deadline time.Time) {
	if InFuture(past.Good, now) {
		past.Good = time.Time{}
	}
	due = now
	if !past.Good.IsZero() && !past.Bad {
		due = s.Next(shard, past.Good)
	}
	deadline = s.Deadline(shard, due, past.Good)
	if (!past.Failed.IsZero() || past.Good.IsZero()) && !past.Deadline.IsZero() && past.Deadline.Before(deadline) { // it may be later because of a clock that was ahead
		deadline = past.Deadline
	}
	if !past.Failed.IsZero() {
		if InFuture(past.Failed, now) {
			past.Failed = now
		}
		if again := past.Failed.Add(RetryAfter); again.After(due) {
			due = again
		}
	}
	return due, deadline
}

// Latest returns an upper bound for the due times of all plans made until now. A plan beyond it was
// made by a clock that was ahead. The zero Time is no bound.
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
