package backup

import "time"

// A State is a stage in the life of a snapshot.
type State string

// The states of a snapshot. Running ends in Committed or Failed. Either may then change to
// Deleting, and the snapshot is finally removed. Only a Committed snapshot can be read.
const (
	Running   State = "running"
	Committed State = "committed"
	Failed    State = "failed"
	Deleting  State = "deleting"
)

// A Selection defines which parts of a shard are excluded.
type Selection struct {
	// Exclude are gitignore patterns, relative to the shard's root.
	Exclude []string `json:"exclude,omitempty"`
	// ExcludeIfPresent are file names. A directory that contains one of them is kept empty.
	ExcludeIfPresent []string `json:"exclude_if_present,omitempty"`
	// OneFileSystem keeps the directories below the root empty on which other file systems are
	// mounted.
	OneFileSystem bool `json:"one_file_system,omitempty"`
	// ExcludeLargerBytes excludes files above this size; 0: no limit.
	ExcludeLargerBytes int64 `json:"exclude_larger_bytes,omitempty"`
}

// Counts are the statistics of one stage for a snapshot. A snapshot's Counts are the sum of those
// of all accepted results. The JSON names are part of the formats in the store.
type Counts struct {
	Files          int64 `json:"files"` // entries that are not directories, as the snapshot has them
	Directories    int64 `json:"directories"`
	Bytes          int64 `json:"bytes"`     // sum of the sizes of the files
	FilesNew       int64 `json:"files_new"` // files that the previous snapshot did not have
	FilesChanged   int64 `json:"files_changed"`
	FilesUnchanged int64 `json:"files_unchanged"`
	StatCalls      int64 `json:"stat_calls"`
	NewBytes       int64 `json:"new_bytes"`    // plaintext of chunks that were not stored before
	StoredBytes    int64 `json:"stored_bytes"` // bytes added to packs
	ReadBytes      int64 `json:"read_bytes"`   // bytes read from the source
	Errors         int64 `json:"errors"`       // problems
	// Vanished is the number of files that the walk found, and that no longer existed when they
	// were to be read.
	Vanished int64 `json:"vanished"`
	// Carried is the number of entries whose earlier state was carried forward, because they could
	// not be read.
	Carried int64 `json:"carried"`
	Torn    int64 `json:"torn"` // files that changed during each attempt to read them

	// Of the new and changed files, FilesJudged were compared with what the last snapshot has in
	// their place; services of older versions compare none. FilesRenamed had another name in their
	// directory, and count as new as well. TypesLost no longer begin like a known type. FilesOpaque
	// now begin like random data.
	FilesJudged  int64 `json:"files_judged,omitempty"`
	FilesRenamed int64 `json:"files_renamed,omitempty"`
	TypesLost    int64 `json:"types_lost,omitempty"`
	FilesOpaque  int64 `json:"files_opaque,omitempty"`

	// Seconds of work per stage, summed over all workers.
	WalkSeconds     float64 `json:"walk_seconds"`
	ReadSeconds     float64 `json:"read_seconds"`
	HashSeconds     float64 `json:"hash_seconds"`
	CompressSeconds float64 `json:"compress_seconds"`
	SealSeconds     float64 `json:"seal_seconds"`
	UploadSeconds   float64 `json:"upload_seconds"`
	CommitSeconds   float64 `json:"commit_seconds"`
}

// MaxCount is the maximum of a count in a result. Sparse files can claim to be larger than this,
// and larger in total than an int64 holds.
const MaxCount = 1 << 53

// AddBytes adds n to Bytes, up to MaxCount.
func (c *Counts) AddBytes(n int64) {
	n = min(max(n, -MaxCount), MaxCount)
	c.Bytes = min(max(c.Bytes+n, -MaxCount), MaxCount)
}

// Empty reports whether a snapshot with these counts has nothing but an empty root. Nothing of it
// can be lost.
func (c *Counts) Empty() bool { return c.Files == 0 && c.Directories == 1 && c.Errors == 0 }

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	c.AddBytes(d.Bytes)
	d.Bytes = 0
	integers, seconds := c.Integers(), c.Seconds()
	for i, n := range d.Integers() {
		*integers[i] += *n
	}
	for i, n := range d.Seconds() {
		*seconds[i] += *n
	}
}

// Integers returns the fields that are numbers, in the order in which the index stores them. Fields
// may only be appended, with a new version of the index's codec.
func (c *Counts) Integers() [18]*int64 {
	return [...]*int64{
		&c.Files, &c.Directories, &c.Bytes, &c.FilesNew, &c.FilesChanged, &c.FilesUnchanged,
		&c.StatCalls, &c.NewBytes, &c.StoredBytes, &c.ReadBytes, &c.Errors, &c.Vanished, &c.Carried, &c.Torn,
		&c.FilesJudged, &c.FilesRenamed, &c.TypesLost, &c.FilesOpaque,
	}
}

// Seconds is Integers for the fields that are durations.
func (c *Counts) Seconds() [7]*float64 {
	return [...]*float64{
		&c.WalkSeconds, &c.ReadSeconds, &c.HashSeconds, &c.CompressSeconds, &c.SealSeconds, &c.UploadSeconds, &c.CommitSeconds,
	}
}

// A Snapshot is the state of one shard at one time.
type Snapshot struct {
	ID     SnapshotID
	Filer  Filer
	Shard  Shard
	Number SnapshotNumber
	Base   SnapshotNumber // the committed snapshot that it is compared with; 0: none
	BaseID SnapshotID     // its id; zero: none
	State  State
	Reason string // why it failed
	// Bad, if not empty, is the reason why an operator does not want a committed snapshot to count
	// as good.
	Bad string

	// ChurnScore is how many files became opaque, in thousandths of what raises an alarm. Alarm is
	// what the alarm says; empty: there is none (package churn).
	ChurnScore int64
	Alarm      string

	Started   time.Time
	Ended     time.Time // zero while State is Running
	Committed time.Time // likewise; zero unless State is Committed
	// Source is the URL that is read: the shard's or, after the root was walked, that of the chosen
	// source snapshot.
	Source    string
	Root      Root      // of the tree that is read; zero until the root is walked
	Compare   Compare   // the attributes that determine whether a file is unchanged
	Selection Selection // of filer, shard and request combined
	// Cancel, if not empty, is the reason why an operator wants the snapshot to end.
	Cancel string
	// AllowShrink accepts what would otherwise indicate a missing mount: far fewer files than in
	// the last good snapshot, an empty root, or an empty directory in place of another file system.
	AllowShrink bool
	// NewRoot accepts that the shard's root was replaced.
	NewRoot bool
	Tags    []string

	Counts Counts
	// Pages is the snapshot's content, and Segment is the location of its changes in the store,
	// once it is committed.
	Pages   PageSet
	Segment Segment
	// Interrupted means that an earlier, uncommitted snapshot left content that this one uses.
	Interrupted bool
	// Announced and settled work. The snapshot is complete when the numbers are equal.
	TasksAnnounced, TasksSettled, BatchesAnnounced, BatchesSettled int64
}

// A Segment identifies the page changes of a snapshot in the store.
type Segment struct {
	Attempt    PackID // the attempt that wrote it
	Parts      int    // 0: nothing changed
	Checkpoint bool   // contains all pages of the shard
	Bytes      int64  // as stored; known only to the writer
}

// Complete reports whether every announced task and batch is settled (I4).
func (s *Snapshot) Complete() bool {
	return s.TasksAnnounced > 0 && s.TasksAnnounced == s.TasksSettled && s.BatchesAnnounced == s.BatchesSettled
}

// A Problem is an entry that could not be backed up (I11).
type Problem struct {
	Path string // within the shard, any bytes
	Op   string // the operation that failed: open, read, stat, list, xattr …
	Err  string
}

// A Repository is the configuration on which all parts must agree. It is stored in the object store
// and in the index. After init only its recipients can change.
type Repository struct {
	ID         RepositoryID
	Version    int // of the repository as a whole
	Created    time.Time
	Chunker    string   // name of the algorithm and its parameters
	Codec      string   // name of the compression for new frames
	Recipients []string // age recipients that packs are sealed to
	Signer     [32]byte // public half of the key that signs the store's copy of the index
}
