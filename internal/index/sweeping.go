package index

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
)

// Sweeping is the part of the index with which the pruner finds objects in the store that no row
// names. A sweep first lists the store, and then calls Recognize. For an object that was listed
// before, the result is final unless its snapshot is running or unknown.
type Sweeping interface {
	// Recognize returns what the index knows of each object and of its snapshot. Unless t is zero,
	// it fails with ErrNotLeading once the term has ended.
	Recognize(ctx context.Context, t Term, objects []StoredObject) ([]Recognized, error)
	// NextSection returns the section of the store that is swept next: at first 0.
	NextSection(ctx context.Context) (int, error)
	// SetNextSection stores it. It fails with ErrNotLeading once the term has ended.
	SetNextSection(ctx context.Context, t Term, section int) error
}

// A StoredObject is an object that the store has, as its name describes it.
type StoredObject struct {
	Snapshot backup.SnapshotID // for which it was written
	ID       backup.PackID     // the last part of the name of an object of packs; of other objects: zero
}

// A Recognized is what the index knows of a StoredObject.
type Recognized struct {
	Known   bool           // the index has the snapshot, or had it
	Ended   bool           // no pack can be registered for the snapshot any more, and its Segment is final
	Removed bool           // the snapshot was forgotten, and its journal was deleted
	Segment backup.Segment // attempt and parts of the valid segment; without parts, there is none
	// Amendment is the sequence of the valid record; 0: it is the one that was written after the
	// commit.
	Amendment int
	Named     bool // a row of a pack, a plan or a lost pack names the object
}
