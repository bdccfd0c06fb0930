package entindex

import (
	"context"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/migrations"
)

// Durability says what an Update survives once it has returned.
type Durability int

const (
	// Relaxed: it survives the process. A power cut may undo it, but only
	// together with every Update that came after it.
	Relaxed Durability = iota
	// Durable: it survives a power cut, and so do all that came before it.
	Durable
)

// A Backend is one database: its transactions, and its way with the hot tables.
// Its methods may be called concurrently. Errors of a database that does not
// answer wrap backup.ErrUnavailable.
type Backend interface {
	// Update runs do in a transaction that writes, and commits it unless do
	// fails. After a serialization failure or a deadlock it runs do again, in a new transaction.
	Update(ctx context.Context, d Durability, do func(ctx context.Context, tx *Tx) error) error
	// Client reads the small tables outside of transactions.
	Client() *ent.Client
	// Wrap adds to an error of Client what the Backend's own methods add to theirs.
	Wrap(err error) error
	HotReader
	// ListenBegun is as in index.Committing.
	ListenBegun(ctx context.Context, told func()) error

	// Clock is as in index.Index.
	Clock(ctx context.Context) (time.Time, error)

	// Migrate is as in index.Admin, of a schema that is not newer than this binary's.
	Migrate(ctx context.Context) (from, to int64, err error)
	// Schema returns the database's schema, and what this binary needs.
	Schema(ctx context.Context) (migrations.Schema, error)
	// Close ends the connections.
	Close() error
}

// A Tx is one transaction of Update.
type Tx struct {
	*ent.Client           // the small tables
	Hot         HotWriter // the hot ones
	Dialect
}

// A Dialect is what differs in the SQL that both databases run.
type Dialect struct {
	// What a SELECT ends with to lock its rows; empty where a transaction that writes is alone anyway.
	ForUpdate, ForShare, SkipLocked string
	// Numbered: parameters of an INSERT are $1, $2 …; else each is a ?, because
	// SQLite takes quadratic time for numbers.
	Numbered bool
	// In is the condition that column is one of the list that is parameter n;
	// List makes the parameter of a []int64 or []uuid.UUID. So a list of any length is the same statement.
	In   func(column string, n int) string
	List func(values any) any
	// Serialize makes this transaction wait for the end of another that has done the same, with the same number as
	// parameter 1; empty where a transaction that writes is alone anyway.
	Serialize string
	// Lateral: a query in FROM may refer to what is before it; else it is one statement each.
	Lateral bool
	// TellBegun has those who listen (Backend.ListenBegun) told once the transaction is committed; empty where nobody can.
	TellBegun string
	// Now is the database's clock: microseconds since 1970.
	Now string
	// Rows is a table in FROM with these columns ("id bigint", "worker text"), made of the JSON list of objects that is
	// parameter n; Unhex makes bytes of a column's hexadecimal text.
	Rows  func(n int, name string, columns ...string) string
	Unhex func(column string) string
}

// A PageRow is a version of a page in the hot table.
type PageRow struct {
	Shard       backup.ShardID
	Number      backup.SnapshotNumber // of the snapshot that writes it
	Directory   backup.DirectoryID
	Key         backup.PageKey
	PathKey     []byte
	Fingerprint backup.Fingerprint
	Digest      backup.PageDigest
	Inode       uint64
	Listing     []byte
}

// A PageName is a page whose open version is to be ended by snapshot Number.
type PageName struct {
	Shard     backup.ShardID
	Number    backup.SnapshotNumber
	Directory backup.DirectoryID
	Key       backup.PageKey
}

// A Tree is a range of path keys, whose open versions are to be ended by snapshot Number.
type Tree struct {
	Shard  backup.ShardID
	Number backup.SnapshotNumber
	Range
}

// A Range is the path keys in [From, To); To nil is no end.
type Range struct{ From, To []byte }

// A ChunkRow is a place of a chunk; Pack is packs.id.
type ChunkRow struct {
	backup.ChunkPlace
	Pack int64
}

// A PackRow is where a pack is; ID is packs.id.
type PackRow struct {
	ID int64
	index.PackPlace
	Condemned bool
}

// NotNull returns b, which the drivers would store as NULL if it were nil.
func NotNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// A HotWriter writes the hot tables within a transaction. Slices are sorted by
// the table's key (chunks: by id and pack) and have no key twice. A snapshot only ends versions that
// began before it, and they get last_snapshot = Number - 1.
type HotWriter interface {
	// PutChunks stores places, of which a chunk may have several. A chunk that has a place keeps it, and the
	// new one is stored as a copy, unless the old one is in a condemned pack: the new one replaces it then.
	PutChunks(ctx context.Context, rows []ChunkRow) error
	// PutLists stores what list chunks refer to; one that is known already stays as it is.
	PutLists(ctx context.Context, lists []backup.ChunkList) error
	// KnownLists returns those of the list chunks that are known.
	KnownLists(ctx context.Context, lists []backup.ChunkID) ([]backup.ChunkID, error)
	// PutPages makes each row the open version of its page. Where the open version has the same fingerprint and listing it does nothing.
	PutPages(ctx context.Context, rows []PageRow) error
	// EndPages ends the open versions of pages.
	EndPages(ctx context.Context, names []PageName) error
	// EndTrees ends the open versions of all pages in ranges of paths.
	EndTrees(ctx context.Context, trees []Tree) error
	// SetAside undoes what snapshot number did: it opens the versions again that it ended, and takes those away that
	// began with it, and returns how many. Their listings stay, for InterruptedListings, until DropInterrupted.
	SetAside(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) (int64, error)
	DropInterrupted(ctx context.Context, shard backup.ShardID) error
}

// A HotReader reads the hot tables, outside of transactions. at is a snapshot
// number: only versions that are valid in it are seen.
type HotReader interface {
	// Marks returns the first limit marks of the range, by path key and page, with their path keys.
	Marks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r Range, limit int) ([]index.PageMark, [][]byte, error)
	// PagesAfter returns the first limit pages of the range that are after the page (after, key), by path key and page.
	// A nil after is before all of them.
	PagesAfter(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, r Range, after []byte, key backup.PageKey, limit int) ([]PageRow, error)
	// Listings returns the listings of pages, nil where there is none, with fingerprints, inodes and digests.
	Listings(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, names []PageName) ([]PageRow, error)
	// InterruptedListings returns the listings that SetAside has left of pages, nil where there is none.
	InterruptedListings(ctx context.Context, shard backup.ShardID, names []PageName) ([][]byte, error)
	// DirectoriesByInode returns the path keys of the directories of that inode, at most two.
	DirectoriesByInode(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, inode uint64) ([][]byte, error)
	// DirectoryMarks returns the marks of all pages of one directory, by page.
	DirectoryMarks(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, directory backup.DirectoryID) ([]index.PageMark, error)
	// Places returns the first place of each chunk that has one. ids are sorted, and none comes twice. Where exact is false, a
	// chunk that another process has stored meanwhile may be left out.
	Places(ctx context.Context, ids []backup.ChunkID, exact bool) ([]ChunkRow, error)
	// Copies returns the further places of chunks.
	Copies(ctx context.Context, ids []backup.ChunkID) ([]ChunkRow, error)
	// Packs returns those of the packs that there are.
	Packs(ctx context.Context, ids []int64) ([]PackRow, error)
	// Begun yields the versions that began with snapshot number, by path key and page.
	Begun(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[PageRow, error]
	// Ended yields those that it ended, without listings, by path key and page.
	Ended(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber) iter.Seq2[PageRow, error]
}
