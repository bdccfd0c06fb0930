package backup

import "time"

// A Policy says when the shards of some filers are backed up, what is left
// out, and how long snapshots are kept.
type Policy struct {
	ID       PolicyID
	Revision int64 // grows with each change
	Name     string
	// Labels choose the filers: those that have all of them. No labels choose every filer.
	Labels map[string]string
	Paused bool // nothing is begun

	Schedule string // cron: five fields, or @hourly, @daily, @weekly, @monthly, "@every 6h"
	TimeZone string // IANA name, for Schedule and Windows; "": UTC
	// Jitter spreads the shards of a policy: each is due later by a part of it, the same every time.
	Jitter time.Duration
	// Windows are the times in which snapshots may be begun ("mon-fri 20:00-06:00"); none: always.
	Windows []string
	// RecoveryPoint is how old a shard's last good snapshot may get; 0: until the shard is due again.
	RecoveryPoint time.Duration
	// Floor is the Limits.Floor of filers that have none of their own; 0: an eighth of their limits.
	Floor int

	Retention Retention
	Selection Selection // added to what filer and shard leave out
}

// A PolicyID is a row of the index.
type PolicyID int64

// Retention says which snapshots of a shard are kept: those that any of its
// lines keeps. The zero Retention keeps all.
type Retention struct {
	Last    int           `json:"last,omitempty"` // the newest so many
	Hourly  int           `json:"hourly,omitempty"`
	Daily   int           `json:"daily,omitempty"`
	Weekly  int           `json:"weekly,omitempty"`
	Monthly int           `json:"monthly,omitempty"`
	Yearly  int           `json:"yearly,omitempty"`
	Within  time.Duration `json:"within,omitempty"` // those that are not older
}
