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
// fails its rows are set aside, for the content that they name, and those that
// it ended are opened again.
//
// What a committed snapshot consists of is kept as a backup.PageSet: whoever
// reads all of its pages can tell whether any is missing. The pages of one
// directory form a chain (backup.Page.Next).
//
// # Work
//
// A walk task is open until a SliceWalked of it is accepted: that transaction
// settles it, announces its children and its read batches, and applies its
// pages. A read batch is open until a BatchStored of it is accepted. Whoever
// claims an open task or batch gets it as a new attempt with a lease; when the
// lease runs out it can be claimed again. A result for work that is not open is refused,
// and changes nothing (I3).
//
// # Time
//
// What the index stores is of its database's clock, which all processes share, and
// of no other. A method that has a parameter now takes it from that clock where now is zero,
// and that is what services and commands give. Tests give times of their own.
//
// # Chunks
//
// Two packs may have the same chunk: readers do not wait for each other. The
// index knows each of its places, and whoever asks is told one in a pack that is
// there and not condemned. A batch relies on the packs that it names, and on no
// others (docs/decisions/0013-chunk-copies.md).
//
// What a large file consists of is in list chunks, which are sealed. So that it
// can be told without a key which chunks are alive, whoever writes a list chunk
// says what it refers to (ListsStored). A list of lists is known once these are,
// and a batch is accepted once all lists of its pages are known: so of what is in
// the index, all chunks are known. Lists of pages that a slice took over have
// been known since those were stored. Chunks of interrupted pages are alive, as
// are those of snapshots that run.
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
	// ErrListUnknown: a batch has a file whose list chunks are not known (yet),
	// or a ListsStored has a list of lists of which one is not.
	// Nothing was changed; the result may be delivered again.
	ErrListUnknown = errors.New("relies on a list of chunks that is not known")
	// ErrPartMissing: the last part of a SliceWalked came before an earlier one. Nothing was changed;
	// it may be delivered again.
	ErrPartMissing = errors.New("an earlier part of the result is missing")
	// ErrNotLeading: the term has ended, and somebody else leads or may.
	ErrNotLeading = errors.New("not leading")
	// ErrSchema: this binary cannot work with the schema. It is older, and bctl migrate brings it up to date; or so much newer
	// that a newer binary is needed.
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
	Leading
	Scheduling
	// Close ends the connections.
	Close() error
}

// Admin makes and upgrades the index.
type Admin interface {
	// Migrate brings the schema up to this binary's version. It may be called at any time,
	// also by several processes at once. It returns the versions before and after. A newer schema it leaves alone; ErrSchema where
	// this binary cannot work with that.
	Migrate(ctx context.Context) (from, to int64, err error)
	// CheckSchema fails with ErrSchema unless the schema is this binary's version, or a newer one that
	// says that this binary can work with it.
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
	Filers
	Policies

	// Clock returns what the database's clock says.
	Clock(ctx context.Context) (time.Time, error)

	// EnsureFiler and EnsureShard return the row of that name, made if need be; one that was retired is back then.
	EnsureFiler(ctx context.Context, name string) (backup.Filer, error)
	// EnsureShard's source is stored where the shard is new, and changed where it differs.
	EnsureShard(ctx context.Context, filer backup.FilerID, name, source string) (backup.Shard, error)

	// BeginSnapshot makes a running snapshot of the shard with its root walk
	// task, based on the shard's newest committed snapshot, in one
	// transaction. If one is running already it returns that one, and
	// backup.ErrRunning (I5). Selection, AllowShrink, NewRoot, Tags and ID are
	// taken from s, and the time from now; what filer, shard and policy leave
	// out is added to the Selection. The root has to be that of the base, unless
	// NewRoot says otherwise. A retired shard, or one of a retired filer, is
	// backup.ErrNotFound.
	BeginSnapshot(ctx context.Context, shard backup.ShardID, s backup.Snapshot, now time.Time) (backup.Snapshot, error)
	// RequestCancel notes that a running snapshot shall end; a committer fails it then. backup.ErrNotFound where it is not running.
	RequestCancel(ctx context.Context, id backup.SnapshotID, reason string) error
	// SetBad marks a committed snapshot as bad, and says why; an empty reason takes that back. The last good snapshot of a shard is its newest
	// committed one that is not bad, and the shard is planned again where that is another one now. A bad snapshot stays what the next is
	// based on, and can be read. backup.ErrNotFound where it is not committed.
	SetBad(ctx context.Context, id backup.SnapshotID, reason string) error
	// InHand returns the work whose leases run at now, by snapshot, kind and id, no more than limit of it.
	InHand(ctx context.Context, now time.Time, limit int) ([]Work, error)
	// BaseCounts returns the counts of the snapshots that these are based on: what is to be expected. One without a base is left out.
	BaseCounts(ctx context.Context, ids []backup.SnapshotID) (map[backup.SnapshotID]backup.Counts, error)
	// ExpireLeases makes all open work of a snapshot claimable at once: its workers are known to be gone.
	ExpireLeases(ctx context.Context, id backup.SnapshotID) error

	// Snapshot returns one; backup.ErrNotFound if there is none.
	Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error)
	// Snapshots returns those that match, oldest first, by when they were
	// started. Those of one shard are always in the order of their numbers, even
	// where a clock went back: so the newest committed snapshot of a shard is its
	// last good one, and the base of the next. (Limit keeps the newest.)
	Snapshots(ctx context.Context, f SnapshotFilter) ([]backup.Snapshot, error)
	// Problems yields what could not be backed up in one snapshot, by path.
	Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error]

	// Pages yields the pages of a committed snapshot that are at path or
	// below it, in the order of path keys (pages of one directory: page 0 first). It
	// holds no more than a bounded number of rows. ErrNotFound where the snapshot is not committed.
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
	// LocateAll is Dedup's Locate, for restore: where no other pack has a chunk, it
	// returns the place in a condemned one.
	LocateAll(ctx context.Context, ids []backup.ChunkID) ([]Location, error)
	// LocateAllCopies is Dedup's LocateCopies, for restore: after the places in packs
	// that live come those in condemned ones.
	LocateAllCopies(ctx context.Context, ids []backup.ChunkID) ([][]Location, error)
}

// Filers is the part of Catalog that registers filers and shards. A list of
// 200 filers and 10,000 shards takes milliseconds: no method looks at what grows with the trees, or with the number of snapshots.
type Filers interface {
	// AddFiler makes a filer and returns it with its ID. backup.ErrExists where the name is taken; a retired one is back,
	// with the settings of f. backup.ErrInvalid where a setting is wrong.
	AddFiler(ctx context.Context, f backup.Filer) (backup.Filer, error)
	// SetFiler replaces the settings of the filer of f's ID; they hold at once, for what is running as well. Name and Retired stay.
	SetFiler(ctx context.Context, f backup.Filer) error
	// RetireFiler retires a filer with its shards: nothing of it is backed up any more. Snapshots stay. What never had
	// one is deleted. backup.ErrRunning while a snapshot runs.
	RetireFiler(ctx context.Context, id backup.FilerID) error
	// ListFilers returns those that match, by name.
	ListFilers(ctx context.Context, f FilerFilter) ([]FilerStatus, error)

	// AddShard, SetShard and RetireShard are the same for shards; ListShards sorts by filer and name.
	AddShard(ctx context.Context, s backup.Shard) (backup.Shard, error)
	SetShard(ctx context.Context, s backup.Shard) error
	RetireShard(ctx context.Context, id backup.ShardID) error
	ListShards(ctx context.Context, f ShardFilter) ([]ShardStatus, error)
}

// A FilerFilter narrows a list; zero fields do not.
type FilerFilter struct {
	Name    string
	Labels  map[string]string // all of them
	Retired bool              // those too
}

// A ShardFilter narrows a list; zero fields do not.
type ShardFilter struct {
	Filer, Name string
	Labels      map[string]string // of the filer: all of them
	Retired     bool              // those too
}

// A FilerStatus is a filer and how it does.
type FilerStatus struct {
	backup.Filer
	Load           backup.Load
	Shards         int
	Running        int // snapshots
	Tasks, Batches int // in hand
	// Oldest and Newest are the times of the last good snapshots of its shards; zero: one has none, or all have none.
	Oldest, Newest time.Time
	// Deadline is the first of its shards', and Overdue how many have passed theirs; zero: none has one.
	Deadline time.Time
	Overdue  int
}

// A ShardStatus is a shard and its last good snapshot.
type ShardStatus struct {
	backup.Shard
	Filer    backup.Filer
	LastGood backup.SnapshotID // zero: none
	Number   backup.SnapshotNumber
	Time     time.Time // when LastGood was begun: what it has is at least as new
	Files    int64
	Bytes    int64
	Running  backup.SnapshotID // zero: none
	Failed   bool              // the newest snapshot has failed
	Policy   string            // that it is bound to; "": none, or the scheduler has not seen it yet
	Plan     Plan
}

// Overdue reports whether the shard has no good snapshot that is new enough, as its policy wants it.
func (s *ShardStatus) Overdue(now time.Time) bool {
	return !s.Retired && !s.Plan.Deadline.IsZero() && s.Plan.Deadline.Before(now)
}

// Work is a task or batch that is handed out.
type Work struct {
	Snapshot backup.SnapshotID
	Task     backup.TaskID  // or
	Batch    backup.BatchID //
	Attempt  int32
	Until    time.Time // end of the lease
	Worker   string    // empty: it waits in the queue
	Path     string    // that the worker was at when it last told
	Stalled  time.Time // since when it waits for the filer; zero: it does not
}

// A PageMark is what a walker compares a page with.
type PageMark struct {
	Directory   backup.DirectoryID
	Key         backup.PageKey
	Fingerprint backup.Fingerprint
}

// Walking is what a walker reads. base is the snapshot that it compares with.
type Walking interface {
	// Subtree yields the pages that base has of the directory at path and of all
	// below it, in the order of path keys.
	Subtree(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) iter.Seq2[backup.PageVersion, error]
	// InterruptedListings returns what snapshots of the shard that failed since
	// its last commit have left of pages; nil where they have left nothing. The
	// next commit of the shard takes it away.
	InterruptedListings(ctx context.Context, shard backup.ShardID, pages []backup.PageName) ([][]byte, error)
	// Marks returns the marks of base's pages whose path keys are in
	// [from, to), in their order, but no more than limit of them; to nil is no end.
	// When there were more, next is the path key to go on from (directories
	// are never cut: all pages of a directory that is before next are there); else nil.
	Marks(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, from, to []byte, limit int) (marks []PageMark, next []byte, err error)
	// Listings returns the pages' listings in base; nil for one that is not there. One that does not agree with its
	// digest is empty: decoding it is backup.ErrCorrupt.
	Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error)
	// DirectoryByInode returns the path that the directory of this inode has in base;
	// ok is false where there is none, or more than one.
	DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (path string, ok bool, err error)
	// PageKeys returns the keys of all pages of one directory in base.
	PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error)
}

// A PackPlace is where a pack is. The zero PackPlace: nowhere.
type PackPlace struct {
	Pack     backup.PackID
	Snapshot backup.SnapshotID // the parts of the object's name
	Object   backup.PackID     //
	Offset   int64             // bytes into the object
	Bytes    int64             // of the pack
}

// A Location is where a chunk is stored. The zero Location: nowhere.
type Location struct {
	PackPlace
	Frame  uint32
	Start  uint32 // bytes into the frame's plaintext
	Length uint32 // bytes of plaintext
}

// Dedup is what a reader asks.
type Dedup interface {
	// Locate returns where the chunks are, in the order of ids: zero for one
	// that is in no pack, or in condemned ones alone. A batch that relies on what
	// it returns is not refused for that, unless the pack is condemned meanwhile.
	Locate(ctx context.Context, ids []backup.ChunkID) ([]Location, error)
	// LocateCopies returns all places of the chunks, in the order of ids, but for those in condemned packs. It costs
	// more than Locate: call it if the store lacks a pack that Locate has returned.
	LocateCopies(ctx context.Context, ids []backup.ChunkID) ([][]Location, error)
}

// A Claim says what work to hand out.
type Claim struct {
	Snapshots []backup.SnapshotID // only of these; nil: of any
	Lease     time.Duration
	// Queued bounds the leases that run and are not stalled, of Snapshots and of all sites and claims together; 0: it
	// does not. Sites that have work share it evenly, among themselves and with one that has none yet, so that one
	// without workers cannot take it all.
	Queued int
	Limit  int       // at most so many at once
	Now    time.Time // zero: by the database's clock
}

// Held says that a worker has a task or batch in hand.
type Held struct {
	Snapshot backup.SnapshotID // whose work it is; numbers can be guessed, this cannot
	Task     backup.TaskID     // or
	Batch    backup.BatchID    //
	Worker   string
	Path     string
	Stalled  bool
}

// Committing is what the committer does; it is the only writer of results.
type Committing interface {
	// ClaimTasks returns open walk tasks whose lease has run out (or that never
	// had one), each with a new attempt number and lease. Of one filer no more leases run than its
	// limit and its load's slots allow, counting stalled ones; filers take turns (who has least in hand is next), and of
	// a filer the oldest work comes first. The tasks are in the order in which they are to be handed out. Nothing is claimed of
	// a snapshot whose end was requested. Concurrent claims never get the same attempt, and never exceed a bound together.
	ClaimTasks(ctx context.Context, c Claim) ([]backup.WalkTask, error)
	// ClaimBatches is ClaimTasks for read batches.
	ClaimBatches(ctx context.Context, c Claim) ([]backup.ReadBatch, error)
	// ListenBegun calls told once at first and after each snapshot that anybody has begun, until ctx is done or the
	// index is not heard any more. An index that one process has to itself tells nothing.
	ListenBegun(ctx context.Context, told func()) error
	// Extend renews the leases of work that is in hand, where they end sooner than in lease, and notes who has it. When a worker
	// tells of it for the first time the lease ends then in any case: what waits in a queue may have a longer one. Work
	// whose lease has run out, but that nobody else has claimed yet, is the worker's again. Work that is not Held.Snapshot's is left alone.
	Extend(ctx context.Context, held []Held, lease time.Duration, now time.Time) error
	// ExpireFuture ends the leases that end later than after from now: a clock has given them that was ahead. It returns how many.
	ExpireFuture(ctx context.Context, after time.Duration, now time.Time) (int, error)
	// GiveBack ends the leases of work that could not be sent, or whose worker is gone: it can be claimed at once. Work that another
	// worker than Held.Worker was last noted to have is left alone, and so is work that is not Held.Snapshot's.
	GiveBack(ctx context.Context, held []Held) error

	// Apply accepts results, in order, in one transaction that is durable when
	// it returns. What a result finds is told in its Outcome; the error is for
	// all of them, and then nothing was changed.
	Apply(ctx context.Context, results []Result) ([]Outcome, error)

	// CompleteSnapshots returns the running snapshots all of whose work is settled.
	CompleteSnapshots(ctx context.Context, only []backup.SnapshotID) ([]backup.SnapshotID, error)
	// ClaimCommit gives holder the lease of the commit of a snapshot for ttl, or renews it: whoever has it writes the segment. A ttl of
	// 0 gives the lease back. It reports whether that was done: it is refused while the lease of another holder runs, and for a snapshot
	// that is not running and complete. The lease goes by the clock of the index. It only saves work: Commit and Fail do not look at it.
	ClaimCommit(ctx context.Context, id backup.SnapshotID, holder string, ttl time.Duration) (bool, error)
	// Cancelled returns the running snapshots whose end was requested.
	Cancelled(ctx context.Context, only []backup.SnapshotID) ([]backup.Snapshot, error)
	// Changes yields what a snapshot added to pages (first) and ended in pages (then), by path key: its index segment.
	Changes(ctx context.Context, id backup.SnapshotID) iter.Seq2[Change, error]
	// AllPages yields all pages of a snapshot that has not failed, by path key, as Changes that were added: a checkpoint.
	AllPages(ctx context.Context, id backup.SnapshotID) iter.Seq2[Change, error]
	// Journal returns what is known of a shard before a snapshot of it is committed.
	Journal(ctx context.Context, shard backup.ShardID) (ShardJournal, error)
	// Commit is the commit point of a snapshot: one durable transaction that makes it visible.
	// The segment has its changes and is durable already, and pages is what it consists of, as the caller has found: it is
	// not checked. It fails with ErrNotFound unless the snapshot is running and complete.
	Commit(ctx context.Context, id backup.SnapshotID, segment backup.Segment, pages backup.PageSet, now time.Time) error
	// Fail ends a running snapshot that shall not be committed, and undoes what it did to pages. Their listings are left for
	// the snapshots that follow, until one is committed; where several fail, those of the last one that had the page. It fails with
	// ErrNotFound unless the snapshot is running: of several callers, one has ended it.
	Fail(ctx context.Context, id backup.SnapshotID, reason string, now time.Time) error
	// Unrecorded returns snapshots that have ended and whose record the store does not have yet, the oldest first, in the
	// order of Snapshots: those of one shard by number.
	Unrecorded(ctx context.Context, only []backup.SnapshotID, limit int) ([]backup.Snapshot, error)
	// Recorded notes that the store has the record of a snapshot that has ended. One that runs, or that there is not, is nothing.
	Recorded(ctx context.Context, id backup.SnapshotID) error
	// WrittenCatalog returns the catalog in the store with the largest sequence; the zero WrittenCatalog where there is none.
	WrittenCatalog(ctx context.Context) (WrittenCatalog, error)
	// CatalogWritten notes one. Of two with the same sequence the first stays.
	CatalogWritten(ctx context.Context, c WrittenCatalog) error
	// CondemnPacks marks packs as condemned, for garbage collection; a batch that relies on one is refused from then on.
	CondemnPacks(ctx context.Context, packs []backup.PackID) error
}

// A ShardJournal is what a committer must know of a shard before it commits a
// snapshot of it.
type ShardJournal struct {
	// Good is the last good snapshot, 0 where there was none, and what it had.
	Good  backup.SnapshotNumber
	Files int64
	Bytes int64
	// Stored bytes of the last checkpoint, and of the segments since.
	CheckpointBytes, SegmentBytes int64
}

// A WrittenCatalog is a catalog that the store has.
type WrittenCatalog struct {
	Sequence int64
	Digest   [32]byte // of what it says
	Written  time.Time
}

// A Term is the time in which one process leads: it alone does what only one
// may do. The epoch grows with every new leader, and what a leader writes is refused
// once a later one leads, however long it was paused in between.
type Term struct {
	Role  string
	Epoch int64
}

// Leading elects leaders, by the database's clock.
type Leading interface {
	// Lead makes holder, a name that no other process has, the leader of a role, or renews its term, for ttl. ok is
	// false where another leads. A term lasts a day at most: one that ends later is of a clock that was ahead, and is over. Whose term has run out gets a new one, if it is free.
	Lead(ctx context.Context, role, holder string, ttl time.Duration) (t Term, ok bool, err error)
	// Resign ends a term at once; one that has ended is nothing.
	Resign(ctx context.Context, t Term) error
	// SetLoads stores what the governor found; ErrNotLeading where t has ended.
	SetLoads(ctx context.Context, t Term, loads map[backup.FilerID]backup.Load) error
	// Sites returns the sites of all filers that are not retired; DefaultSite always.
	Sites(ctx context.Context) ([]string, error)
}

// A Result is one of the four; the others are nil.
type Result struct {
	Slice *backup.SliceWalked
	Pack  *backup.PackStored
	Lists *backup.ListsStored
	Batch *backup.BatchStored
}

// An Outcome is what became of a Result.
type Outcome struct {
	// Err is nil where the result was accepted (or was a part that is kept
	// until its last), ErrCondemned, ErrPackUnknown, ErrListUnknown, ErrPartMissing, or backup.ErrInvalid.
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
