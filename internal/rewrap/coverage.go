package rewrap

import (
	"context"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A Coverage is a complete rotation.
type Coverage struct {
	Recipients []string
	Began      time.Time // when its first part was put: it has the keys of all packs from before
}

// Coverages returns the complete rotations that the object's signer has signed, newest first. It
// needs no identity, and reads the first and the last part of each.
func Coverages(ctx context.Context, s store.Store, o *repo.Object) ([]Coverage, error) {
	f := newFinder(s, o.ID, o.Signer(), nil)
	if err := f.list(ctx); err != nil {
		return nil, err
	}
	var found []Coverage
	for _, r := range f.rotations {
		first, err := f.read(ctx, store.WrapsName(r.number, r.firsts[0]))
		if err != nil {
			return nil, err
		}
		last, err := f.read(ctx, store.WrapsName(r.number, r.firsts[len(r.firsts)-1]))
		if err != nil {
			return nil, err
		}
		complete := first.err == nil && last.err == nil && first.first == (seal.KeyID{}) && last.last == lastID
		if complete && slices.Equal(first.recipients, last.recipients) {
			found = append(found, Coverage{Recipients: first.recipients, Began: first.made})
		}
	}
	return found, nil
}
