package index

import (
	"context"
	"iter"

	"github.com/bctl/bctl/internal/backup"
)

// Recovering is the part of the index with which a rebuild (package rebuild) makes it what the
// store describes. All methods can be repeated: a rebuild that was interrupted begins again.
//
// Nothing else may write to the index meanwhile. The snapshots of a shard are recovered in the
// order of their numbers, each after its pages, and pages after the packs and lists that they refer
// to. So what is recovered is complete at any time, as far as the index has it.
type Recovering interface {
	// ForgetProofs makes all packs, parity groups and slices of the journal count as never proven,
	// and as stored at a time that is not known. The checksums of packs stay.
	ForgetProofs(ctx context.Context) error
	// RecoverFiler stores a filer with all of its settings, and returns it with its ID. A filer of
	// that name is changed.
	RecoverFiler(ctx context.Context, f backup.Filer) (backup.Filer, error)
	// RecoverShard does the same for a shard, which Key identifies.
	RecoverShard(ctx context.Context, s backup.Shard) (backup.Shard, error)
	// RecoverHolds makes the holds of the index these, with their numbers. Holds on what the index
	// does not have are left out, and returned. The log gets an entry of each that is added or
	// released, with who runs the rebuild.
	RecoverHolds(ctx context.Context, holds []Hold, by string) (without []Hold, err error)
	// RecoverPacks registers packs with their chunks. A pack that is registered is not changed.
	RecoverPacks(ctx context.Context, packs []RecoveredPack) error
	// RecoverLists registers what list chunks refer to. Those below a list of lists come before it.
	RecoverLists(ctx context.Context, lists []backup.ChunkList) error
	// KnownLists returns those of the list chunks whose contents the index has, with all that are
	// below them.
	KnownLists(ctx context.Context, lists []backup.ChunkID) (map[backup.ChunkID]bool, error)
	// RollBack undoes what snapshots with greater numbers did to the pages of a shard: versions
	// that began with them are removed, and those that they ended are open again. RollBack to 0
	// removes all. Pages of failed snapshots are removed, too.
	RollBack(ctx context.Context, shard backup.ShardID, to backup.SnapshotNumber) error
	// PreparePages completes changes of the snapshot after snapshot at, and decides how their pages
	// are stored. It reads only: the changes of one snapshot may be prepared while others of them
	// are written. backup.ErrCorrupt: a change is of a page that snapshot at does not have.
	PreparePages(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, changes []RecoveredChange) error
	// RecoverPages applies prepared changes of a snapshot to the pages of its shard, each of which
	// is changed once.
	RecoverPages(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber, changes []RecoveredChange) error
	// RecoverSnapshot makes a snapshot visible, or replaces what the index has of it. Of Filer and
	// Shard, only Shard.ID is used. If it becomes forgotten, the log gets an entry of that.
	RecoverSnapshot(ctx context.Context, s RecoveredSnapshot) error
	// ForgetRemoved forgets a snapshot that has no objects in the store any more: the lost index,
	// of which this one is an older copy, had forgotten and removed it. No hold or rule keeps it,
	// because its content may be gone. ForgetRemoved does nothing if the snapshot is forgotten
	// already.
	ForgetRemoved(ctx context.Context, id backup.SnapshotID, by, reason string) error
	// SetJournalBytes stores the lengths of the last checkpoint of a shard and of the segments
	// since, on which the time of the next checkpoint depends.
	SetJournalBytes(ctx context.Context, shard backup.ShardID, checkpoint, segments int64) error
}

// A RecoveredPack is a pack that the store has.
type RecoveredPack struct {
	Snapshot backup.SnapshotID // Snapshot and Object are the parts of the object's name
	Object   backup.PackID
	NewPack  // Sealed is zero if it is Pack
}

// A RecoveredChange is a change that a segment has.
type RecoveredChange struct {
	Change
	// Patched: the Listing is a patch of the version that is replaced, and there is no Digest.
	Patched bool

	// PreparePages sets the rest, and makes a patched Listing whole. It also sets the Digest of an
	// ended page that has none.
	Stored   []byte // the listing, or a patch of the version that Base began; 0: it needs none
	Base     backup.SnapshotNumber
	Replaces bool              // there is a version that ends
	Replaced backup.PageDigest // of that version
}

// A RecoveredSnapshot is a snapshot as its commit record describes it.
type RecoveredSnapshot struct {
	backup.Snapshot
	Forgotten bool
	By        string // who runs the rebuild
	Problems  iter.Seq2[backup.Problem, error]
	// Amendment is the sequence of the record, and AmendedBase is the snapshot on whose pages its
	// segment is based, if it was amended.
	Amendment   int
	AmendedBase backup.SnapshotID
}
