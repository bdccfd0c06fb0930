package index

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Locking is the part of the index in which the pruner notes until when objects are locked in the
// store. It notes a lock after the store has it. So an object may be locked for longer than the
// index says, and never for less.
type Locking interface {
	// Locks returns the locks of objects that are no packs. Those of packs are in Packs.
	Locks(ctx context.Context) (Locks, error)
	// LockPacks notes that the objects of packs are locked until a time. A later time that was
	// noted before stays. It fails with ErrNotLeading once the term has ended.
	LockPacks(ctx context.Context, t Term, rows []int64, until time.Time) error
	// LockObjects is LockPacks for other objects.
	LockObjects(ctx context.Context, t Term, names []string, until time.Time) error
}

// Locks are the locks of objects that are no packs, as of one moment.
type Locks struct {
	Now   time.Time
	Until map[string]time.Time // by name; RecordLock and ContentLock stand for several objects
	// Catalog is the sequence of the newest catalog; 0: there is none.
	Catalog int64
	// Amendments are the valid records of the snapshots whose records were amended, without the
	// segments.
	Amendments map[backup.SnapshotID]Amendment
}

// RecordLock is the name under which the lock of a snapshot's journal is noted: its commit record
// and its segment.
func RecordLock(id backup.SnapshotID) string { return "commits/" + id.String() }

// ContentLock is the name under which it is noted that all packs are locked that the snapshot
// needs, and the journals.
func ContentLock(id backup.SnapshotID) string { return "content/" + id.String() }
