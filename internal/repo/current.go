package repo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A History is an index that can report whether it is older than its store.
type History interface {
	// Unknown returns the given snapshots of which the index has no record.
	Unknown(ctx context.Context, ids []backup.SnapshotID) ([]backup.SnapshotID, error)
	// Amendments is as in index.Purging.
	Amendments(ctx context.Context) (map[backup.SnapshotID]int, error)
	// NewestCopy returns the largest sequence of the copies of the index that it has begun, and 0
	// if it has begun none.
	NewestCopy(ctx context.Context) (int64, error)
}

// Recorded returns the snapshots that have a record in the store, with the sequence of the newest
// one: that of a record that was never amended is 0. The records are not authenticated, because
// they are not read.
func Recorded(ctx context.Context, s store.Store) (map[backup.SnapshotID]int, error) {
	all, err := Sequences(ctx, s)
	recorded := make(map[backup.SnapshotID]int, len(all))
	for id, sequences := range all {
		recorded[id] = sequences[len(sequences)-1]
	}
	return recorded, err
}

// Sequences is Recorded with the sequences of all records of a snapshot, in ascending order.
func Sequences(ctx context.Context, s store.Store) (map[backup.SnapshotID][]int, error) {
	all := map[backup.SnapshotID][]int{}
	for o, err := range store.Records(ctx, s) {
		if err != nil {
			return nil, err
		}
		if id, amendment, ok := store.ParseCommitName(o.Name); ok {
			all[id] = append(all[id], amendment)
		}
	}
	for id := range all {
		slices.Sort(all[id])
	}
	return all, nil
}

// Unknown returns the snapshots that have a record in the store but are not in the index, with the
// sequence of the newest record of each.
//
// The store is read before the index, so that a snapshot that another process commits meanwhile is
// known.
func Unknown(ctx context.Context, s store.Store, i History) (map[backup.SnapshotID]int, error) {
	recorded, err := Recorded(ctx, s)
	if err != nil {
		return nil, err
	}
	return unknown(ctx, i, recorded)
}

func unknown(ctx context.Context, i History, recorded map[backup.SnapshotID]int) (map[backup.SnapshotID]int, error) {
	ids, err := i.Unknown(ctx, slices.Collect(maps.Keys(recorded)))
	if err != nil {
		return nil, err
	}
	found := make(map[backup.SnapshotID]int, len(ids))
	for _, id := range ids {
		found[id] = recorded[id]
	}
	return found, nil
}

// Amended returns the snapshots whose newest record in the store is an amendment that the index
// does not know: a purge has removed something of them that the index still has.
func Amended(ctx context.Context, s store.Store, i History) (map[backup.SnapshotID]int, error) {
	recorded, err := Recorded(ctx, s)
	if err != nil {
		return nil, err
	}
	return amended(ctx, i, recorded)
}

func amended(ctx context.Context, i History, recorded map[backup.SnapshotID]int) (map[backup.SnapshotID]int, error) {
	known, err := i.Amendments(ctx)
	if err != nil {
		return nil, err
	}
	lost, err := unknown(ctx, i, recorded)
	if err != nil {
		return nil, err
	}
	found := map[backup.SnapshotID]int{}
	for id, amendment := range recorded {
		if _, ok := lost[id]; !ok && known[id] >= 0 && amendment > known[id] {
			found[id] = amendment
		}
	}
	return found, nil
}

// Newer returns the copies of the index in the store that are newer than all copies that this index
// has made: the names of their first parts, with their sequences. They are not authenticated. A
// prune deletes nothing before the store has such a copy. So without any new snapshot, they show
// that the index does not know where packs are now.
//
// The store is read before the index, so that a copy that another process makes meanwhile is known.
func Newer(ctx context.Context, s store.Store, i History) (map[string]int64, error) {
	newer := map[string]int64{}
	for o, err := range s.List(ctx, store.IndexPrefix) {
		if err != nil {
			return nil, err
		}
		if sequence, part, ok := store.ParseIndexName(o.Name); ok && part == 0 {
			newer[o.Name] = sequence
		}
	}
	own, err := i.NewestCopy(ctx)
	if err != nil || own == 0 { // 0: of an earlier version, which did not note its copies
		return nil, err
	}
	maps.DeleteFunc(newer, func(_ string, sequence int64) bool { return sequence <= own })
	return newer, nil
}

// Copies returns the sequences of the parts of copies of the index that the store has, in ascending
// order.
func Copies(ctx context.Context, s store.Store) ([]int64, error) {
	return sequences(ctx, s, store.IndexPrefix, func(name string) (int64, bool) {
		sequence, _, ok := store.ParseIndexName(name)
		return sequence, ok
	})
}

// checkCopies is CheckCurrent for the copies of the index.
func checkCopies(ctx context.Context, s store.Store, i History, r *backup.Repository) error {
	newer, err := Newer(ctx, s, i)
	if err != nil {
		return err
	}
	for name, sequence := range newer {
		signed, err := isSigned(ctx, s, name, r)
		if errors.Is(err, backup.ErrNotFound) { // a newer one has replaced it
			continue
		}
		if err != nil {
			return err
		}
		if signed {
			return fmt.Errorf("%w: the store has a copy of the index of %s, which the index has not made. %s",
				ErrIndexOld, time.UnixMilli(sequence).UTC().Format(time.RFC3339), restores)
		}
	}
	return nil
}

// restores is what to do about an index that is older than its store.
const restores = "bctl index rebuild brings it up to date"

// CheckCurrent returns an error that wraps ErrIndexOld if the store has a record of a snapshot that
// the index does not know, or a newer copy of the index than any that the index has made (I16). A
// record is written only after the index has recorded how its snapshot ended, and a copy only after
// the index has noted it. So the index is older than the store, or has diverged from the index with
// which the store was written. Objects that the repository's signer has not signed are ignored
// (I17).
func CheckCurrent(ctx context.Context, s store.Store, i History, r *backup.Repository) error {
	recorded, err := Recorded(ctx, s)
	if err != nil {
		return err
	}
	lost, err := unknown(ctx, i, recorded)
	if err != nil {
		return err
	}
	newer, err := amended(ctx, i, recorded)
	if err != nil {
		return err
	}
	for _, check := range []struct {
		records map[backup.SnapshotID]int
		why     string
	}{
		{lost, "the store has a record of snapshot %s, which the index does not know"},
		{newer, "a purge has amended the record of snapshot %s, and the index does not know it"},
	} {
		for id, amendment := range check.records {
			signed, err := isSigned(ctx, s, store.AmendedName(id, amendment), r)
			if err != nil {
				return err
			}
			if signed {
				return fmt.Errorf("%w: "+check.why+". %s", ErrIndexOld, id.Short(), restores)
			}
		}
	}
	return checkCopies(ctx, s, i, r)
}

// isSigned reports whether the repository's signer has signed an object. Bytes that are damaged are
// not signed, whether the signature shows it or already the store, by its checksum.
func isSigned(ctx context.Context, s store.Store, name string, r *backup.Repository) (bool, error) {
	data, err := s.Get(ctx, name, pack.MaxBytes)
	if err == nil {
		err = pack.Verify(data, name, r.ID, seal.Signer(r.Signer))
	}
	if errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrInvalid) { // or too large
		return false, nil
	}
	return err == nil, err
}

// ErrIndexOld: the index is older than its store, or has diverged from it. Writing to it would
// increase the divergence.
var ErrIndexOld = errors.New("the index is older than its store")
