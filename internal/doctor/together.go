package doctor

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
)

// Checks that the index and the store exist together, and belong to the same repository.

const (
	rebuildAdvice = "put the file back, or run bctl index rebuild, which recreates the index from its copy in the store"
	damagedAdvice = "bctl index rebuild recreates it from its copy in the store"
)

// indexed returns the repository of the index; false if it is not known.
func (p *Parts) indexed(ctx context.Context) (backup.RepositoryID, bool) {
	if p.Config.Index.URL == "" {
		return backup.RepositoryID{}, false
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return backup.RepositoryID{}, false
	}
	defer i.Close()
	r, err := i.Repository(ctx)
	return r.ID, err == nil
}

// sameRepository compares the repository in the store with that of the index, if it is known.
func (p *Parts) sameRepository(ctx context.Context, stored backup.RepositoryID, good string) Finding {
	if id, known := p.indexed(ctx); known && id != stored {
		return fail("set the index and the store of the same repository (--repo, or index.url and store.url)",
			"index and store belong to different repositories: the store holds %v, and the index is of %v", stored, id)
	}
	return ok("%s", good)
}

// indexIsLost reports whether the store holds backups, so that a missing index is a lost one.
func (p *Parts) indexIsLost(ctx context.Context) bool {
	if p.Config.Store.URL == "" {
		return false
	}
	s, err := p.OpenStore(ctx)
	if err != nil {
		return false
	}
	defer s.Close()
	return errors.Is(repo.LostIndex(ctx, s), repo.ErrIndexLost)
}
