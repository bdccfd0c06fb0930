package index

import (
	"context"
	"iter"

	"github.com/bctl/bctl/internal/backup"
)

// Parity is the part of the index that knows the parity groups in the store
// (docs/formats/parity.md).
//
// A group is planned before its parity objects are put, valid when all of them are in the store,
// and ended before they are deleted. Its row goes after they are. So an object without a row is
// left from a pruner that was paused.
type Parity interface {
	// ParityGroups yields all groups, in no particular order.
	ParityGroups(ctx context.Context) iter.Seq2[ParityGroup, error]
	// PlanParity notes a new group, of which nothing is in the store. It fails with ErrNotLeading
	// once the term has ended.
	PlanParity(ctx context.Context, t Term, id backup.PackID) error
	// ReplaceParity makes planned groups valid and ends others, in one transaction. It fails with
	// ErrNotLeading once the term has ended, and with backup.ErrInvalid if one of the groups in
	// made is not planned: nothing changes then.
	ReplaceParity(ctx context.Context, t Term, made []ParityGroup, ended []backup.PackID) error
	// DropParity deletes the rows of groups that are not valid, after their objects. It fails with
	// ErrNotLeading once the term has ended.
	DropParity(ctx context.Context, t Term, groups []backup.PackID) error
	// RecoverParity makes the groups of the index these, for a rebuild.
	RecoverParity(ctx context.Context, groups []ParityGroup) error
	// NotePutBack adds to what repairs have put back, from parity or from elsewhere. It is durable.
	NotePutBack(ctx context.Context, from PutBackSource, objects int, bytes int64) error
}

// A ParityState is a state of a ParityGroup.
type ParityState string

// The states.
const (
	ParityPlanned ParityState = "planned"
	ParityValid   ParityState = "valid"
	ParityEnded   ParityState = "ended"
)

// A ParityGroup is a parity group.
type ParityGroup struct {
	ID          backup.PackID
	State       ParityState
	Description []byte // of parity object 0; empty if the group is planned
	Bytes       int64  // stored bytes of its parity objects
	// Suspect: a scrub has found a parity object of it damaged. PlanParity and the like ignore it.
	Suspect bool
}
