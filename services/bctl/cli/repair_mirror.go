package cli

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

// A mirrorSource is the mirror from which a repair puts objects back.
type mirrorSource struct {
	*mirror.Source
	store store.Store
}

// mirrorSource opens the mirror of a repository.
func (a *app) mirrorSource(ctx context.Context, r *repository) (*mirrorSource, error) {
	of, err := r.index.Repository(ctx)
	if err != nil {
		return nil, err
	}
	return a.mirrorOf(ctx, &of)
}

func (a *app) mirrorOf(ctx context.Context, of *backup.Repository) (*mirrorSource, error) {
	s, err := open.Mirror(ctx, a.cfg, false, a.log)
	if err != nil {
		return nil, wrongSetting(err)
	}
	source, err := mirror.NewSource(ctx, s, of.ID, of.Signer)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &mirrorSource{source, s}, nil
}

func (m *mirrorSource) close() { _ = m.store.Close() } // it was only read

// putBackObject puts the repository object back, without which no command works.
func (c *repairCommand) putBackObject(ctx context.Context, dryRun bool) error {
	a := c.app
	if a.cfg.Mirror.URL == "" || dryRun {
		return nil
	}
	s, err := open.Store(ctx, a.cfg, false, a.log)
	if err != nil {
		return wrongSetting(err)
	}
	defer s.Close()
	_, err = repo.ReadObject(ctx, s)
	if !errors.Is(err, backup.ErrNoRepository) && !errors.Is(err, backup.ErrCorrupt) {
		return err
	}
	i, err := a.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	of, err := i.Repository(ctx)
	if err != nil {
		return err
	}
	m, err := a.mirrorOf(ctx, &of)
	if err != nil {
		return err
	}
	defer m.close()
	done, err := m.PutBack(ctx, s, store.ConfigName)
	if err == nil && done {
		a.note("put back the object %q from the mirror", store.ConfigName)
	}
	return err
}

// noteMirror says how much of what is damaged the mirror has.
func (c *checkCommand) noteMirror(ctx context.Context, r *repository, found *check.Report) error {
	if c.app.cfg.Mirror.URL == "" || len(found.Findings) == 0 {
		return nil
	}
	m, err := c.app.mirrorSource(ctx, r)
	if mirror.IsAway(err) {
		c.app.note("the mirror cannot be read: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer m.close()
	has, objects := map[string]bool{}, map[string]bool{}
	for _, f := range found.Findings {
		if f.Object != "" {
			objects[f.Object] = true
			if m.Has(f.Object) {
				has[f.Object] = true
			}
		}
	}
	if len(objects) == 0 { // only the index is damaged
		return nil
	}
	c.app.note("the mirror has %d of %s: bctl repair puts back those that are whole there", len(has), counted(len(objects), "damaged object"))
	return nil
}
