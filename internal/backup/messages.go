package backup

// What the stages tell one another. Package flow carries these as protobuf,
// and the index accepts the results. The order of their lives:
//
//	WalkTask ─► SliceWalked ─► ReadBatch ─► PackStored, ListsStored, BatchStored
//
// Only the committer makes WalkTasks and ReadBatches, out of rows of the index.

// A Job is what every worker must know of the snapshot that it works for.
type Job struct {
	Snapshot SnapshotID
	Filer    FilerID
	Shard    ShardID
	Number   SnapshotNumber
	Base     SnapshotNumber // 0: there is nothing to compare with
	// Interrupted says that a snapshot of the shard which was not committed has
	// left pages: the content that they have of unchanged files need not be read
	// again.
	Interrupted bool
	Started     Time
	Source      string // URL of the shard's root
	// Root is the root that is to be read: a worker that sees another at Source
	// sees another tree. The first task of a shard's first snapshot has none.
	Root Root
	// AllowShrink and NewRoot are the snapshot's.
	AllowShrink, NewRoot bool
	// Snapshots, in a root task only, is the shard's pattern of source
	// snapshots: the newest is to be taken, and told as SliceWalked.Source.
	Snapshots string
	Selection Selection
	Compare   Compare
	Site      string // the workers that can reach the source
	// ReadBytesPerSecond is the share of the filer's limit that one batch has; 0: no limit.
	ReadBytesPerSecond int64
}

// A WalkTask asks a walker to walk down from some directories.
type WalkTask struct {
	Job        Job
	ID         TaskID
	Attempt    int32
	Generation int32 // 0: the root task; a child has its parent's plus one. Early generations get small budgets.
	// Directories are paths within the shard, in order of their path keys.
	Directories []string
	// Mounts are the directories among those and above them at which a file
	// system was seen to begin, in this snapshot.
	Mounts []string
	// Scarce: the filer soon has places for more tasks than are open. Walkers may be idle, so that
	// the walk is to be cut up soon.
	Scarce bool
}

// A PageVersion is a page as the index stores it.
type PageVersion struct {
	Path        string
	Key         PageKey
	Fingerprint Fingerprint
	Inode       uint64 // of the directory, on page 0, so that a moved directory is recognised; else 0
	Listing     []byte // encoded by package listing
	// Digest is what the index has as the page's digest; zero: not known. No message has it.
	Digest PageDigest
}

// A PageChange is a page that a snapshot added or, where Ended, one that it
// ended; of that, only Path, Key and Digest are there.
type PageChange struct {
	Ended  bool
	Digest PageDigest
	PageVersion
}

// A PageName names a page of a shard.
type PageName struct {
	Path string
	Key  PageKey
}

// SliceWalked is what a walker found for one attempt at a WalkTask. A result
// too large for one message is several, with Part 0, 1, 2 … and Last on the
// last; they are accepted together or not at all.
type SliceWalked struct {
	Snapshot SnapshotID
	Task     TaskID
	Attempt  int32
	Part     int32
	Last     bool
	// Run is random, the same in all parts of one walk: an attempt may be
	// walked twice, by a worker that was taken for dead and by another, and their
	// parts do not fit together.
	Run uint64

	// Pages are new or changed and complete: they name no content that is not stored.
	Pages []PageVersion
	// Ended are pages of directories that are still there which no longer exist.
	Ended []PageName
	// Removed are directories that are gone, with all that was below them.
	Removed []string
	// Batches are pages with content to read; each becomes one ReadBatch.
	Batches []PagesToRead
	// Children are the directories left to walk; each becomes one WalkTask.
	Children []Child

	Counts   Counts
	Problems []Problem

	// Source, in the result of a root task, is the URL of the source snapshot
	// that was taken: all other work of the snapshot reads that.
	Source string
	// Root, in the result of a root task, identifies the tree that was walked:
	// all other work of the snapshot reads that.
	Root Root

	// Failed, where it is not empty, says why the shard cannot be walked at
	// all (its root is gone, say); the snapshot fails with it.
	Failed string
}

// A Child is what a WalkTask will be about.
type Child struct {
	Directories []string
	Mounts      []string
}

// PagesToRead are what a ReadBatch will be about. Mounts are as in WalkTask.
type PagesToRead struct {
	Pages  []PageVersion
	Mounts []string
}

// A ReadBatch asks a reader for the content of some pages' Wanted entries.
type ReadBatch struct {
	Job     Job
	ID      BatchID
	Attempt int32
	PagesToRead
}

// PackStored says that a pack is durable in the store, and what is in it.
// It comes before every BatchStored that relies on the pack.
type PackStored struct {
	Snapshot    SnapshotID
	Pack        PackID
	StoredBytes int64    // size of the object
	FrameBytes  []uint32 // length of each frame, as it is stored
	Chunks      []ChunkPlace
}

// ListsStored says which chunks are in list chunks that a batch's pages refer
// to, so that what a file consists of is known without a key. It comes before
// the BatchStored that relies on it.
type ListsStored struct {
	Snapshot SnapshotID
	Lists    []ChunkList
}

// A ChunkList is the content of one list chunk.
type ChunkList struct {
	List   ChunkID
	Nested bool // Chunks are list chunks themselves
	Chunks []ChunkID
}

// A ChunkPlace is where a chunk is within its pack.
type ChunkPlace struct {
	ID     ChunkID
	Frame  uint32 // number of the frame in the pack
	Offset uint32 // bytes from the start of the frame's plaintext
	Length uint32 // bytes of plaintext
}

// BatchStored is what a reader made of one attempt at a ReadBatch: the same
// pages, complete, and the packs that they rely on (I6).
type BatchStored struct {
	Snapshot SnapshotID
	Batch    BatchID
	Attempt  int32
	Pages    []PageVersion
	ReliesOn []PackID
	Counts   Counts // Files and Bytes correct what the walker counted, and may be negative
	Problems []Problem

	// Failed, where it is not empty, says why the batch can never be read (its
	// source snapshot has expired, say); the snapshot fails with it. There are no Pages then.
	Failed string
}

// Progress is what a worker tells whoever listens, every second or so, of what
// it has in hand. It extends the leases of the tasks and batches that it names.
type Progress struct {
	Worker   string
	Snapshot SnapshotID
	Tasks    []TaskID
	Batches  []BatchID
	// Since the worker's last Progress for this snapshot:
	FilesFound, BytesFound, FilesDone, BytesDone, Errors int64
	Path                                                 string // one that it is at now

	// StalledTasks and StalledBatches are those of Tasks and Batches that have
	// waited for the filer for so long that they count as stalled.
	StalledTasks   []TaskID
	StalledBatches []BatchID
	// What the filer did since the last Progress: how many stats, and opens with a
	// first read, and how long they took in all. The governor goes by them.
	Filer       FilerID
	Stats       int64
	StatSeconds float64
	Opens       int64
	OpenSeconds float64

	// Instance names the worker's process, and no other ever: as long as it is connected
	// to NATS, somebody is present under that name. Empty: an older worker, which cannot be looked for.
	Instance string
}
