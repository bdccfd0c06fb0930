package index

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// ErrKept reports that a snapshot must not be forgotten. The error gives the reason.
var ErrKept = errors.New("the snapshot is kept")

// Forgetting is the part of the index with which operators and policies decide what is kept.
//
// A forgotten snapshot is Deleting: nobody can list or read it any more. Its content remains until
// Pruning finds that nothing else needs it. The newest committed snapshot of a shard remains the
// base of the next one, even if it is forgotten, because the versions of pages form a chain: a page
// that the newest snapshot has ended is not in it, and comparing with an older snapshot would bring
// such a page back (docs/decisions/0026-forgetting.md).
type Forgetting interface {
	// Forget forgets a snapshot that has ended. It fails with ErrKept if a hold or a restore in
	// progress keeps the snapshot, if it is the base of a running one, if it is the last good
	// snapshot of a shard that is not retired, or if the store does not have its record yet. It
	// returns backup.ErrNotFound for a snapshot that is running, unknown or already forgotten. The
	// log notes by and reason.
	Forget(ctx context.Context, id backup.SnapshotID, by, reason string) error
	// AddHold adds a hold and returns it with its ID, Login and time. It fails with
	// backup.ErrNotFound if there is no such shard or committed snapshot, and for a Path that no
	// committed snapshot of the shard has. The log notes it.
	AddHold(ctx context.Context, h Hold) (Hold, error)
	// RemoveHold removes a hold, or fails with backup.ErrNotFound. The log notes by and reason,
	// under the same subject as the hold.
	RemoveHold(ctx context.Context, id int64, by, reason string) error
	// Holds returns all holds, oldest first.
	Holds(ctx context.Context) ([]Hold, error)
	// HeldByPaths returns the snapshots of a shard that holds on paths keep, each with the ID of
	// one of these holds. The others can be forgotten in any order, as long as nothing else
	// changes.
	HeldByPaths(ctx context.Context, shard backup.ShardID) (map[backup.SnapshotID]int64, error)
	// Log yields the entries of the log since a time, oldest first.
	Log(ctx context.Context, since time.Time) iter.Seq2[LogEntry, error]
	// BeginReading keeps the content of a committed snapshot for a restore, until EndReading, or
	// until the lease ends. Calling it again with the same reading renews the lease. It fails with
	// backup.ErrNotFound if the snapshot cannot be read.
	BeginReading(ctx context.Context, reading backup.PackID, id backup.SnapshotID, lease time.Duration) error
	EndReading(ctx context.Context, reading backup.PackID) error
}

// A Hold keeps a snapshot, all snapshots of a shard, or each version of what is at and below a path
// of a shard, against every rule.
//
// A hold on a path keeps a committed snapshot that has the path, unless the next committed one that
// is left has the same version of it. So of neighbouring snapshots with the same version, the
// newest stays, in any order in which they are forgotten. The version of a directory is that of the
// pages of it and of all directories below it. The version of another entry is the entry in its
// directory's page.
type Hold struct {
	ID       int64
	Snapshot backup.SnapshotID // zero: of Shard
	Shard    backup.ShardID    // zero: only Snapshot
	Path     string            // within Shard, as of backup.CheckPath; empty: all snapshots of Shard
	Reason   string
	By       string // user@host, not verified
	Login    string // the user of the database, by certificate if there is one; empty in SQLite
	Since    time.Time
	// Alarm is the snapshot that raised the alarm which put Shard on hold; zero: it is none.
	Alarm backup.SnapshotID
}

// A LogEntry records what somebody did to snapshots.
type LogEntry struct {
	ID    int64
	Time  time.Time
	By    string
	Login string // the user of the database, by certificate if there is one; empty in SQLite
	// Action is forget, hold, release, checked, retire, mark-bad, mark-good, policy, stop, confirm,
	// reject, brake, purge, purged, accept or repair.
	Action  string
	Subject string // such as a snapshot's id
	Reason  string
}

// Pruning is the part of the index with which prune finds and deletes what no snapshot needs.
//
// A pack is deleted in this order: condemn it, read all references that may be newer than the
// condemnation, acquit it if one of them needs it, delete its object, drop its rows. A batch that
// relies on a condemned pack is refused, and a batch that was accepted before is visible to every
// later reading of references (I6). So no step needs a lock or a clock.
type Pruning interface {
	// Needed returns, for each shard, the numbers of the snapshots that need their versions of
	// pages, in ascending order: those that are committed and not forgotten, the newest committed
	// one, running ones, and those that are being restored. It treats the snapshots in without as
	// forgotten.
	Needed(ctx context.Context, without []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error)
	// DropVersions deletes the versions of a shard's pages that no snapshot needs, and returns
	// their number. If the shard is retired and all of its snapshots are forgotten or have failed,
	// nothing remains of it, and its next snapshot has no base.
	DropVersions(ctx context.Context, shard backup.ShardID) (int64, error)
	// Fence returns, for each shard, the number from which on versions of pages may appear: that of
	// the running snapshot, or of the next one. A shard that is created later has numbers from 1.
	Fence(ctx context.Context) (map[backup.ShardID]backup.SnapshotNumber, error)
	// References yields the listings of a shard that refer to chunks: those of the versions that
	// began with snapshot from or later, and those of interrupted pages, all as of one moment.
	// needed is an element of Needed, or nil: versions that no snapshot in it has are left out. A
	// listing is valid until the next one.
	References(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed []backup.SnapshotNumber) iter.Seq2[[]byte, error]
	// HasLists reports whether the index knows the contents of all of these list chunks: the chunks
	// to which they refer.
	HasLists(ctx context.Context, lists []backup.ChunkID) (bool, error)
	// ChunkLists yields the contents of all list chunks.
	ChunkLists(ctx context.Context) iter.Seq2[backup.ChunkList, error]
	// Places yields each place of a chunk in the packs with these rows, or in all packs if rows is
	// nil, as the chunk and the row of its pack. The order is not defined.
	Places(ctx context.Context, rows []int64) iter.Seq2[PlaceOf, error]
	// PacksToProve returns the packs with these rows, by row, without those that are condemned.
	PacksToProve(ctx context.Context, rows []int64) ([]PackToProve, error)
	// Packs yields all packs, by row.
	Packs(ctx context.Context) iter.Seq2[Pack, error]
	// Frames yields the frames of all packs, by row.
	Frames(ctx context.Context) iter.Seq2[PackFrames, error]
	// Condemn marks packs as condemned; Acquit takes that back, unless their objects were to be
	// deleted. Deleting notes that the objects of condemned packs are about to be deleted: from
	// then on they cannot be acquitted. Each fails with ErrNotLeading once the term has ended.
	Condemn(ctx context.Context, t Term, rows []int64) error
	Acquit(ctx context.Context, t Term, rows []int64) error
	Deleting(ctx context.Context, t Term, rows []int64) error
	// DropPlaces deletes the places that chunks with the first byte digit have in these packs.
	// Their places in other packs stay. It also deletes the contents of list chunks that have no
	// place left.
	DropPlaces(ctx context.Context, rows []int64, digit byte) error
	// DropLists deletes the contents of list chunks that have no place, because their pack was
	// never registered, and of those that refer to a list chunk that is not known any more.
	DropLists(ctx context.Context) error
	// LostObjects returns the objects of lost packs (Repairing.NoteLost), which are not deleted.
	LostObjects(ctx context.Context) ([]StoredObject, error)
	// Gone notes that the objects of packs that are Deleting are deleted, and that nothing is left
	// of these packs but their rows.
	Gone(ctx context.Context, rows []int64) error
	// DropPacks deletes the rows of packs that are Deleting and that no batch can rely on any more,
	// because all snapshots that were running when they became Deleting have ended. The packs must
	// have no places any more. It returns the number of deleted rows.
	DropPacks(ctx context.Context, rows []int64) (int, error)

	// Plan notes an object that is about to be written for Move, as if it were the object of a pack
	// that is Deleting: if Move does not follow, the object is deleted like that of such a pack. It
	// returns the row of the note, and fails with ErrNotLeading once the term has ended.
	Plan(ctx context.Context, t Term, snapshot backup.SnapshotID, object backup.PackID) (int64, error)
	// Move replaces condemned packs by their copies in a planned object, in one transaction, and
	// makes the condemned ones Deleting. It fails with ErrNotLeading once the term has ended, and
	// with backup.ErrInvalid if one of the packs is not condemned or is Deleting, or if the object
	// is not planned: nothing changes then.
	Move(ctx context.Context, t Term, m Move) error

	// NotePrune notes what a prune has freed, with the current time as its end. It fails with
	// ErrNotLeading once the term has ended.
	NotePrune(ctx context.Context, t Term, p Prune) error

	// PruneWork tells cheaply whether a pass may find something to delete: it reads neither
	// listings nor places.
	PruneWork(ctx context.Context) (PruneWork, error)
	// Catalogs returns the sequences of the catalogs in the store, oldest first.
	Catalogs(ctx context.Context) ([]int64, error)
	// DropCatalogs forgets the catalogs with lower sequences, after their objects. The newest
	// catalog stays known.
	DropCatalogs(ctx context.Context, before int64) error
	// Forgotten returns the forgotten snapshots, within each shard in ascending order of their
	// numbers. Those that were committed, and whose journal a kept snapshot still needs, are marked
	// as needed.
	Forgotten(ctx context.Context) ([]Forgotten, error)
	// Remove deletes a forgotten snapshot from the index, after its objects. It fails with ErrKept
	// while the snapshot is needed.
	Remove(ctx context.Context, id backup.SnapshotID) error
}

// PruneReports is the part of the index that reports what was pruned.
type PruneReports interface {
	// Prunes returns the prunes of the last 400 days that freed something, and the last one, oldest
	// first.
	Prunes(ctx context.Context) ([]Prune, error)
}

// A Prune is what one pass of pruning has freed.
type Prune struct {
	Ended     time.Time
	Took      time.Duration
	Packs     int   // deleted
	Bytes     int64 // stored bytes of these
	Freed     int64 // stored bytes by which thinned packs became smaller
	Copied    int64 // stored bytes of the copies of thinned packs
	Snapshots int   // forgotten snapshots that were removed
	// State is the PruneState before the pass, without the snapshots that it removed. It is empty
	// if the pass was not complete.
	State        string
	Kept, Unused int64 // bytes that the pass left
}

// PruneWork is what a pruner has to do.
type PruneWork struct {
	// State is what the index has now.
	State PruneState
	// Done, Kept and Unused are the fields State, Kept and Unused of the last Prune.
	Done         string
	Kept, Unused int64
	// Condemned is the number of condemned packs whose objects are not known to be deleted.
	// CondemnedSince is since when the pruner could have deleted the oldest of them; zero: there is
	// none.
	Condemned      int64
	CondemnedSince time.Time
	// Rows is the number of rows of deleted packs. Such a row remains until all snapshots that were
	// running at the deletion have ended. RowsSince is the time of the oldest of these deletions.
	Rows      int64
	RowsSince time.Time
	Now       time.Time
}

// A PruneState changes whenever something may have become free. The order in which transactions
// end, and their clocks, do not matter. The deletions of a pass itself change only Forgotten and
// Interrupted.
type PruneState struct {
	Ended     int64 // how many snapshots have ended, ever
	Forgotten int64 // how many are forgotten and not removed
	Confirmed int64 // changes when an operator confirms what the brake has stopped
	Readings  int64 // restores of forgotten snapshots
	Retired   int64 // changes when filers or shards are retired
	// Interrupted is how many shards have pages of interrupted snapshots. A pass drops those of a
	// retired shard after it has marked what they need.
	Interrupted int64
}

// String returns all numbers of the state.
func (s PruneState) String() string {
	return fmt.Sprintf("%d %d %d %d %d %d", s.Ended, s.Forgotten, s.Confirmed, s.Readings, s.Retired, s.Interrupted)
}

// A PlaceOf is a place of a chunk.
type PlaceOf struct {
	Chunk backup.ChunkID
	Pack  int64 // the pack's row
	Frame uint32
}

// PackFrames are the stored lengths of a pack's frames, 0 for those that were removed, and its
// checksums.
type PackFrames struct {
	Row   int64
	Bytes []uint32
	PackSums
}

// PackSums are the checksums of a pack (pack.Sums).
type PackSums struct {
	Sums []byte // empty: they are not known
	// Adopted: they are not those of what was sealed, but of what a scrub has read first.
	Adopted bool
}

// A Move is what becomes of the packs of some objects. Each pack is dead, or is replaced by a copy
// in a new object, which lacks some of its frames. A pack may also be replaced by several: copies
// with different frames, and itself without the chunks in the copies.
type Move struct {
	Plan   int64 // the row that Plan returned for the new object
	Copies []PackCopy
	// Dead are the rows of packs without a needed frame, and of those whose needed chunks New has.
	Dead []int64
	// New are packs in the object that were sealed anew.
	New []NewPack
}

// A NewPack is a pack whose chunks were in packs that are Dead.
type NewPack struct {
	Pack       backup.PackID // the id of the row
	Sealed     backup.PackID // the id in the header
	Offset     int64         // in the object
	Bytes      int64
	FrameBytes []uint32
	Sums       []byte
	Chunks     []backup.ChunkPlace
}

// A PackCopy is the copy of a pack in a new object.
type PackCopy struct {
	Row        int64         // of the pack that is replaced
	Plan       int64         // of the object that has this copy; 0: Move.Plan
	Pack       backup.PackID // a new id: batches that rely on the pack as it was are refused
	Offset     int64         // in the object
	Bytes      int64
	FrameBytes []uint32 // 0: removed
	PackSums
	Chunks []backup.ChunkID // those in frames that the copy has: their places move
	// Stays: it is the pack itself, in its own object, with the chunks that are in no other copy of
	// it. Batches that rely on the pack as it was are refused.
	Stays bool
	// LockedUntil is until when the object is locked; zero: it is not.
	LockedUntil time.Time
}

// A Pack is a registered pack.
type Pack struct {
	Row int64
	PackPlace
	Chunks    int64
	Condemned bool
	Deleting  bool
	Gone      bool // its object is deleted
	Running   bool // its snapshot has not ended
	// LockedUntil is until when the object is locked; zero: that is not known.
	LockedUntil time.Time
}

// A Forgotten is a snapshot that is forgotten.
type Forgotten struct {
	ID      backup.SnapshotID
	Shard   backup.ShardID
	Number  backup.SnapshotNumber
	Segment backup.Segment
	// Amendment is the sequence of the valid record; 0: it is the one that was written after the
	// commit.
	Amendment int
	// Needed reports that the snapshot is the base of the next or of a running one, or that the
	// chain of segments of a kept snapshot contains its segment.
	Needed bool
}
