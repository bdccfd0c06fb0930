// Package index is the port to the snapshot index: filers, shards, snapshots, open work, pages,
// packs and chunk locations. pgindex keeps it in Postgres, sqliteindex in a SQLite file. Most of
// both is in entindex, which implements the methods declared here. Both pass the suite in
// indextest.
//
// # Page versions
//
// A row of pages is valid from first_snapshot to last_snapshot of its shard. While no newer row
// replaces it, the row is open: its last_snapshot is NULL. A running snapshot inserts its rows with
// first_snapshot = its number, and ends the rows that they replace with last_snapshot = its number
// minus 1. Readers only look at committed snapshots, so these changes are invisible before the
// commit. When a snapshot fails, its rows are set aside for their content, and the rows that it
// ended are opened again.
//
// The commit of a snapshot stores a summary of all its pages as a backup.PageSet. A reader of all
// pages of the snapshot can thereby detect that pages are missing. The pages of one directory form
// a chain (backup.Page.Next).
//
// The listing of a version may be stored as a patch of an earlier version (docs/decisions/0030).
// Every method takes and returns listings, and hides that.
//
// # Work
//
// A walk task is open until a SliceWalked of it is accepted. That transaction settles the task,
// announces its children and its read batches, and applies its pages. A read batch is open until a
// BatchStored of it is accepted. A claim of an open task or batch is a new attempt at it, with a
// lease. When the lease runs out, the work can be claimed again. A result for work that is not open
// is refused and changes nothing (I3).
//
// # Time
//
// Every time that the index stores is of its database's clock, which all processes share. A method
// with a parameter now reads that clock where now is zero, which is what services and commands
// pass. Tests pass times of their own.
//
// # Chunks
//
// Two packs may contain the same chunk, because readers do not wait for each other. The index knows
// each place of a chunk, and returns one in a pack that exists and is not condemned. A batch relies
// on the packs that it names, and on no others (docs/decisions/0013-chunk-copies.md).
//
// The chunks of a large file are listed in list chunks, which are sealed. So that live chunks can
// be found without a key, the writer of a list chunk reports what it refers to (ListsStored). A
// list of lists is known only after the lists that it refers to. A batch is accepted only when all
// lists of its pages are known. All chunks that the index refers to are therefore known. The lists
// of pages that a slice carried forward have been known since those pages were stored. Chunks of
// interrupted pages and of running snapshots are alive.
package index

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Errors of the index, in addition to those of package backup.
var (
	// ErrCondemned reports that a batch relies on a pack that garbage collection has condemned.
	// Nothing was changed, and the batch can be claimed at once (I6).
	ErrCondemned = errors.New("relies on a condemned pack")
	// ErrPackUnknown reports that a batch relies on a pack that is not registered, or not yet.
	// Nothing was changed; the result may be delivered again.
	ErrPackUnknown = errors.New("relies on a pack that is not registered")
	// ErrListUnknown reports that a batch has a file whose list chunks are not known, or not yet,
	// or that a ListsStored has a list of lists that refers to an unknown list. Nothing was
	// changed; the result may be delivered again.
	ErrListUnknown = errors.New("relies on a list of chunks that is not known")
	// ErrPartMissing reports that the last part of a SliceWalked arrived before an earlier one.
	// Nothing was changed; the result may be delivered again.
	ErrPartMissing = errors.New("an earlier part of the result is missing")
	// ErrRefused reports that this user of the database may not do that.
	ErrRefused = errors.New("refused")
	// ErrNotLeading reports that the term has ended: another process leads, or may lead.
	ErrNotLeading = errors.New("not leading")
	// ErrSchema reports that this binary cannot work with the schema. Either the schema is older,
	// and bctl migrate upgrades it, or it is so much newer that a newer binary is needed.
	ErrSchema = errors.New("schema version")
)

// An Index is one connection to the whole index. All methods may be called concurrently, from any
// number of processes. If the database cannot be reached, the error wraps backup.ErrUnavailable and
// contains the address. Methods retry nothing except serialization failures and deadlocks.
type Index interface {
	Admin
	Catalog
	Walking
	Dedup
	Committing
	Leading
	Governing
	Succeeding
	Scheduling
	Forgetting
	Pruning
	Recovering
	PruneReports
	Locking
	Parity
	Sweeping
	Comparing
	Purging
	Braking
	Checking
	Repairing
	Scrubbing
	Drilling
	Naming
	Restoring
	// Close closes the connections.
	Close() error
}

// Admin creates and upgrades the index.
type Admin interface {
	// Migrate upgrades the schema to this binary's version and returns the versions before and
	// after. It may be called at any time, also by several processes at once. A newer schema is
	// left unchanged; if this binary cannot work with it, Migrate fails with ErrSchema.
	Migrate(ctx context.Context) (from, to int64, err error)
	// RequireNewest declares that all services are of this binary's version: older ones are refused
	// from now on, and what they could not read is written. A newer schema is refused with
	// ErrSchema.
	RequireNewest(ctx context.Context) error
	// CheckSchema fails with ErrSchema unless the schema is this binary's version, or a newer one
	// that declares itself compatible with this binary.
	CheckSchema(ctx context.Context) error
	// CreateRepository stores the description of the repository. It fails with backup.ErrExists if
	// there is one already.
	CreateRepository(ctx context.Context, r backup.Repository) error
	// SetRecipients replaces the Recipients in the description of the repository. It fails with
	// backup.ErrNoRepository if there is none. Only the owner of the tables may call it.
	SetRecipients(ctx context.Context, recipients []string) error
	// SetKeyObjects replaces the names of the objects below keys/ that the store must have; none:
	// it is not known which. KeyObjects returns them, in the order of the names. Only the owner of
	// the tables may set them.
	SetKeyObjects(ctx context.Context, names []string) error
	KeyObjects(ctx context.Context) ([]string, error)
	// Repository returns the description of the repository, or backup.ErrNoRepository if there is
	// none.
	Repository(ctx context.Context) (backup.Repository, error)
}

// A SnapshotFilter narrows a list of snapshots. Zero fields match everything.
type SnapshotFilter struct {
	Filer, Shard string
	States       []backup.State
	Since        time.Time // started at or after
	IDPrefix     string    // hexadecimal
	Limit        int       // the newest Limit snapshots
}

// Catalog is the part of the index that operators read and change.
type Catalog interface {
	Filers
	Policies

	// Clock returns the time of the database's clock.
	Clock(ctx context.Context) (time.Time, error)

	// EnsureFiler returns the filer of that name. It creates the filer if there is none, and takes
	// a retired one back into service.
	EnsureFiler(ctx context.Context, name string) (backup.Filer, error)
	// EnsureShard is EnsureFiler for a shard of a filer. The source is stored with a new shard, and
	// replaced where it differs.
	EnsureShard(ctx context.Context, filer backup.FilerID, name, source string) (backup.Shard, error)

	// BeginSnapshot creates a running snapshot of the shard and its root walk task, based on the
	// shard's newest committed snapshot, in one transaction. If one is running already, it returns
	// that one with backup.ErrRunning (I5). Selection, AllowShrink, NewRoot, Tags and ID are taken
	// from s, and the start from now. The exclusions of filer, shard and policy are added to the
	// Selection. The root must be that of the base, unless NewRoot is set or the base is empty. A
	// retired shard, or a shard of a retired filer, is backup.ErrNotFound.
	BeginSnapshot(ctx context.Context, shard backup.ShardID, s backup.Snapshot, now time.Time) (backup.Snapshot, error)
	// RequestCancel requests the end of a running snapshot, which a committer then fails. It
	// returns backup.ErrNotFound if the snapshot is not running.
	RequestCancel(ctx context.Context, id backup.SnapshotID, reason string) error
	// SetBad marks a committed snapshot as bad, for a reason; an empty reason clears the mark. The
	// last good snapshot of a shard is its newest committed one that is not bad. If SetBad changes
	// it, the shard is planned again. A bad snapshot remains the base of the next one, and remains
	// readable. SetBad returns backup.ErrNotFound if the snapshot is not committed. The log notes
	// by and reason.
	SetBad(ctx context.Context, id backup.SnapshotID, by, reason string) error
	// InHand returns at most limit tasks and batches whose leases run at now, sorted by snapshot,
	// kind and id.
	InHand(ctx context.Context, now time.Time, limit int) ([]Work, error)
	// BaseCounts returns, for each snapshot, the counts of its base, which predict its own.
	// Snapshots without a base are omitted.
	BaseCounts(ctx context.Context, ids []backup.SnapshotID) (map[backup.SnapshotID]backup.Counts, error)
	// ExpireLeases makes all open work of a snapshot claimable at once, for callers that know that
	// its workers are gone.
	ExpireLeases(ctx context.Context, id backup.SnapshotID) error

	// Snapshot returns one snapshot, or backup.ErrNotFound.
	Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error)
	// Snapshots returns the snapshots that match, oldest first by their start. Snapshots of one
	// shard are always in the order of their numbers, even if a clock went backwards. So the newest
	// committed snapshot of a shard is the base of the next. Limit keeps the newest.
	Snapshots(ctx context.Context, f SnapshotFilter) ([]backup.Snapshot, error)
	// Problems yields the paths that one snapshot could not back up, with the reasons, by path.
	Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error]

	// Pages yields the pages of a committed snapshot at path and below, in the order of path keys;
	// pages of one directory follow from page 0. It holds a bounded number of rows in memory. If
	// the snapshot is not committed, it yields backup.ErrNotFound.
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
	// Added yields the pages that a committed snapshot has and base, an earlier one of its shard
	// that is needed too, has not, in the order of path keys; pages of one directory follow in the
	// order of their keys. Ended yields those that base has and the snapshot has not, with their
	// listings, too.
	Added(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[Change, error]
	Ended(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[Change, error]
	// LocateReadable is Dedup.Locate for restore: a condemned pack may not be relied on, but can be
	// read. If only condemned packs have a chunk, it returns a place in one of these.
	LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]Location, error)
	// LocateReadableCopies is Dedup.LocateCopies for restore: places in condemned packs follow
	// those in live ones.
	LocateReadableCopies(ctx context.Context, ids []backup.ChunkID) ([][]Location, error)
}

// Filers is the part of Catalog that registers filers and shards. A list of 200 filers and 10,000
// shards takes milliseconds: no method reads anything that grows with the trees or with the number
// of snapshots.
type Filers interface {
	// AddFiler creates a filer and returns it with its ID. If the name belongs to a retired filer,
	// that one returns to service with the settings of f. AddFiler fails with backup.ErrExists if
	// the name is in use, and with backup.ErrInvalid if a setting is wrong.
	AddFiler(ctx context.Context, f backup.Filer) (backup.Filer, error)
	// SetFiler replaces the settings of the filer with f's ID. They take effect at once, also for
	// running snapshots. Name and Retired are not changed.
	SetFiler(ctx context.Context, f backup.Filer) error
	// RetireFiler retires a filer with its shards, which are no longer backed up. Their snapshots
	// remain. A filer or shard that never had a snapshot is deleted. RetireFiler fails with
	// backup.ErrRunning while a snapshot runs. The log notes by, unless the filer is deleted.
	RetireFiler(ctx context.Context, id backup.FilerID, by string) error
	// ListFilers returns the filers that match, by name.
	ListFilers(ctx context.Context, f FilerFilter) ([]FilerStatus, error)

	// AddShard, SetShard and RetireShard do the same for shards. ListShards sorts by filer and
	// name.
	AddShard(ctx context.Context, s backup.Shard) (backup.Shard, error)
	SetShard(ctx context.Context, s backup.Shard) error
	RetireShard(ctx context.Context, id backup.ShardID, by string) error
	ListShards(ctx context.Context, f ShardFilter) ([]ShardStatus, error)
}

// A FilerFilter narrows a list of filers. Zero fields match everything.
type FilerFilter struct {
	Name    string
	Labels  map[string]string // all of these
	Retired bool              // include retired filers
}

// A ShardFilter narrows a list of shards. Zero fields match everything.
type ShardFilter struct {
	Filer, Name string
	Labels      map[string]string // of the filer: all of these
	Retired     bool              // include retired shards
}

// A FilerStatus is a filer and the state of its shards and work.
type FilerStatus struct {
	backup.Filer
	Load           backup.Load
	Shards         int
	Running        int // snapshots
	Tasks, Batches int // assigned
	// Oldest and Newest are the times of the oldest and the newest last good snapshot of its
	// shards. Oldest is zero if a shard has none; Newest is zero if all have none.
	Oldest, Newest time.Time
	// Deadline is the earliest deadline of its shards, zero if none has one. Overdue is the number
	// of shards whose deadline has passed.
	Deadline time.Time
	Overdue  int
}

// A ShardStatus is a shard and its last good snapshot.
type ShardStatus struct {
	backup.Shard
	Filer    backup.Filer
	LastGood backup.SnapshotID // zero: none
	Number   backup.SnapshotNumber
	Time     time.Time // when LastGood began: its content is at least as new
	Files    int64
	Bytes    int64
	Running  backup.SnapshotID // zero: none
	Bad      bool              // a snapshot that is newer than LastGood was marked as bad
	Failed   time.Time         // when the newest snapshot failed; zero: it has not
	Policy   string            // name of the bound policy; "": none, or the scheduler has not seen the shard yet
	Plan     Plan
	Drills   ShardDrills
}

// Overdue reports whether the shard has missed the deadline by which its policy wants a good
// snapshot.
func (s *ShardStatus) Overdue(now time.Time) bool {
	return !s.Retired && !s.Plan.Deadline.IsZero() && s.Plan.Deadline.Before(now)
}

// Work is a task or a batch that has been assigned.
type Work struct {
	Snapshot backup.SnapshotID
	Site     string         // of its filer; "": the default site
	Task     backup.TaskID  // zero: a batch
	Batch    backup.BatchID // zero: a task
	Attempt  int32
	Until    time.Time // end of the lease
	Worker   string    // empty: the work waits in the queue
	Path     string    // at which the worker was when it last reported
	Stalled  time.Time // since when the worker waits for the filer; zero: it does not
}

// A PageMark identifies a version of a page: a walker compares it with the page that it has read.
type PageMark struct {
	Directory   backup.DirectoryID
	Key         backup.PageKey
	Fingerprint backup.Fingerprint
}

// Walking is what a walker reads of the index. base is the snapshot that it compares with.
type Walking interface {
	// Subtree yields the pages of base of the directory at path and below, in the order of path
	// keys.
	Subtree(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) iter.Seq2[backup.PageVersion, error]
	// InterruptedListings returns the listings of pages that are left from failed snapshots of the
	// shard since its last commit, nil for a page without one. The next commit of the shard removes
	// them.
	InterruptedListings(ctx context.Context, shard backup.ShardID, pages []backup.PageName) ([][]byte, error)
	// Marks returns at most limit marks of base's pages whose path keys are in [from, to), in their
	// order; a nil to is no end. next is the path key to continue at, nil at the end. Directories
	// are never split: all pages of a directory before next are included.
	Marks(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, from, to []byte, limit int) (marks []PageMark, next []byte, err error)
	// Listings returns the listings of pages in base, nil for a page that does not exist. A listing
	// that does not match its digest is returned empty, and decoding it fails with
	// backup.ErrCorrupt.
	Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error)
	// DirectoryByInode returns the path of the directory with this inode in base. ok is false if
	// there is none, or more than one.
	DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (path string, ok bool, err error)
	// PageKeys returns the keys of all pages of one directory in base.
	PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error)
}

// A PackPlace is the place of a pack. The zero PackPlace is no place.
type PackPlace struct {
	Pack backup.PackID
	// Sealed is the id in the pack's header, if it is not Pack: frames were removed from the pack
	// (Pruning.Move), and it has a new id, so that nothing relies on what it had before.
	Sealed   backup.PackID
	Snapshot backup.SnapshotID // Snapshot and Object are the parts of the object's name
	Object   backup.PackID
	Offset   int64 // bytes into the object
	Bytes    int64 // of the pack
}

// StoredObject returns the object of packs that has the pack.
func (p *PackPlace) StoredObject() StoredObject {
	return StoredObject{Snapshot: p.Snapshot, ID: p.Object}
}

// A Location is the place of a chunk. The zero Location is no place.
type Location struct {
	PackPlace
	Frame  uint32
	Start  uint32 // bytes into the frame's plaintext
	Length uint32 // bytes of plaintext
}

// Dedup is what a reader queries.
type Dedup interface {
	// Locate returns the places of the chunks, in the order of ids. The Location is zero for a
	// chunk that is in no pack, or only in condemned ones. A batch that relies on the returned
	// packs is not refused for them, unless a pack is condemned in the meantime.
	Locate(ctx context.Context, ids []backup.ChunkID) ([]Location, error)
	// LocateCopies returns all places of the chunks in packs that are not condemned, in the order
	// of ids. It costs more than Locate: call it if the store lacks a pack that Locate returned.
	LocateCopies(ctx context.Context, ids []backup.ChunkID) ([][]Location, error)
	// ReadShares returns each filer's read limit per assigned batch, in bytes per second; 0: none.
	ReadShares(ctx context.Context, filers []backup.FilerID, now time.Time) (map[backup.FilerID]int64, error)
}

// A Claim describes the work to assign.
type Claim struct {
	Snapshots []backup.SnapshotID // only of these; nil: of all
	Lease     time.Duration
	// Queued bounds the running leases that are not stalled, of Snapshots and over all sites and
	// claims together; 0 is no bound. The sites that have work divide it evenly, with one equal
	// share kept free for a site that has none yet, so that a site without workers cannot use it
	// up.
	Queued int
	Limit  int       // maximum number of tasks or batches in this claim
	Now    time.Time // zero: by the database's clock
}

// Held reports that a worker holds a task or batch.
type Held struct {
	Snapshot backup.SnapshotID // the work's snapshot: unlike task and batch numbers, it cannot be guessed
	Task     backup.TaskID     // zero: a batch
	Batch    backup.BatchID    // zero: a task
	Worker   string
	Path     string
	Stalled  bool
}

// Committing is what the committer does. The committer is the only writer of results.
type Committing interface {
	// ClaimTasks returns open walk tasks that have no running lease, each with a new attempt number
	// and lease. The running leases of a filer, stalled ones included, stay within its limit and
	// the slots of its load. Filers take turns: the one with the fewest assigned tasks is next, and
	// the oldest work of a filer comes first. Tasks are returned in the order in which they are to
	// be assigned. Nothing is claimed of a snapshot whose end was requested. Concurrent claims
	// never return the same attempt, and never exceed a bound together.
	ClaimTasks(ctx context.Context, c Claim) ([]backup.WalkTask, error)
	// ClaimBatches is ClaimTasks for read batches.
	ClaimBatches(ctx context.Context, c Claim) ([]backup.ReadBatch, error)
	// ListenSnapshots calls notify at the start, and when any process has begun, ended or marked a
	// snapshot, until ctx is done or the connection is lost. SQLite sends no notifications.
	ListenSnapshots(ctx context.Context, notify func()) error
	// Extend renews the leases of assigned work that end in less than lease, and records the worker
	// that holds it. The first report of a worker sets the end of the lease in any case: work that
	// waits in a queue may have a longer lease. Work whose lease has run out, but which has not
	// been claimed since, is assigned to the worker again. Work that does not belong to
	// Held.Snapshot is ignored.
	Extend(ctx context.Context, held []Held, lease time.Duration, now time.Time) error
	// ExpireFuture ends the leases that end later than after from now, which a clock that was ahead
	// has given. It returns their number.
	ExpireFuture(ctx context.Context, after time.Duration, now time.Time) (int, error)
	// GiveBack ends the leases of work that could not be sent, or whose worker is gone, so that it
	// can be claimed at once. It ignores work that was last recorded for a worker other than
	// Held.Worker, and work that does not belong to Held.Snapshot.
	GiveBack(ctx context.Context, held []Held) error

	// Apply accepts results, in order, in one transaction that is durable when Apply returns. The
	// Outcome of a result reports what became of it. An error concerns all results: nothing was
	// changed.
	Apply(ctx context.Context, results []Result) ([]Outcome, error)

	// CompleteSnapshots returns the running snapshots whose work is all settled.
	CompleteSnapshots(ctx context.Context, only []backup.SnapshotID) ([]backup.SnapshotID, error)
	// ClaimCommit gives holder the commit lease of a snapshot for ttl, or renews it. The holder
	// writes the segment. A ttl of 0 releases the lease. ClaimCommit reports whether it succeeded:
	// it does not while another holder's lease runs, nor for a snapshot that is not running and
	// complete. The lease goes by the clock of the index. It only prevents duplicate work: Commit
	// and Fail do not check it.
	ClaimCommit(ctx context.Context, id backup.SnapshotID, holder string, ttl time.Duration) (bool, error)
	// Cancelled returns the running snapshots whose end was requested.
	Cancelled(ctx context.Context, only []backup.SnapshotID) ([]backup.Snapshot, error)
	// Changes yields the index segment of a snapshot: the pages that it added, then the pages that
	// it ended, each by path key.
	Changes(ctx context.Context, id backup.SnapshotID) iter.Seq2[Change, error]
	// AllPages yields a checkpoint of a snapshot that has not failed: all its pages as added
	// Changes, by path key.
	AllPages(ctx context.Context, id backup.SnapshotID) iter.Seq2[Change, error]
	// LastCommits returns what the next commit of a shard depends on.
	LastCommits(ctx context.Context, shard backup.ShardID) (LastCommits, error)
	// SetChurn notes what package churn has found about a running snapshot. Its commit puts the
	// shard on hold if alarm is not empty, unless an earlier alarm has: then AddHold's rules hold,
	// and RemoveHold acknowledges the alarm. SetChurn can be called again.
	SetChurn(ctx context.Context, id backup.SnapshotID, score int64, alarm string) error
	// Commit is the commit point of a snapshot: one durable transaction that makes it visible. The
	// segment contains its changes and is durable already. pages is the set of its pages as the
	// caller has found it, and is not checked. Commit fails with backup.ErrNotFound unless the
	// snapshot is running and complete.
	Commit(ctx context.Context, id backup.SnapshotID, segment backup.Segment, pages backup.PageSet, now time.Time) error
	// Fail ends a running snapshot that is not to be committed, and undoes its changes to pages.
	// Their listings are kept for the snapshots that follow, until one is committed; if several
	// fail, those of the last one that had the page. Fail returns backup.ErrNotFound unless the
	// snapshot is running, so of several callers only one succeeds.
	Fail(ctx context.Context, id backup.SnapshotID, reason string, now time.Time) error
	// Unrecorded returns snapshots that have ended and whose record is not in the store yet, oldest
	// first, in the order of Snapshots: those of one shard by number.
	Unrecorded(ctx context.Context, only []backup.SnapshotID, limit int) ([]backup.Snapshot, error)
	// Recorded notes that the store has the record of a snapshot that has ended. It does nothing
	// for a snapshot that is running or does not exist.
	Recorded(ctx context.Context, id backup.SnapshotID) error
	// ForgottenIDs returns the snapshots that are forgotten and that the index still has, by id.
	ForgottenIDs(ctx context.Context) ([]backup.SnapshotID, error)
	// BadSnapshots returns the reasons of the snapshots that are marked as bad.
	BadSnapshots(ctx context.Context) (map[backup.SnapshotID]string, error)
	// WrittenCatalog returns the catalog in the store with the largest sequence, or the zero
	// WrittenCatalog if there is none.
	WrittenCatalog(ctx context.Context) (WrittenCatalog, error)
	// NextCatalog returns a sequence for a catalog, which is greater than newest and than all that
	// it has returned before.
	NextCatalog(ctx context.Context, newest int64) (int64, error)
	// CatalogWritten notes a catalog in the store. Of two with the same sequence, the first stays.
	CatalogWritten(ctx context.Context, c WrittenCatalog) error
}

// LastCommits describes what the last commits of a shard left for the next one: a good snapshot to
// compare with, and the segments since the last checkpoint.
type LastCommits struct {
	// Good is the number of the last good snapshot, 0 if there is none; Files and Bytes are its
	// totals.
	Good  backup.SnapshotNumber
	Files int64
	Bytes int64
	// CheckpointBytes are the stored bytes of the last checkpoint, SegmentBytes those of the
	// segments since.
	CheckpointBytes, SegmentBytes int64
	// Stale: records of the shard are to be amended. Until they are, a segment that is based on one
	// of its snapshots may not fit the records that the store has.
	Stale bool
}

// A WrittenCatalog is a catalog that the store has.
type WrittenCatalog struct {
	Sequence int64
	Digest   [32]byte // of its content
	Written  time.Time
	// Deletions is the number of the last deletion that was announced before the catalog was
	// written (Comparing).
	Deletions int64
}

// A Result is one of the four; the others are nil.
type Result struct {
	Slice *backup.SliceWalked
	Pack  *backup.PackStored
	Lists *backup.ListsStored
	Batch *backup.BatchStored
	// GiveUp: if a pack or list that Batch relies on is not known, it is not expected any more, and
	// the batch can be claimed again at once: its snapshot may have ended before it was registered.
	GiveUp bool
}

// An Outcome is the effect of a Result.
type Outcome struct {
	// Err is nil if the result was accepted, or is a part that is kept until its last part.
	// Otherwise it is ErrCondemned, ErrPackUnknown, ErrListUnknown, ErrPartMissing or
	// backup.ErrInvalid.
	Err error
	// Late: the work was no longer open, or the snapshot no longer running. Nothing was changed.
	Late bool
	// Failed: a result that is not late reports that its snapshot cannot succeed. Nothing was
	// changed yet.
	Failed bool
	// Announced: there is new work to claim.
	Announced bool
	// Complete: with this result, all work of the snapshot is settled.
	Complete bool
}

// A Change is a page that a snapshot added or ended.
type Change = backup.PageChange
