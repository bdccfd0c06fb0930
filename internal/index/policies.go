package index

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// ErrNotDue reports that the given plan is no longer the shard's plan. Nothing was changed.
var ErrNotDue = errors.New("no longer due")

// Policies is the part of Catalog that manages policies.
type Policies interface {
	// SetPolicy creates the policy of that name, or replaces its settings, and returns it with its
	// ID and the next Revision. It fails with backup.ErrInvalid if a setting is wrong. If what the
	// policy keeps, of which filers, or when has changed, the log notes by and a PolicyChange.
	SetPolicy(ctx context.Context, p backup.Policy, by string) (backup.Policy, error)
	// RemovePolicy removes a policy. Its shards are no longer due, unless another policy applies to
	// them. Snapshots remain. RemovePolicy fails with backup.ErrNotFound if there is no policy of
	// that name. The log notes by and a PolicyChange.
	RemovePolicy(ctx context.Context, name, by string) error
	// ListPolicies returns all policies, by name.
	ListPolicies(ctx context.Context) ([]backup.Policy, error)
}

// A PolicyChange is what the log has of a change of a policy, as JSON.
type PolicyChange struct {
	Was *LoggedPolicy `json:"was"` // nil: it is new
	Is  *LoggedPolicy `json:"is"`  // nil: it was removed
}

// A LoggedPolicy has the settings of a policy that decide what is kept.
type LoggedPolicy struct {
	Retention backup.Retention  `json:"retention"`
	Labels    map[string]string `json:"labels"`
	Schedule  string            `json:"schedule"`
	TimeZone  string            `json:"time_zone"`
	Paused    bool              `json:"paused"`
}

// A Binding is the policy of a filer's shards. The zero Binding is no policy.
type Binding struct {
	Policy   backup.PolicyID
	Revision int64
}

// A Plan is the time at which a shard is due by its policy, and the deadline for a good snapshot of
// it. A zero Due means that the shard has to be planned.
type Plan struct {
	Shard backup.ShardID
	Filer backup.FilerID
	Binding
	Due, Deadline time.Time
	// Good is the last good snapshot that the plan was made from. If the shard has another one now,
	// the plan is outdated.
	Good backup.SnapshotNumber
}

// PutBack is the reason of snapshots that have failed because they were running when the index was
// copied, and the copy was put back. Their shards need no pause before the next snapshot: nothing
// of them has failed.
const PutBack = "the index was put back while it ran"

// An Unplanned is a shard that has to be planned, with the input for its plan. Its Deadline is that
// of the previous plan if the last snapshot has failed since, or if there is no good one.
type Unplanned struct {
	Plan
	LastGood time.Time // start of the last good snapshot; zero: none
	Bad      bool      // a snapshot that is newer than the last good one was marked as bad
	Failed   time.Time // when the newest snapshot failed; zero: it has not, or because of PutBack
}

// Scheduling is what the scheduler does. The scheduler leads a role: its writes fail with
// ErrNotLeading if the term has ended. A shard's plan is dropped, which makes the shard Unplanned,
// when its binding changes and when any snapshot of it ends.
type Scheduling interface {
	// FilersToSchedule returns all filers that are not retired, with their labels and sites. Other
	// fields are not set.
	FilersToSchedule(ctx context.Context) ([]backup.Filer, error)
	// Bind binds the shards of filers to policies; filers that are not in bound keep theirs. It
	// returns the number of shards whose policy or policy revision changed.
	Bind(ctx context.Context, t Term, bound map[backup.FilerID]Binding) (int, error)
	// Unplanned returns at most limit shards of these policies that have to be planned, by id,
	// beginning after the shard after.
	Unplanned(ctx context.Context, policies []backup.PolicyID, after backup.ShardID, limit int) ([]Unplanned, error)
	// Unplan drops the plans of the shards of each policy that are due later than the given time,
	// which no correct clock can have made. It returns their number.
	Unplan(ctx context.Context, t Term, after map[backup.PolicyID]time.Time) (int, error)
	// PlanShards stores plans. It skips plans that are outdated by now, and shards that have been
	// planned already.
	PlanShards(ctx context.Context, t Term, plans []Plan) error
	// DueShards returns the shards of these policies that are due at now, are not retired and have
	// no running snapshot. It also returns the number of running snapshots by filer.
	DueShards(ctx context.Context, now time.Time, policies []backup.PolicyID) (due []Plan, running map[backup.FilerID]int, err error)
	// BeginDue is BeginSnapshot for a shard that is due. It fails with ErrNotDue if p is no longer
	// the shard's plan, and with backup.ErrRunning if a snapshot runs.
	BeginDue(ctx context.Context, t Term, p Plan, now time.Time) (backup.Snapshot, error)
	// ForgetDue is Forget for a snapshot that a policy does not keep. It fails with ErrNotDue if
	// the snapshot's shard is no longer bound to this revision of the policy.
	ForgetDue(ctx context.Context, t Term, b Binding, id backup.SnapshotID, by, reason string) error
}
