// Package index is the port to the snapshot index: filers, shards, snapshots,
// work in hand, pages, packs and chunk locations. pgindex keeps it in
// Postgres, sqliteindex in a SQLite file; both pass the suite in indextest.
//
// # Versions of pages
//
// A row of pages is valid from first_snapshot to last_snapshot of its shard;
// while nothing newer replaces it, last_snapshot is NULL (open). A snapshot
// that runs inserts its rows with first_snapshot = its number, and ends those
// that they replace with last_snapshot = its number - 1. Readers only look at
// committed snapshots, so none of it shows before the commit. When a snapshot
// fails its rows are deleted and those that it ended are opened again.
//
// # Work
//
// A walk task is open until a SliceWalked of it is accepted: that transaction
// settles it, announces its children and its read batches, and applies its
// pages. A read batch is open until a BatchStored of it is accepted. Whoever
// claims an open task or batch gets it as a new attempt with a lease; when the
// lease runs out it can be claimed again. A result for work that is not open is refused,
// and changes nothing (I3).
package index

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Errors of the index, beside those of package backup.
var (
	// ErrCondemned: a batch relies on a pack that garbage collection has
	// condemned. Nothing was changed, and the batch can be claimed at once (I6).
	ErrCondemned = errors.New("relies on a condemned pack")
	// ErrPackUnknown: a batch relies on a pack that is not registered (yet).
	// Nothing was changed; the result may be delivered again.
	ErrPackUnknown = errors.New("relies on a pack that is not registered")
	// ErrPartMissing: the last part of a SliceWalked came before an earlier one. Nothing was changed;
	// it may be delivered again.
	ErrPartMissing = errors.New("an earlier part of the result is missing")
	// ErrSchema: the schema is not this binary's; bctl migrate brings it up to date.
	ErrSchema = errors.New("schema version")
)

// An Index is one connection to the whole index. All methods may be called
// concurrently, from any number of processes. An error of a database that
// cannot be reached wraps backup.ErrUnavailable and says which address; the methods themselves
// do not retry, except for serialization failures and deadlocks.
type Index interface {
	Admin
	Catalog
	Walking
	Dedup
	Committing
	// Close ends the connections.
	Close() error
}

// Admin makes and upgrades the index.
type Admin interface {
	// Migrate brings the schema up to this binary's version. It may be called at any time,
	// also by several processes at once. It returns the versions before and after.
	Migrate(ctx context.Context) (from, to int64, err error)
	// CheckSchema fails with ErrSchema unless the schema is this binary's version.
	CheckSchema(ctx context.Context) error
	// CreateRepository stores what the repository is; backup.ErrExists if there is one.
	CreateRepository(ctx context.Context, r backup.Repository) error
	// Repository returns it; backup.ErrNoRepository if there is none.
	Repository(ctx context.Context) (backup.Repository, error)
}

// SnapshotFilter narrows a list; zero fields do not.
type SnapshotFilter struct {
	Filer, Shard string
	States       []backup.State
	Since        time.Time // started at or after
	IDPrefix     string    // hexadecimal
	Limit        int       // the newest so many
}

// Catalog is what operators see and ask for.
type Catalog interface {
	// EnsureFiler and EnsureShard return the row of that name, made if need be.
	EnsureFiler(ctx context.Context, name string) (backup.Filer, error)
	// EnsureShard's source is stored where the shard is new, and changed where it differs.
	EnsureShard(ctx context.Context, filer backup.FilerID, name, source string) (backup.Shard, error)

	// BeginSnapshot makes a running snapshot of the shard with its root walk
	// task, based on the shard's newest committed snapshot, in one
	// transaction. If one is running already it returns that one, and
	// backup.ErrRunning (I5). Selection, AllowShrink, Tags and ID are taken from s, and the time from now.
	BeginSnapshot(ctx context.Context, shard backup.ShardID, s backup.Snapshot, now time.Time) (backup.Snapshot, error)
	// ExpireLeases makes all open work of a snapshot claimable at once: its workers are known to be gone.
	ExpireLeases(ctx context.Context, id backup.SnapshotID) error

	// Snapshot returns one; backup.ErrNotFound if there is none.
	Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error)
	// Snapshots returns those that match, oldest first. (Limit keeps the newest.)
	Snapshots(ctx context.Context, f SnapshotFilter) ([]backup.Snapshot, error)
	// Problems yields what could not be backed up in one snapshot, by path.
	Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error]

	// Pages yields the pages of a committed snapshot that are at path or
	// below it, in the order of path keys (pages of one directory: page 0 first). It
	// holds no more than a bounded number of rows. ErrNotFound where the snapshot is not committed.
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
	// LocateAll is Dedup's Locate, for restore: it finds chunks in condemned packs as well.
	LocateAll(ctx context.Context, ids []backup.ChunkID) ([]Location, error)
}

// A PageMark is what a walker compares a page with.
type PageMark struct {
	Directory   backup.DirectoryID
	Key         backup.PageKey
	Fingerprint backup.Fingerprint
}

// Walking is what a walker reads. base is the snapshot that it compares with.
type Walking interface {
	// Marks returns the marks of base's pages whose path keys are in
	// [from, to), in their order, but no more than limit of them; to nil is no end.
	// When there were more, next is the path key to go on from (directories
	// are never cut: all pages of a directory that is before next are there); else nil.
	Marks(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, from, to []byte, limit int) (marks []PageMark, next []byte, err error)
	// Listings returns the pages' listings in base; nil for one that is not there.
	Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error)
	// DirectoryByInode returns the path that the directory of this inode has in base;
	// ok is false where there is none, or more than one.
	DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (path string, ok bool, err error)
	// PageKeys returns the keys of all pages of one directory in base.
	PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error)
}

// A Location is where a chunk is stored. The zero Location: nowhere.
type Location struct {
	Pack     backup.PackID
	Snapshot backup.SnapshotID // part of the pack's object name
	Frame    uint32
	Offset   uint32 // bytes into the frame's plaintext
	Length   uint32 // bytes of plaintext
}

// Dedup is what a reader asks.
type Dedup interface {
	// Locate returns where the chunks are, in the order of ids: zero for one
	// that is in no pack, or in a condemned one.
	Locate(ctx context.Context, ids []backup.ChunkID) ([]Location, error)
}

// A Claim says what work to hand out.
type Claim struct {
	Snapshots []backup.SnapshotID // only of these; nil: of any
	Lease     time.Duration
	Limit     int // at most so many
	Now       time.Time
}

// Committing is what the committer does; it is the only writer of results.
type Committing interface {
	// ClaimTasks returns open walk tasks whose lease has run out (or that never
	// had one), oldest first, each with a new attempt number and lease. Concurrent
	// claims never get the same attempt.
	ClaimTasks(ctx context.Context, c Claim) ([]backup.WalkTask, error)
	// ClaimBatches is ClaimTasks for read batches.
	ClaimBatches(ctx context.Context, c Claim) ([]backup.ReadBatch, error)
	// Extend renews the leases of work that is in hand.
	Extend(ctx context.Context, tasks []backup.TaskID, batches []backup.BatchID, until time.Time) error
	// Leased returns how many tasks and batches of these snapshots (nil: of any) have a lease that runs: what is on its way.
	Leased(ctx context.Context, only []backup.SnapshotID, now time.Time) (tasks, batches int, err error)

	// Apply accepts results, in order, in one transaction that is durable when
	// it returns. What a result finds is told in its Outcome; the error is for
	// all of them, and then nothing was changed.
	Apply(ctx context.Context, results []Result) ([]Outcome, error)

	// CompleteSnapshots returns the running snapshots all of whose work is settled.
	CompleteSnapshots(ctx context.Context, only []backup.SnapshotID) ([]backup.SnapshotID, error)
	// Changes yields what a snapshot added to pages (first) and ended in pages (then), by path key: its index segment.
	Changes(ctx context.Context, id backup.SnapshotID) iter.Seq2[Change, error]
	// Commit is the commit point of a snapshot: one durable transaction that makes it visible.
	// segments are the objects that hold its changes, durable already. It fails
	// with ErrNotFound unless the snapshot is running and complete.
	Commit(ctx context.Context, id backup.SnapshotID, segments []string, now time.Time) error
	// Fail ends a running snapshot that shall not be committed, and undoes what it did to pages.
	Fail(ctx context.Context, id backup.SnapshotID, reason string) error
	// CondemnPacks marks packs as condemned, for garbage collection; a batch that relies on one is refused from then on.
	CondemnPacks(ctx context.Context, packs []backup.PackID) error
}

// A Result is one of the three; the others are nil.
type Result struct {
	Slice *backup.SliceWalked
	Pack  *backup.PackStored
	Batch *backup.BatchStored
}

// An Outcome is what became of a Result.
type Outcome struct {
	// Err is nil where the result was accepted (or was a part that is kept
	// until its last), ErrCondemned, ErrPackUnknown, ErrPartMissing, or backup.ErrInvalid.
	Err error
	// Late: the work was not open any more, or the snapshot not running; nothing was changed.
	Late bool
	// Failed: the result says, in time, that its snapshot cannot be made; nothing was changed yet.
	Failed bool
	// Announced: there is new work to claim.
	Announced bool
	// Complete: with this result, all work of the snapshot is settled.
	Complete bool
}

// A Change is a page that a snapshot added or one that it ended.
type Change = backup.PageChange
