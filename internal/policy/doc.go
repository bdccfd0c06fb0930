// Package policy computes when shards are due, whether their snapshots may begin, and which come
// first. It is pure: it takes times and returns times. The committer's scheduler calls it, and
// writes the results to the index.
//
// # When a shard is due
//
// A policy's cron expression has occurrences, in the policy's time zone. A shard is due at each
// occurrence plus its own share of the jitter, which is a hash of its id. The share is always the
// same, so that a daily backup stays daily. Missed occurrences, because no scheduler ran or nothing
// was free, make the shard due once, however many were missed.
//
// A snapshot begins only in one of the policy's windows. A snapshot that is running when the window
// ends continues.
//
// A shard that was never backed up is due at once, and so is a shard whose last good snapshot was
// marked as bad. A shard whose snapshot has failed is due again RetryAfter later; its deadline
// stays.
//
// # Which comes first
//
// The shard with the earliest deadline comes first (earliest deadline first, Liu and Layland 1973:
// if any order meets all deadlines, this one does). The deadline is the time of the last good
// snapshot plus the policy's recovery point. If the policy has no recovery point, it is the time at
// which the shard is due again.
package policy
