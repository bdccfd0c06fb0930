package check

import (
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A Kind is what is damaged.
type Kind string

// The kinds of finding.
const (
	// A pack, in the store: missing, too short, or damaged.
	Pack Kind = "pack"
	// The index places chunks where a pack does not have them.
	Places Kind = "places"
	// A row of a page in the index.
	Page Kind = "page"
	// The pages of a snapshot, as a whole.
	Snapshot Kind = "snapshot"
	// Chunks that are in no pack, according to the index.
	Chunks Kind = "chunks"
	// Lists of chunks of large files that the index does not know.
	Lists Kind = "lists"
	// Objects of the journal.
	Segment Kind = "segment"
	Record  Kind = "record"
	Catalog Kind = "catalog"
	// A parity object, or the row of a parity group.
	Parity Kind = "parity"
	// A copy of the index.
	Copy Kind = "index copy"
	// A statement of recipients, or wrapped keys of a rotation.
	Keys Kind = "keys"
)

// A Finding is one thing that is not as it should be.
type Finding struct {
	Kind   Kind
	Object string // its name in the store; empty: it is in the index
	Text   string // what is wrong

	// Of a snapshot, a page, a record or a segment: where it belongs, and which snapshots it
	// concerns.
	Filer, Shard string
	ShardID      backup.ShardID
	First, Last  backup.SnapshotNumber
	Path         string // of a page

	// Of a pack, or of places: Damage is what cannot be read of it.
	Damage *Damage
	// Elsewhere is the number of chunks that another pack has too, and Lost of those that none has.
	Elsewhere, Lost int64
	// Files is the number of affected files, and Affected the first of them. A pack without any is
	// needed by no snapshot, or has only chunks that other packs have too.
	Files    int64
	Affected []Affected

	// Of Chunks: Noted is the number of affected entries of the newest snapshots that the next
	// backups read again, because a repair has noted their pages, and Unnoted of all others in
	// these snapshots.
	Noted, Unnoted int64

	// Checkpointed: of a segment or an amended record, a later segment has all that later snapshots
	// need.
	Checkpointed bool

	// Interrupted: of a record, a purge or a repair was interrupted before it had written the
	// records of the shard again.
	Interrupted bool

	// FromParity: as far as the check has looked, parity can bring the object back.
	FromParity bool

	More int // further findings, which are not reported one by one
}

// An Affected is a file, or a directory with its attributes, of which a part is lost.
type Affected struct {
	Filer, Shard string
	Path         string
	First, Last  backup.SnapshotNumber // of the needed snapshots that have it
	// Page names the page of its directory.
	ShardID   backup.ShardID
	Directory backup.DirectoryID
	Key       backup.PageKey
	Version   backup.SnapshotNumber // with which the version of the page began
	Open      bool                  // the newest snapshot has it
}

// A Damage is the part of a pack that cannot be read.
type Damage struct {
	Row   int64
	Pack  index.PackPlace
	Whole bool
	// Missing: the store lacks the whole pack, or has less of it.
	Missing bool
	// Unsure: the bytes are not those that a scrub has read first, and either may be damaged. Only
	// who opens the pack can tell.
	Unsure bool
	Frames map[uint32]bool         // unless it is the whole pack
	Chunks map[backup.ChunkID]bool // which the index places wrongly
	// Ends is where the last pack of an object ends that has other bytes after it; 0: it has none.
	// Nothing is lost then.
	Ends int64
}

// Has reports whether a place is in the damaged part.
func (d *Damage) Has(p *index.PlaceOf) bool { return d.Whole || d.Frames[p.Frame] || d.Chunks[p.Chunk] }

// maxAffected bounds Finding.Affected.
const maxAffected = 20
