package index

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Term is the period during which one process leads: it alone does what only one process may do.
// The epoch grows with each new leader. The writes of a leader are refused once a later one leads,
// however long it was paused in between.
type Term struct {
	Role  string
	Epoch int64
}

// KeeperRole is the role of the committer that leads.
const KeeperRole = "keeper"

// A Leader is a process that leads at present.
type Leader struct {
	Term
	Holder string
	Until  time.Time // when the term ends unless it is renewed
}

// Succeeding finds leaders, any of which may have died.
type Succeeding interface {
	// Leaders returns the leaders of all roles that have one.
	Leaders(ctx context.Context) ([]Leader, error)
}

// Leading elects leaders, by the database's clock.
type Leading interface {
	// Lead makes holder, a name that no other process has, the leader of a role for ttl, or renews
	// its term. ok is false if another process leads. A holder whose term has run out gets a new
	// term if the role is free. A term lasts a day at most: one that ends later was given by a
	// clock that was ahead, and counts as over.
	Lead(ctx context.Context, role, holder string, ttl time.Duration) (t Term, ok bool, err error)
	// Resign ends a term at once. It does nothing if the term has ended already. Another process
	// may call it for a leader that has died.
	Resign(ctx context.Context, t Term) error
}

// Governing is the part of the index with which the keeper governs filers and makes queues.
type Governing interface {
	// SetLoads stores the loads that the governor determined. It fails with ErrNotLeading if t has
	// ended.
	SetLoads(ctx context.Context, t Term, loads map[backup.FilerID]backup.Load) error
	// Sites returns the sites of all filers that are not retired, and always DefaultSite.
	Sites(ctx context.Context) ([]string, error)
}
