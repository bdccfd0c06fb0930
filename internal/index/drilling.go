package index

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

const (
	// KeptDrills is how many reports of a shard's drills the index keeps.
	KeptDrills = 50
	// MaxDrillReportBytes is the maximum length of a report.
	MaxDrillReportBytes = 64 << 10
)

// Drilling is the part of the index with the reports of drills. The columns beside a report are for
// queries, and anybody who may write the table can forge them. Package drill verifies a report.
type Drilling interface {
	// AddDrill stores the report of a drill, and deletes the oldest ones of its shard beyond
	// KeptDrills, except the newest that passed. It is durable. A second call with the same id
	// changes nothing. It fails with backup.ErrInvalid if the report is empty or too long, or if
	// there is no signature.
	AddDrill(ctx context.Context, d Drill) error
	// Drills returns the reports of the shard, or of all shards if it is 0, oldest first.
	Drills(ctx context.Context, shard backup.ShardID) ([]Drill, error)
}

// A Drill is a drill of a shard, with its report.
type Drill struct {
	ID        backup.DrillID
	Shard     backup.ShardID
	Snapshot  backup.SnapshotID // that was restored; it may be forgotten since
	Started   time.Time
	Passed    bool
	Report    []byte
	Signature []byte // of the report
}

// ShardDrills are the newest drills of a shard.
type ShardDrills struct {
	Every  time.Duration // how often the policy of the shard wants one; 0: never
	Passed time.Time     // when the newest drill that passed was begun; zero: none has
	Newest time.Time     // when the newest drill was begun; zero: there is none
}

// Failed reports whether the newest drill has failed.
func (d *ShardDrills) Failed() bool { return d.Newest.After(d.Passed) }

// retryDrill is the time after which a failed drill is due again, if drills are less frequent.
const retryDrill = 24 * time.Hour

// Due returns when the next drill of a shard is due by its policy. It is zero if the policy wants
// no drills, and also if there has been no drill, because one is due at once.
func (d *ShardDrills) Due() time.Time {
	switch {
	case d.Every == 0 || d.Newest.IsZero():
		return time.Time{}
	case d.Failed():
		return d.Newest.Add(min(d.Every, retryDrill))
	}
	return d.Passed.Add(d.Every)
}
