package repo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A History is an index that can report whether it is older than its store.
type History interface {
	// Unknown returns the given snapshots of which the index has no record.
	Unknown(ctx context.Context, ids []backup.SnapshotID) ([]backup.SnapshotID, error)
}

// Recorded returns the snapshots that have a record in the store. The records are not
// authenticated, because they are not read.
func Recorded(ctx context.Context, s store.Store) (recorded []backup.SnapshotID, err error) {
	for o, err := range s.List(ctx, store.CommitsPrefix) {
		if err != nil {
			return nil, err
		}
		if id, err := backup.ParseSnapshotID(strings.TrimPrefix(o.Name, store.CommitsPrefix)); err == nil {
			recorded = append(recorded, id)
		}
	}
	return recorded, nil
}

// Unknown returns the snapshots that have a record in the store but are not in the index.
//
// The store is read before the index, so that a snapshot that another process commits meanwhile is
// known.
func Unknown(ctx context.Context, s store.Store, i History) ([]backup.SnapshotID, error) {
	recorded, err := Recorded(ctx, s)
	if err != nil {
		return nil, err
	}
	return i.Unknown(ctx, recorded)
}

// CheckCurrent returns an error that wraps ErrIndexOld if the store has a record of a snapshot that
// the index does not know (I16). A record is written only after the index has recorded how its
// snapshot ended. So the index is older than the store, or has diverged from the index with which
// the store was written. Records that the repository's signer has not signed are ignored (I17).
func CheckCurrent(ctx context.Context, s store.Store, i History, r *backup.Repository) error {
	unknown, err := Unknown(ctx, s, i)
	if err != nil {
		return err
	}
	for _, id := range unknown {
		name := store.CommitName(id)
		data, err := s.Get(ctx, name, pack.MaxBytes)
		if err != nil {
			return err
		}
		err = pack.Verify(data, name, r.ID, seal.Signer(r.Signer))
		if err == nil {
			return fmt.Errorf("%w: the store has a record of snapshot %s, which the index does not know. bctl index rebuild restores the index from the newest copy in the store", ErrIndexOld, id.Short())
		}
		if !errors.Is(err, backup.ErrCorrupt) {
			return err
		}
	}
	return nil
}

// ErrIndexOld: the index is older than its store, or has diverged from it. Writing to it would
// increase the divergence.
var ErrIndexOld = errors.New("the index is older than its store")
