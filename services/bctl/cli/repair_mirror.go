package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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

// putBack puts damaged objects back into the store, and returns their names and the number of
// their bytes.
func (m *mirrorSource) putBack(ctx context.Context, r *repository, findings []*check.Finding) (names []string, bytes int64, err error) {
	tried := map[string]bool{}
	for _, f := range findings {
		if f.Object == "" || tried[f.Object] {
			continue
		}
		tried[f.Object] = true
		done, err := m.PutBack(ctx, r.store, f.Object)
		if err != nil {
			return names, bytes, mayPutBack(err)
		}
		if !done {
			continue
		}
		names, bytes = append(names, f.Object), bytes+m.Bytes(f.Object)
		if err := forgottenMeanwhile(ctx, r, f.Object); err != nil {
			return names, bytes, err
		}
	}
	return names, bytes, nil
}

// mayPutBack says what to do if the store does not let an object be put back.
func mayPutBack(err error) error {
	if of, ok := errors.AsType[*store.Error](err); ok && errors.Is(err, fs.ErrPermission) && (of.Op == "put" || of.Op == "delete") {
		return fmt.Errorf("%w: to put objects back, use a key of the store that may put all objects, and delete damaged ones. In a fleet, no role has such a key: use that of the store's administrator (store.credentials_file)", err)
	}
	return err
}

// forgottenMeanwhile deletes a record that was put back, if a pruner has removed its snapshot since
// the check: a record of an unknown snapshot would mean that the index is old.
func forgottenMeanwhile(ctx context.Context, r *repository, name string) error {
	id, _, is := store.ParseCommitName(name)
	if !is {
		return nil
	}
	_, err := r.index.Snapshot(ctx, id)
	if errors.Is(err, backup.ErrNotFound) {
		return r.store.Delete(ctx, name)
	}
	return err
}

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
