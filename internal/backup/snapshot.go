package backup

import "time"

// A State is where a snapshot is in its life.
type State string

// The states of a snapshot. Running ends in Committed or Failed; either ends
// in Deleting and then in nothing. Only a Committed snapshot can be read.
const (
	Running   State = "running"
	Committed State = "committed"
	Failed    State = "failed"
	Deleting  State = "deleting"
)

// A Selection says what of a shard is left out.
type Selection struct {
	Exclude            []string `json:"exclude,omitempty"`              // gitignore patterns, relative to the shard's root
	ExcludeIfPresent   []string `json:"exclude_if_present,omitempty"`   // a directory with such a name in it is kept empty
	OneFileSystem      bool     `json:"one_file_system,omitempty"`      // what is mounted below the root is kept empty
	ExcludeLargerBytes int64    `json:"exclude_larger_bytes,omitempty"` // files above this size; 0: no limit
}

// Counts is what one stage did for a snapshot; those of all accepted results
// add up to the snapshot's. The names in JSON are part of the formats in the
// store.
type Counts struct {
	Files          int64 `json:"files"` // entries that are not directories, as they are in the snapshot
	Directories    int64 `json:"directories"`
	Bytes          int64 `json:"bytes"`     // sum of the sizes of the files
	FilesNew       int64 `json:"files_new"` // no entry of this name before
	FilesChanged   int64 `json:"files_changed"`
	FilesUnchanged int64 `json:"files_unchanged"`
	StatCalls      int64 `json:"stat_calls"`
	NewBytes       int64 `json:"new_bytes"`    // plaintext of chunks not stored before
	StoredBytes    int64 `json:"stored_bytes"` // what packs grew by
	ReadBytes      int64 `json:"read_bytes"`   // bytes read from the source
	Errors         int64 `json:"errors"`       // problems
	Vanished       int64 `json:"vanished"`     // files that the walk found, and that were gone when they were to be read
	Carried        int64 `json:"carried"`      // entries of which the snapshot has an earlier state, because they could not be read
	Torn           int64 `json:"torn"`         // files that changed each time they were read

	// Seconds of work by stage, summed over all workers that did it.
	WalkSeconds     float64 `json:"walk_seconds"`
	ReadSeconds     float64 `json:"read_seconds"`
	HashSeconds     float64 `json:"hash_seconds"`
	CompressSeconds float64 `json:"compress_seconds"`
	SealSeconds     float64 `json:"seal_seconds"`
	UploadSeconds   float64 `json:"upload_seconds"`
	CommitSeconds   float64 `json:"commit_seconds"`
}

// MaxCount is the most that a count of a result may be. Sparse files may say that
// they are larger than that, and larger together than an int64 holds.
const MaxCount = 1 << 53

// AddBytes adds to Bytes, as far as MaxCount.
func (c *Counts) AddBytes(n int64) {
	n = min(max(n, -MaxCount), MaxCount)
	c.Bytes = min(max(c.Bytes+n, -MaxCount), MaxCount)
}

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	c.Files += d.Files
	c.Directories += d.Directories
	c.AddBytes(d.Bytes)
	c.FilesNew += d.FilesNew
	c.FilesChanged += d.FilesChanged
	c.FilesUnchanged += d.FilesUnchanged
	c.StatCalls += d.StatCalls
	c.NewBytes += d.NewBytes
	c.StoredBytes += d.StoredBytes
	c.ReadBytes += d.ReadBytes
	c.Errors += d.Errors
	c.Vanished += d.Vanished
	c.Carried += d.Carried
	c.Torn += d.Torn
	c.WalkSeconds += d.WalkSeconds
	c.ReadSeconds += d.ReadSeconds
	c.HashSeconds += d.HashSeconds
	c.CompressSeconds += d.CompressSeconds
	c.SealSeconds += d.SealSeconds
	c.UploadSeconds += d.UploadSeconds
	c.CommitSeconds += d.CommitSeconds
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
	// Bad, where it is not empty, is why an operator does not want a committed snapshot to count as good.
	Bad string

	Started   time.Time
	Ended     time.Time // zero while State is Running
	Committed time.Time // the same; zero unless State is Committed
	// Source is the URL that is read: the shard's, or, once the root is walked,
	// of the source snapshot that was taken.
	Source    string
	Root      Root      // of the tree that is read; zero until the root is walked
	Compare   Compare   // what counted for a file to be unchanged
	Selection Selection // of filer, shard and request together
	// Cancel, where it is not empty, is why an operator wants the snapshot to end.
	Cancel string
	// AllowShrink believes what else would look like a mount that is gone: far
	// fewer files than in the last good snapshot, an empty root, an empty
	// directory where another file system was.
	AllowShrink bool
	// NewRoot believes that the shard's root was replaced by another.
	NewRoot bool
	Tags    []string

	Counts Counts
	// Pages is what the snapshot consists of, and Segment where the store has
	// what it changed, once it is committed.
	Pages   PageSet
	Segment Segment
	// Interrupted says that a snapshot before it, which was not committed, has
	// left content that this one uses.
	Interrupted bool
	// Announced and settled work: the snapshot is complete when they are equal.
	TasksAnnounced, TasksSettled, BatchesAnnounced, BatchesSettled int64
}

// A Segment is what the store has of the pages that a snapshot changed.
type Segment struct {
	Attempt    PackID // who wrote it
	Parts      int    // 0: nothing was changed
	Checkpoint bool   // it has all pages of the shard
	Bytes      int64  // as stored; known to who writes it only
}

// Complete reports whether every announced task and batch is settled (I4).
func (s *Snapshot) Complete() bool {
	return s.TasksAnnounced > 0 && s.TasksAnnounced == s.TasksSettled && s.BatchesAnnounced == s.BatchesSettled
}

// A Problem is something that could not be backed up (I11).
type Problem struct {
	Path string // within the shard, any bytes
	Op   string // what failed: open, read, stat, list, xattr …
	Err  string
}

// A Repository is what all parts must agree on; it is stored in the object
// store and in the index, and never changes after init but for its recipients.
type Repository struct {
	ID         RepositoryID
	Version    int // of the repository as a whole
	Created    time.Time
	Chunker    string   // name of the algorithm and its parameters
	Codec      string   // name of the compression that new frames get
	Recipients []string // age recipients that packs are sealed to
	Signer     [32]byte // public half of the key that signs what the store has of the index
}
