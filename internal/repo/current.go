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

// A History is an index that can tell whether it is older than its store.
type History interface {
	// Unknown returns those of the snapshots that the index has never heard of.
	Unknown(ctx context.Context, ids []backup.SnapshotID) ([]backup.SnapshotID, error)
}

// Unknown returns the snapshots that the store has a record of, and the index
// does not know. The records may be anybody's: nothing of them was read.
//
// The store is read before the index: what another process commits meanwhile is known.
func Unknown(ctx context.Context, s store.Store, i History) ([]backup.SnapshotID, error) {
	var recorded []backup.SnapshotID
	for o, err := range s.List(ctx, store.CommitsPrefix) {
		if err != nil {
			return nil, err
		}
		if id, err := backup.ParseSnapshotID(strings.TrimPrefix(o.Name, store.CommitsPrefix)); err == nil {
			recorded = append(recorded, id)
		}
	}
	return i.Unknown(ctx, recorded)
}

// CheckCurrent returns an error that wraps ErrIndexOld where the store has a
// record of a snapshot that the index does not know (I16). A record is written
// after the index knows how its snapshot ended, so the index is older than the
// store, or was parted from the one that the store has been written with. Records
// that the repository's signer has not signed do not count (I17).
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
			return fmt.Errorf("%w: the store has a record of snapshot %s, which the index does not know. bctl index rebuild makes the index again from the newest copy in the store", ErrIndexOld, id.Short())
		}
		if !errors.Is(err, backup.ErrCorrupt) {
			return err
		}
	}
	return nil
}

// ErrIndexOld: the index is older than its store, or parted from it. Whatever
// is written to it would part them further.
var ErrIndexOld = errors.New("the index is older than its store")
