package entindex

import (
	"context"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/migrations"
)

// Durability is what an Update survives after it has returned.
type Durability int

const (
	// Relaxed updates survive the process. A power failure may undo one, but only together with
	// every Update that followed it.
	Relaxed Durability = iota
	// Durable updates survive a power failure, and so do all updates before them.
	Durable
)

// A Backend is one database: its transactions, and its access to the hot tables. Its methods may be
// called concurrently. If the database does not answer, errors wrap backup.ErrUnavailable.
type Backend interface {
	// Update runs do in a transaction that writes, and commits it unless do fails. After a
	// serialization failure or a deadlock it runs do again, in a new transaction.
	Update(ctx context.Context, d Durability, do func(ctx context.Context, tx *Tx) error) error
	// GiveWay waits if others need the database more than a caller that has worked for so long
	// since it last gave way: long work in the background, in many transactions. It reports whether
	// they do.
	GiveWay(ctx context.Context, worked time.Duration) (needed bool, err error)
	// Client reads the small tables outside of transactions.
	Client() *ent.Client
	// Dialect returns the dialect of its SQL.
	Dialect() *Dialect
	// Wrap adds to an error of Client what the Backend's own methods add to their errors.
	Wrap(err error) error
	HotReader
	// ListenSnapshots is as in index.Committing.
	ListenSnapshots(ctx context.Context, notify func()) error

	// Clock is as in index.Index.
	Clock(ctx context.Context) (time.Time, error)

	// Migrate is as in index.Admin, for a schema that is not newer than this binary's.
	Migrate(ctx context.Context) (from, to int64, err error)
	// Schema returns the database's schema version and the version that this binary needs.
	Schema(ctx context.Context) (migrations.Schema, error)
	// Close closes the connections.
	Close() error
}

// A Tx is one transaction of Update.
type Tx struct {
	*ent.Client           // the small tables
	Hot         HotWriter // the hot tables
	Dialect
}

// A Dialect holds the differences between the databases in SQL that both run.
type Dialect struct {
	// These clauses end a SELECT that locks its rows. They are empty if a transaction that writes
	// is alone anyway.
	ForUpdate, ForShare, SkipLocked string
	// Numbered: parameters of an INSERT are $1, $2 and so on. Otherwise each is a ?, because SQLite
	// takes quadratic time for numbered ones.
	Numbered bool
	// In is the condition that column is in the list that is parameter n. List makes that parameter
	// from a []int64 or []uuid.UUID. The statement is therefore the same for lists of any length.
	In   func(column string, n int) string
	List func(values any) any
	// PlanAnew, before the arguments of a statement, makes the database plan it for each execution.
	// Statements on open work and packs need that: their tables are nearly empty at times, and a
	// plan that was kept from then would read all of a large one. It is nil if a plan depends on
	// the statement alone.
	PlanAnew any
	// Serialize makes this transaction wait for the end of another one that has run it with the
	// same number as parameter 1. It is empty if a transaction that writes is alone anyway.
	Serialize string
	// Lateral: a query in FROM may refer to preceding items. Otherwise each query is a statement of
	// its own.
	Lateral bool
	// TellSnapshot notifies the listeners (Backend.ListenSnapshots) when the transaction is
	// committed. It is empty if the database has no notifications.
	TellSnapshot string
	// NextHold makes the numbers of new holds greater than those that exist. It is empty if they
	// are anyway.
	NextHold string
	// Incarnation selects a text that changes when the tables are replaced, or the server is
	// started. It is empty if a database is a file.
	Incarnation string
	// Now is the time of the database's clock in microseconds since 1970.
	Now string
	// Rows is a table in FROM with these columns ("id bigint", "worker text"), made of the JSON
	// list of objects that is parameter n. Unhex makes bytes of a column's hexadecimal text.
	Rows  func(n int, name string, columns ...string) string
	Unhex func(column string) string
	// LoggedPolicy is the index.LoggedPolicy of a row of policies, as JSON.
	LoggedPolicy string
	// Paths has the queries of holds on paths.
	Paths PathQueries
}

// A PageRow is a version of a page in the hot table.
type PageRow struct {
	Shard       backup.ShardID
	Number      backup.SnapshotNumber // of the snapshot that writes the row
	Directory   backup.DirectoryID
	Key         backup.PageKey
	PathKey     []byte
	Fingerprint backup.Fingerprint
	Digest      backup.PageDigest
	Inode       uint64
	// Listing is the listing, or for PutPages what is stored: the listing, or a patch of which Base
	// is the first snapshot of the base; 0: it needs none.
	Listing []byte
	Base    backup.SnapshotNumber
	Ends    bool // for PutPages: an earlier snapshot's version is open, and ends
	// Replaces is the version that the row replaces: its Fingerprint, Digest, Inode and Listing.
	// Only Begun sets it, and only if the row is stored as a patch.
	Replaces *PageRow
}

// An OpenPage is the open version of a page, as it is stored. The zero OpenPage is none.
type OpenPage struct {
	First       backup.SnapshotNumber
	Fingerprint backup.Fingerprint
	Digest      backup.PageDigest // only of PagesAt
	Listing     []byte
	Base        backup.SnapshotNumber // 0: it needs none
	BaseListing []byte                // of Base, as it is stored; nil: there is none
	Patches     bool                  // patches may be written
}

// Whole returns the listing of a row that is stored as given, with the stored listing of its base,
// if it has one. A patch that makes no listing is returned itself, and so does not match the
// digest.
func Whole(stored, base []byte) []byte {
	if whole, err := listing.Whole(stored, base); err == nil {
		return whole
	}
	return stored
}

// A PageID identifies a page in the hot table. EndPages also uses Number, the snapshot that ends
// the page's open version.
type PageID struct {
	Shard     backup.ShardID
	Number    backup.SnapshotNumber
	Directory backup.DirectoryID
	Key       backup.PageKey
}

// A Tree is a range of path keys whose open versions are to be ended by snapshot Number.
type Tree struct {
	Shard  backup.ShardID
	Number backup.SnapshotNumber
	Range
}

// A Range is the path keys in [From, To). A nil To is no end.
type Range struct{ From, To []byte }

// A ChunkRow is a place of a chunk. Pack is packs.id.
type ChunkRow struct {
	backup.ChunkPlace
	Pack int64
}

// A PackRow is the place of a pack. ID is packs.id.
type PackRow struct {
	ID int64
	index.PackPlace
	Condemned bool
}

// NotNull returns b, or an empty slice for nil, which the drivers would store as NULL.
func NotNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// A HotWriter writes the hot tables within a transaction. Slices are sorted by the table's key
// (chunks by id and pack) and contain no key twice. A snapshot only ends versions that began before
// it, and sets their last_snapshot to Number - 1.
type HotWriter interface {
	// PutChunks stores places, several per chunk if need be. A chunk that has a place keeps it, and
	// the new one is stored as a copy, also if the old one is in a condemned pack, which may be
	// acquitted.
	PutChunks(ctx context.Context, rows []ChunkRow) error
	// PutLists stores what list chunks refer to. A list that is known already is not changed.
	PutLists(ctx context.Context, lists []backup.ChunkList) error
	// KnownLists returns those of the list chunks that are known, with their Chunks only if they
	// are Nested. They stay known until the end of the transaction.
	KnownLists(ctx context.Context, lists []backup.ChunkID) ([]backup.ChunkList, error)
	// OpenPages returns the open versions of pages, in their order.
	OpenPages(ctx context.Context, names []PageID) ([]OpenPage, error)
	// PagesAt returns the versions that snapshot at has, as OpenPages does, with their Digest and
	// without Fingerprint and Patches.
	PagesAt(ctx context.Context, at backup.SnapshotNumber, names []PageID) ([]OpenPage, error)
	// PutPages makes each row the open version of its page. It ends the version that is open, if
	// Ends is set, and replaces one that the same snapshot began.
	PutPages(ctx context.Context, rows []PageRow) error
	// EndPages ends the open versions of pages.
	EndPages(ctx context.Context, names []PageID) error
	// EndTrees ends the open versions of all pages in ranges of paths.
	EndTrees(ctx context.Context, trees []Tree) error
	// SetAside undoes what snapshot number did: it opens the versions that the snapshot ended,
	// removes those that began with it, and returns the number of removed ones. Their listings are
	// kept for InterruptedListings until DropInterrupted.
	SetAside(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) (int64, error)
	DropInterrupted(ctx context.Context, shard backup.ShardID) error
	// RollBack undoes what all snapshots after snapshot number did: it opens the versions that they
	// ended, and removes those that began with them.
	RollBack(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) error

	// DropVersions deletes the versions that began after snapshot number after, and whose last
	// snapshot is from or later, and before before, except those of which another version is a
	// patch. It returns their number. An interrupted page is a patch of the same version as the
	// open one is, or of the open one, which is not deleted before the next commit.
	DropVersions(ctx context.Context, shard backup.ShardID, after, from, before backup.SnapshotNumber) (int64, error)
	// EndOpen ends all open versions of a shard; last is the last snapshot that has them.
	EndOpen(ctx context.Context, shard backup.ShardID, last backup.SnapshotNumber) error
	// DropPlaces deletes the places in packs of the chunks whose ids begin with digit. A chunk with
	// a copy in another pack keeps that place. The references of a list chunk that is left without
	// a place are deleted, too.
	DropPlaces(ctx context.Context, packs []int64, digit byte) error
	// MovePlaces gives the places of chunks in pack from to pack to, which has none. ids are
	// sorted. It ignores chunks without a place in from.
	MovePlaces(ctx context.Context, from, to int64, ids []backup.ChunkID) error
	// DropLists deletes what list chunks refer to that have no place, or that refer to a list chunk
	// that is not known. It returns their number.
	DropLists(ctx context.Context) (int64, error)

	VersionWriter
}

// A HotReader reads the hot tables, outside of transactions. at is a snapshot number: only versions
// that are valid in that snapshot are visible.
type HotReader interface {
	// Marks returns the first limit marks of the range, by path key and page, and their path keys.
	Marks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r Range, limit int) ([]index.PageMark, [][]byte, error)
	// PagesAfter returns the first limit pages of the range after the page (after, key), by path
	// key and page. A nil after precedes all pages.
	PagesAfter(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r Range, after []byte, key backup.PageKey, limit int) ([]PageRow, error)
	// Listings returns the listings of pages with their fingerprints, inodes and digests; the
	// listing is nil if there is no such page.
	Listings(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, names []PageID) ([]PageRow, error)
	// InterruptedListings returns the listings that SetAside kept of pages, nil for a page without
	// one.
	InterruptedListings(ctx context.Context, shard backup.ShardID, names []PageID) ([][]byte, error)
	// DirectoriesByInode returns the path keys of the directories with that inode, at most two.
	DirectoriesByInode(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, inode uint64) ([][]byte, error)
	// DirectoryMarks returns the marks of all pages of one directory, by page.
	DirectoryMarks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, directory backup.DirectoryID) ([]index.PageMark, error)
	// Places returns the first place of each chunk that has one. ids are sorted and unique. If
	// exact is false, a chunk that another process stored in the meantime may be missing.
	Places(ctx context.Context, ids []backup.ChunkID, exact bool) ([]ChunkRow, error)
	// Copies returns the further places of chunks.
	Copies(ctx context.Context, ids []backup.ChunkID) ([]ChunkRow, error)
	// Packs returns the packs with these ids that exist.
	Packs(ctx context.Context, ids []int64) ([]PackRow, error)
	// Begun yields the versions that began with snapshot number, by path key and page.
	Begun(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[PageRow, error]
	// Ended yields the versions that snapshot number ended, without listings, by path key and page.
	Ended(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[PageRow, error]

	// EachListing calls do with the listing of each version of the shard that began with snapshot
	// from or later, and of each interrupted page, all as of one moment. The last snapshot of an
	// open version is math.MaxInt64, and so are both numbers of an interrupted page. A listing is
	// valid until do returns. Versions that needed leaves out are left out.
	EachListing(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed Needed, do func(listing []byte) error) error
	// HasLists reports whether all of these list chunks are known.
	HasLists(ctx context.Context, lists []backup.ChunkID) (bool, error)
	// EachList calls do for each known list chunk.
	EachList(ctx context.Context, do func(backup.ChunkList) error) error
	// EachPlace calls do for each place of a chunk in these packs; nil: in all.
	EachPlace(ctx context.Context, packs []int64, do func(index.PlaceOf) error) error
	// EachLocation is EachPlace with the positions of the chunks in their frames.
	EachLocation(ctx context.Context, packs []int64, do func(index.ChunkLocation) error) error
	// EachVersion calls do with each version of the shard's pages that needed selects, all as of
	// one moment. The listing is valid until do returns.
	EachVersion(ctx context.Context, shard backup.ShardID, needed Needed, share index.Share, do func(index.Version) error) error

	VersionReader
}
