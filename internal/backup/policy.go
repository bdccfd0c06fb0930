package backup

import "time"

// A Policy defines when the shards of some filers are backed up, what is excluded, and how long
// snapshots are kept.
type Policy struct {
	ID       PolicyID
	Revision int64 // incremented by each change
	Name     string
	// Labels select the filers that have all of them. Without labels, the policy applies to every
	// filer.
	Labels map[string]string
	Paused bool // no snapshot is started

	Schedule string // cron: five fields, or @hourly, @daily, @weekly, @monthly, "@every 6h"
	TimeZone string // IANA name, for Schedule and Windows; "": UTC
	// Jitter spreads the shards of a policy: each becomes due later by a fixed fraction of it.
	Jitter time.Duration
	// Windows are the times during which snapshots may be started ("mon-fri 20:00-06:00"); none:
	// always.
	Windows []string
	// RecoveryPoint is the maximum age of a shard's last good snapshot; 0: until the shard is due
	// again.
	RecoveryPoint time.Duration
	// Floor is the Limits.Floor of filers that do not set one; 0: an eighth of their limits.
	Floor int
	// Drill is how often a drill proves that each shard can be restored; 0: there are no drills.
	Drill time.Duration

	Retention Retention
	Selection Selection // in addition to those of filer and shard
}

// A PolicyID identifies a row of the index.
type PolicyID int64
