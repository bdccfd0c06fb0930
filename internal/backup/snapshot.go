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
// add up to the snapshot's.
type Counts struct {
	Files          int64 // entries that are not directories, as they are in the snapshot
	Directories    int64
	Bytes          int64 // sum of the sizes of the files
	FilesNew       int64 // no entry of this name before
	FilesChanged   int64
	FilesUnchanged int64
	StatCalls      int64
	NewBytes       int64 // plaintext of chunks not stored before
	StoredBytes    int64 // what packs grew by
	ReadBytes      int64 // bytes read from the source
	Errors         int64 // problems

	// Seconds of work by stage, summed over all workers that did it.
	WalkSeconds, ReadSeconds, HashSeconds, CompressSeconds, SealSeconds, UploadSeconds, CommitSeconds float64
}

// Add adds d to c.
func (c *Counts) Add(d Counts) {
	c.Files += d.Files
	c.Directories += d.Directories
	c.Bytes += d.Bytes
	c.FilesNew += d.FilesNew
	c.FilesChanged += d.FilesChanged
	c.FilesUnchanged += d.FilesUnchanged
	c.StatCalls += d.StatCalls
	c.NewBytes += d.NewBytes
	c.StoredBytes += d.StoredBytes
	c.ReadBytes += d.ReadBytes
	c.Errors += d.Errors
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
	State  State
	Reason string // why it failed

	Started   time.Time
	Committed time.Time // zero unless State is Committed
	// Source is the URL that is read: the shard's, or, once the root is walked,
	// of the source snapshot that was taken.
	Source    string
	Selection Selection // of filer, shard and request together
	// Cancel, where it is not empty, is why an operator wants the snapshot to end.
	Cancel string
	// AllowShrink commits the snapshot even if it has far fewer files than its base.
	AllowShrink bool
	Tags        []string

	Counts Counts
	// Announced and settled work: the snapshot is complete when they are equal.
	TasksAnnounced, TasksSettled, BatchesAnnounced, BatchesSettled int64
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
}
