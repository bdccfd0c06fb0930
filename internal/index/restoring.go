package index

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// ErrTakenOver reports that a restore task has a later attempt, or is no longer there.
var ErrTakenOver = errors.New("the task was taken over, or its restore has ended")

const (
	// MaxRestoreFailures is how many attempts at one task may fail. Then the restore has failed.
	MaxRestoreFailures = 5
	// MaxRestoreRequestBytes is the maximum length of a request.
	MaxRestoreRequestBytes = 128 << 10
	// MaxRestoreBlobBytes is the length of keys, and of a result.
	MaxRestoreBlobBytes = 2 << 20
)

// Restoring is the part of the index with which restorers share a restore
// (docs/decisions/0065-a-restore-of-a-fleet.md). The rows are the truth: a restorer claims a task,
// with a lease, and settles it once. A later attempt makes an earlier one void.
type Restoring interface {
	// PagesIn is Catalog.Pages for the pages whose path keys are in [from, to). A nil to is no end.
	PagesIn(ctx context.Context, id backup.SnapshotID, from, to []byte) iter.Seq2[backup.PageVersion, error]

	// BeginRestore stores a restore and its tasks, in the order in which they are claimed. A
	// restore to the same target that has ended is replaced. It fails with backup.ErrExists if one
	// has not ended.
	BeginRestore(ctx context.Context, r Restore, tasks []RestoreTask) error
	// Restores returns all restores, oldest first.
	Restores(ctx context.Context) ([]Restore, error)
	// RestoreTasks returns at most limit tasks of a restore, from row after on.
	RestoreTasks(ctx context.Context, id RestoreID, after int64, limit int) ([]RestoreTask, error)
	// TasksWithoutKeys returns at most limit tasks that restorers have claimed and that have no
	// keys yet.
	TasksWithoutKeys(ctx context.Context, id RestoreID, limit int) ([]RestoreTask, error)
	// GiveKeys stores the keys of one attempt at a task, sealed to its recipient. If there is a
	// later attempt, it does nothing.
	GiveKeys(ctx context.Context, row int64, attempt int, keys []byte) error
	// Refusals returns the restorers that see another target than the others, and why.
	Refusals(ctx context.Context, id RestoreID) ([]Refusal, error)
	// EndRestore deletes a restore and its tasks. If there is none, it does nothing.
	EndRestore(ctx context.Context, id RestoreID) error

	// ClaimRestoreTask claims the next task of the site for a worker, whose session has the
	// recipient. ok is false if there is none. The task that begins a restore is claimed before all
	// others, and the last one after them.
	ClaimRestoreTask(ctx context.Context, site, worker, recipient string, lease time.Duration) (r Restore, t RestoreTask, ok bool, err error)
	// RenewRestoreTask extends the lease, and notes the progress. It returns the keys of the task,
	// nil if there are none yet. It fails with ErrTakenOver.
	RenewRestoreTask(ctx context.Context, t *RestoreTask, lease time.Duration, files, bytes int64) (keys []byte, err error)
	// SettleRestoreTask ends a task with its result. It is durable. It fails with ErrTakenOver.
	SettleRestoreTask(ctx context.Context, t *RestoreTask, result []byte) error
	// FailRestoreTask ends an attempt with an error. The task can be claimed again after pause. An
	// attempt that does not count has failed for a reason that may pass.
	FailRestoreTask(ctx context.Context, t *RestoreTask, pause time.Duration, counts bool, reason string) error
	// RefuseRestore gives a task back, because the worker sees another target. For pause, the
	// worker claims no task of the restore.
	RefuseRestore(ctx context.Context, t *RestoreTask, pause time.Duration, reason string) error
}

// A RestoreID identifies a restore by a fleet.
type RestoreID [16]byte

// NewRestoreID returns a random RestoreID.
func NewRestoreID() RestoreID { return RestoreID(backup.NewPackID()) }

// String returns 32 hexadecimal digits.
func (id RestoreID) String() string { return hex.EncodeToString(id[:]) }

// A Restore is a restore that restorers share.
type Restore struct {
	ID       RestoreID
	Snapshot backup.SnapshotID
	Site     string
	Target   string // directory, as the restorers of the site see it
	Request  []byte // what package spread needs
	Started  time.Time

	Tasks, Open  int    // Open: not settled
	Files, Bytes int64  // restored so far
	Working      int    // tasks that a restorer has
	Restorers    int    // that have these tasks
	Waiting      int    // of these, tasks without keys
	Trouble      string // why an attempt at an open task failed; empty: none has
	Failed       string
}

// Ended reports whether nothing of the restore is claimed any more.
func (r *Restore) Ended() bool { return r.Open == 0 || r.Failed != "" }

// A RestoreTaskKind says what a task does.
type RestoreTaskKind int

// The kinds. Begin makes the target, Part restores the directories whose path keys are in [From,
// To), and Last does what is left after all parts.
const (
	RestoreBegin RestoreTaskKind = iota
	RestorePart
	RestoreLast
)

// A RestoreTask is one task of a restore.
type RestoreTask struct {
	Row      int64
	Restore  RestoreID
	Kind     RestoreTaskKind
	From, To []byte

	Attempt   int
	Worker    string
	Recipient string // of the worker's session; empty: nobody has it
	Settled   bool
	Result    []byte
	Reason    string // why the last failed attempt failed
}

// A Refusal is a restorer that sees another target than the others.
type Refusal struct{ Worker, Reason string }
