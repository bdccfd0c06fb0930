package index

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// ErrNotDue: a shard's plan is not that one any more. Nothing was changed.
var ErrNotDue = errors.New("not due any more")

// Policies is what operators do with policies.
type Policies interface {
	// SetPolicy makes the policy of that name, or replaces its settings, and returns it with its ID and the next Revision.
	// backup.ErrInvalid where a setting is wrong.
	SetPolicy(ctx context.Context, p backup.Policy) (backup.Policy, error)
	// RemovePolicy removes it: its shards are not due any more, unless another policy takes them. Snapshots
	// stay. backup.ErrNotFound where there is none of that name.
	RemovePolicy(ctx context.Context, name string) error
	// ListPolicies returns all policies, by name.
	ListPolicies(ctx context.Context) ([]backup.Policy, error)
}

// A Binding is the policy of a filer's shards; the zero Binding: none.
type Binding struct {
	Policy   backup.PolicyID
	Revision int64
}

// A Plan says when a shard is due by its policy, and until when it wants a good snapshot.
// A zero Due: it has to be planned.
type Plan struct {
	Shard backup.ShardID
	Filer backup.FilerID
	Binding
	Due, Deadline time.Time
	// Good is the last good snapshot that the plan was made from: when it is not that any more, the plan is old.
	Good backup.SnapshotNumber
}

// An Unplanned is a shard that has to be planned, and what from. Its Deadline is that of the plan before, if
// the last snapshot has failed since.
type Unplanned struct {
	Plan
	LastGood time.Time // begin of the last good snapshot; zero: none
	Failed   bool      // the newest snapshot has failed
}

// Scheduling is what the scheduler does, who is the leader of a role: what it writes fails with ErrNotLeading
// where the term has ended. A shard's plan is dropped, which makes it Unplanned, when its binding changes and
// when a snapshot of it ends, whoever began that.
type Scheduling interface {
	// FilersToSchedule returns all filers that are not retired, with their labels and sites; other fields are not set.
	FilersToSchedule(ctx context.Context) ([]backup.Filer, error)
	// Bind gives the shards of filers their policies; filers that are not named keep theirs. It returns how many
	// shards have another policy, or another revision of it, than before.
	Bind(ctx context.Context, t Term, bound map[backup.FilerID]Binding) (int, error)
	// Unplanned returns shards of these policies that have to be planned, by id: those after one, no more than limit.
	Unplanned(ctx context.Context, policies []backup.PolicyID, after backup.ShardID, limit int) ([]Unplanned, error)
	// Unplan drops the plans of the shards of each policy that are due after a time: no clock that is right has made them.
	// It returns how many.
	Unplan(ctx context.Context, t Term, after map[backup.PolicyID]time.Time) (int, error)
	// PlanShards stores plans; those that are old by now, or made already, are passed over.
	PlanShards(ctx context.Context, t Term, plans []Plan) error
	// DueShards returns the shards of these policies that are due at now, are not retired, and of which no snapshot runs;
	// and how many snapshots run, by filer.
	DueShards(ctx context.Context, now time.Time, policies []backup.PolicyID) (due []Plan, running map[backup.FilerID]int, err error)
	// BeginDue is BeginSnapshot of a shard that is due. It fails with ErrNotDue where p is not the shard's plan any more, and with
	// backup.ErrRunning where a snapshot runs.
	BeginDue(ctx context.Context, t Term, p Plan, now time.Time) (backup.Snapshot, error)
}
