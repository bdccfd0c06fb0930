package index

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Braking is the part of the index that stops a run that would delete too much, until operators
// have confirmed it (docs/decisions/0029-the-brake.md).
type Braking interface {
	// Brake returns the settings of the brake.
	Brake(ctx context.Context) (Brake, error)
	// SetBrake changes the settings of the brake. It fails with fs.ErrPermission if this user of
	// the database may not change them, and with backup.ErrInvalid if a setting is wrong. The log
	// notes it.
	SetBrake(ctx context.Context, b Brake, by string) error
	// MayDelete returns nil if a run may delete d, and a *StoppedError otherwise. A run calls it
	// once, before it deletes anything. A run may delete what operators have confirmed; the brake
	// judges the rest as a deletion of its own. The log notes a new stop.
	MayDelete(ctx context.Context, d Deletion) error
	// Deleted reports what a run has deleted. complete is false if the run failed: then the
	// confirmation remains for the next run.
	Deleted(ctx context.Context, d Deletion, complete bool) error
	// Stops returns the runs that the brake has stopped, oldest first.
	Stops(ctx context.Context) ([]Stop, error)
	// Confirm confirms a stop, also one that was rejected, in the name of the user by. If the
	// database knows users by certificates, these count, and by does not. A second confirmation by
	// the same user changes nothing. Confirm fails with backup.ErrNotFound if there is no such
	// stop, because the run has ended or would delete more by now. The log notes by and reason.
	Confirm(ctx context.Context, id int64, by, reason string) (Stop, error)
	// Reject rejects a stop and takes back its confirmations. The run remains stopped, but warnings
	// no longer report it, until it would delete more than twice as much. Reject fails with
	// backup.ErrNotFound like Confirm. The log notes by and reason.
	Reject(ctx context.Context, id int64, by, reason string) error
}

// BrakeWindow is how long a deletion from the repository counts for later runs, so that many small
// runs are stopped like a large one.
const BrakeWindow = 24 * time.Hour

// A Brake limits what runs may delete without a confirmation.
type Brake struct {
	Snapshots    int   // percent of a shard's snapshots that one run may forget
	MinSnapshots int   // a run that forgets fewer is not stopped
	Bytes        int   // percent of the stored bytes that may be deleted within BrakeWindow
	MinBytes     int64 // if fewer are deleted, the run is not stopped
	Operators    int   // how many operators must confirm
}

// A Deletion is what a run would delete: committed snapshots of a shard, or stored bytes of the
// repository.
type Deletion struct {
	By    string         // the user or policy that runs; of a purge: the result of ByPurge
	Shard backup.ShardID // zero: the repository

	Snapshots   []backup.SnapshotID
	OfSnapshots int               // committed ones that the shard has
	Last        backup.SnapshotID // the last good snapshot or, if none is good, the newest, if it is one of Snapshots
	LastBytes   int64             // its size

	Bytes, OfBytes int64
	EarlierBytes   int64 // were deleted before, within BrakeWindow; MayDelete sets it
}

// These begin By in the Deletion of a purge or a repair, and in its stop.
const (
	byPurge  = "purge by "
	byRepair = "repair by "
)

// ByRepair is ByPurge for a repair.
func ByRepair(operator string) string { return byRepair + operator }

// isPruning reports whether a deletion is that of a prune.
func isPruning(by string) bool {
	return !strings.HasPrefix(by, byPurge) && !strings.HasPrefix(by, byRepair)
}

// ByPurge returns the name under which an operator's purge deletes from the repository. Pruning
// deletes what nothing needs, and a purge what is kept. So neither may use a confirmation of the
// other, or drop its stop.
func ByPurge(operator string) string { return byPurge + operator }

// SameRun reports whether a stop is that of an earlier run that would have deleted the same as d.
// For a shard, and for a purge, that is a run of the same user or policy. Otherwise it is any
// pruning of the repository.
func (d *Deletion) SameRun(s *Stop) bool {
	pruning := d.Shard == 0 && isPruning(d.By) && isPruning(s.By)
	return d.Shard == s.Shard && (pruning || d.By == s.By)
}

// StopsPrunes reports whether the stop keeps prunes from deleting anything.
func (s *Stop) StopsPrunes() bool { return s.Shard == 0 && isPruning(s.By) && !s.Allowed() }

// Exceeds reports whether a deletion needs a confirmation.
func (b *Brake) Exceeds(d *Deletion) bool {
	if d.Shard == 0 {
		bytes := d.Bytes + d.EarlierBytes
		return d.Bytes > 0 && bytes >= b.MinBytes && share(bytes, d.OfBytes+d.EarlierBytes) > float64(b.Bytes)
	}
	n := len(d.Snapshots)
	last := d.Last != backup.SnapshotID{} && d.LastBytes >= b.MinBytes
	return n > 0 && (last || n >= b.MinSnapshots && share(int64(n), int64(d.OfSnapshots)) > float64(b.Snapshots))
}

// share returns n of all in percent.
func share(n, all int64) float64 { return 100 * float64(n) / float64(max(all, n, 1)) }

// Beyond returns what d would delete beyond what a stop shows.
func (d Deletion) Beyond(s *Stop) Deletion {
	if d.Shard == 0 {
		shown := min(d.Bytes, s.Bytes)
		d.Bytes, d.OfBytes = d.Bytes-shown, d.OfBytes-shown
		return d
	}
	rest := slices.DeleteFunc(slices.Clone(d.Snapshots), func(id backup.SnapshotID) bool { return slices.Contains(s.Snapshots, id) })
	d.OfSnapshots -= len(d.Snapshots) - len(rest)
	d.Snapshots = rest
	if !slices.Contains(rest, d.Last) {
		d.Last = backup.SnapshotID{}
	}
	return d
}

// A Stop is a run that the brake has stopped.
type Stop struct {
	ID int64
	Deletion
	Since     time.Time
	Confirmed []string // the users who have confirmed it
	Rejected  string   // the user who has rejected it; empty: nobody
	Operators int      // how many must confirm it
}

// Allowed reports whether enough operators have confirmed the stop.
func (s *Stop) Allowed() bool { return s.Rejected == "" && len(s.Confirmed) >= s.Operators }

// Waits reports whether the stop waits for operators.
func (s *Stop) Waits() bool { return s.Rejected == "" && !s.Allowed() }

// Covers reports whether a run that would delete d is still the one that was stopped. It is not if
// the brake would stop what has been added. A run that was rejected stays rejected, although it
// grows with each snapshot, until it would delete more than twice as much.
func (s *Stop) Covers(d *Deletion, b *Brake) bool {
	beyond := d.Beyond(s)
	if !b.Exceeds(&beyond) {
		return true
	}
	return s.Rejected != "" && len(beyond.Snapshots) <= len(s.Snapshots) && beyond.Bytes <= s.Bytes
}

// A StoppedError reports that the brake has stopped a run. Nothing was deleted.
type StoppedError struct {
	Stop
	New bool // it is stopped for the first time
}

// Error names the command with which an operator confirms the stop.
func (e *StoppedError) Error() string {
	if e.Shard == 0 {
		return fmt.Sprintf("the brake has stopped the deletion of %d of %d stored bytes (bctl confirm %d)", e.Bytes, e.OfBytes, e.ID)
	}
	return fmt.Sprintf("the brake has stopped the forgetting of %d of %d snapshots (bctl confirm %d)", len(e.Snapshots), e.OfSnapshots, e.ID)
}
