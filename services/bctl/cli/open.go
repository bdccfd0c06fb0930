package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/wire"
)

// openIndex opens the index for a command that needs nothing else.
func (a *app) openIndex(ctx context.Context) (index.Index, error) {
	i, err := wire.OpenIndex(ctx, a.cfg, false)
	if err != nil {
		return nil, err
	}
	if err := i.CheckSchema(ctx); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// A repository is an index and a store that belong together.
type repository struct {
	index  index.Index
	store  store.Store
	object repo.Object
}

// close ends both. What they were asked to store is stored, or was reported:
// their errors of closing say nothing more.
func (r *repository) close() { _ = errors.Join(r.store.Close(), r.index.Close()) }

// openRepository opens both, and checks that they are the same repository's.
func (a *app) openRepository(ctx context.Context) (*repository, error) {
	i, err := a.openIndex(ctx)
	if err != nil {
		return nil, err
	}
	s, err := wire.OpenStore(ctx, a.cfg, false, a.log)
	if err != nil {
		i.Close()
		return nil, err
	}
	r := &repository{index: i, store: s}
	if r.object, err = repo.Check(ctx, s, i); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// openSealed returns what opens packs, and the key of the chunks' hashes.
func (a *app) openSealed(r *repository) (*seal.Opener, seal.DedupKey, error) {
	opener, path, err := repo.FindIdentity(a.cfg.Identity, r.object.ID)
	if err != nil {
		return nil, seal.DedupKey{}, err
	}
	key, err := r.object.WorkerKey(opener)
	if err != nil {
		return nil, seal.DedupKey{}, fmt.Errorf("identity %s: %w", path, err)
	}
	return opener, key.Dedup, nil
}
