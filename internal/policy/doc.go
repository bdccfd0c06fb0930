// Package policy computes when shards are due, whether they may be begun, and
// which come first. It is pure: times in, times out; the committer's scheduler
// asks it, and writes what follows into the index.
//
// # When a shard is due
//
// A policy's cron expression has occurrences, in the policy's time zone. A
// shard is due at each occurrence plus its own share of the jitter, which is a
// hash of its id: the same every time, so that a daily backup stays daily. What was
// missed, because nobody scheduled or nothing was free, is due once, however often it was missed.
//
// A snapshot is begun only inside one of the policy's windows; one that runs
// when the window ends goes on.
//
// A shard that was never backed up is due at once. One whose snapshot has failed is
// due again after RetryAfter; its deadline stays.
//
// # Which comes first
//
// The one whose deadline is nearest (earliest deadline first, Liu and Layland
// 1973: where any order meets all deadlines, this one does). The deadline is the time
// of the last good snapshot plus the policy's recovery point; where the policy has none, the
// time at which the shard is due again.
package policy
