package backup

// The messages between the stages. Package flow carries these as protobuf, and the index accepts
// the results. They follow one another in this order:
//
//	WalkTask ─► SliceWalked ─► ReadBatch ─► PackStored, ListsStored, BatchStored
//
// Only the committer makes WalkTasks and ReadBatches, from rows of the index.

// A Job is what every worker must know about the snapshot that it works for.
type Job struct {
	Snapshot SnapshotID
	Filer    FilerID
	Shard    ShardID
	// FilerName and ShardName are for the log; empty: the committer does not send them yet.
	FilerName, ShardName string
	Number               SnapshotNumber
	Base                 SnapshotNumber // 0: there is nothing to compare with
	// Interrupted means that an earlier, uncommitted snapshot of the shard left pages: content that
	// they have of unchanged files need not be read again.
	Interrupted bool
	Started     Time
	Source      string // URL of the shard's root
	// Root identifies the root to be read: a worker that finds another root at Source refuses the
	// tree. The first task of a shard's first snapshot has no Root.
	Root Root
	// AllowShrink and NewRoot are those of the snapshot.
	AllowShrink, NewRoot bool
	// Snapshots, in a root task only, is the shard's pattern of source snapshots. The walker uses
	// the newest match and reports it as SliceWalked.Source.
	Snapshots string
	Selection Selection
	Compare   Compare
	Site      string // the workers that can reach the source
	// ReadBytesPerSecond is one batch's share of the filer's limit; 0: no limit.
	ReadBytesPerSecond int64
}

// A WalkTask assigns a walker some directories, to be walked downwards.
type WalkTask struct {
	Job     Job
	ID      TaskID
	Attempt int32
	// Generation is 0 for the root task, otherwise the parent's plus one. Early generations get
	// small budgets.
	Generation int32
	// Directories are paths within the shard, in order of their path keys.
	Directories []string
	// Mounts are those of Directories and their ancestors at which this snapshot found that a file
	// system begins.
	Mounts []string
	// Scarce means that the filer will soon have room for more tasks than are open. Walkers may be
	// idle, so the walk is to be split early.
	Scarce bool
}

// A PageVersion is a page as the index stores it.
type PageVersion struct {
	Path        string
	Key         PageKey
	Fingerprint Fingerprint
	// Inode is that of the directory, on page 0, so that a moved directory is recognised; otherwise
	// 0.
	Inode   uint64
	Listing []byte // encoded by package listing
	// Digest is the digest of the page according to the index; zero if not known. Messages do not
	// carry it.
	Digest PageDigest
}

// A PageChange is a page that a snapshot added or, if Ended is set, ended. In a segment, an
// ended page has only Path, Key and Digest.
type PageChange struct {
	Ended  bool
	Digest PageDigest
	PageVersion
	// Replaces is the listing of the base's version of an added page, if the listing may be stored
	// as a patch of it.
	Replaces []byte
}

// A PageName names a page of a shard.
type PageName struct {
	Path string
	Key  PageKey
}

// SliceWalked is the result of one attempt at a WalkTask. A result too large for one message is
// split into parts, numbered 0, 1, 2 and so on, with Last set on the last. The parts are accepted
// together or not at all.
type SliceWalked struct {
	Snapshot SnapshotID
	Task     TaskID
	Attempt  int32
	Part     int32
	Last     bool
	// Run is random, and the same in all parts of one walk. An attempt may be walked twice, by a
	// worker that was presumed dead and by its replacement, and parts of different walks do not fit
	// together.
	Run uint64

	// Pages are new or changed, and complete: all content that they refer to is stored.
	Pages []PageVersion
	// Ended lists pages that no longer exist, in directories that still do.
	Ended []PageName
	// Removed lists directories that no longer exist, each with everything below it.
	Removed []string
	// Batches are pages with content to read. Each element becomes one ReadBatch.
	Batches []PagesToRead
	// Children are the directories left to walk. Each element becomes one WalkTask.
	Children []Child

	Counts   Counts
	Problems []Problem

	// Source, in the result of a root task, is the URL of the chosen source snapshot. All further
	// work of the snapshot reads that.
	Source string
	// Root, in the result of a root task, identifies the tree that was walked. All further work of
	// the snapshot reads that tree.
	Root Root

	// Failed, if not empty, is the reason why the shard cannot be walked at all (for example, its
	// root is gone). The snapshot fails with it.
	Failed string
}

// A Child describes a WalkTask to be made.
type Child struct {
	Directories []string
	Mounts      []string
}

// PagesToRead describes a ReadBatch to be made. Mounts is as in WalkTask.
type PagesToRead struct {
	Pages  []PageVersion
	Mounts []string
}

// A ReadBatch assigns a reader the content of some pages' Wanted entries.
type ReadBatch struct {
	Job     Job
	ID      BatchID
	Attempt int32
	PagesToRead
}

// PackStored reports that a pack is durable in the store, and lists its chunks. It precedes every
// BatchStored that relies on the pack.
type PackStored struct {
	Snapshot    SnapshotID
	Pack        PackID
	StoredBytes int64    // size of the object
	FrameBytes  []uint32 // stored length of each frame
	Sums        []byte   // checksums (pack.Sums); empty: an older reader has sealed the pack
	Chunks      []ChunkPlace
}

// ListsStored reports the contents of the list chunks that a batch's pages refer to, so that the
// chunks of a file are known without a key. It precedes the BatchStored that relies on it.
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

// A ChunkPlace is the position of a chunk within its pack.
type ChunkPlace struct {
	ID     ChunkID
	Frame  uint32 // number of the frame in the pack
	Offset uint32 // bytes from the start of the frame's plaintext
	Length uint32 // bytes of plaintext
}

// BatchStored is the result of one attempt at a ReadBatch: the same pages, complete, and the packs
// that they rely on (I6).
type BatchStored struct {
	Snapshot SnapshotID
	Batch    BatchID
	Attempt  int32
	Pages    []PageVersion
	ReliesOn []PackID
	Counts   Counts // Files and Bytes correct the walker's counts, and may be negative
	Problems []Problem

	// Failed, if not empty, is the reason why the batch can never be read (for example, its source
	// snapshot has expired). The snapshot fails with it, and there are no Pages.
	Failed string
}

// Progress reports, about once per second, what a worker has in progress. It extends the leases of
// the tasks and batches that it names.
type Progress struct {
	Worker   string
	Snapshot SnapshotID
	Tasks    []TaskID
	Batches  []BatchID
	// Counts since the worker's last Progress for this snapshot.
	FilesFound, BytesFound, FilesDone, BytesDone, Errors int64
	Path                                                 string // one path in progress

	// StalledTasks and StalledBatches are those of Tasks and Batches that have waited for the filer
	// long enough to count as stalled.
	StalledTasks   []TaskID
	StalledBatches []BatchID
	// Calls to the filer since the last Progress: the number of stats, the number of opens with a
	// first read, and their total durations. The governor uses them.
	Filer       FilerID
	Stats       int64
	StatSeconds float64
	Opens       int64
	OpenSeconds float64

	// Instance uniquely names the worker's process. While the process is connected to NATS, its
	// presence is visible under that name. It is empty for an older worker, whose presence cannot
	// be checked.
	Instance string
}
