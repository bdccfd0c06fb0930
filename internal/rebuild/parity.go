package rebuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// recoverParity makes the parity groups of the index those of the store. Each parity object
// describes its group. If none of them can be read, what the index knows of the group stays.
func (r *rebuilding) recoverParity(ctx context.Context) error {
	stored := map[backup.PackID][]store.Object{}
	for o, err := range r.Store.List(ctx, store.ParityPrefix) {
		if err != nil {
			return err
		}
		if id, _, ok := store.ParseParityName(o.Name); ok {
			stored[id] = append(stored[id], o)
		}
	}
	known := map[backup.PackID]index.ParityGroup{}
	for g, err := range r.Index.ParityGroups(ctx) {
		if err != nil {
			return err
		}
		g.Description = slices.Clone(g.Description)
		known[g.ID] = g
	}
	if len(stored)+len(known) == 0 {
		return nil
	}
	var groups []index.ParityGroup
	var described []parity.Group
	for id, objects := range stored {
		g, err := r.describe(ctx, id, objects)
		switch {
		case err != nil && !usable(err):
			return err
		case err == nil:
			described = append(described, g)
			groups = append(groups, index.ParityGroup{ID: id, State: index.ParityValid, Description: g.Describe(0), Bytes: int64(len(g.Bodies)) * g.ObjectBytes()})
		case known[id].State == index.ParityValid:
			groups = append(groups, known[id])
		default:
			r.damaged(objects[0].Name, err)
		}
	}
	if err := r.Index.RecoverParity(ctx, groups); err != nil {
		return err
	}
	return r.putBack(ctx, described)
}

// putBack restores the members of groups that are missing, so that their packs are registered. If
// nothing needs them any more, a prune deletes them again.
func (r *rebuilding) putBack(ctx context.Context, groups []parity.Group) error {
	missing := map[string]bool{}
	for i := range groups {
		for m := range groups[i].Members {
			missing[groups[i].Members[m].Name()] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	for o, err := range r.Store.List(ctx, store.PacksPrefix) {
		if err != nil {
			return err
		}
		delete(missing, o.Name)
	}
	for i := range groups {
		if err := r.putBackGroup(ctx, &groups[i], missing); err != nil {
			return err
		}
	}
	for name, is := range missing {
		if is {
			r.damaged(name, fmt.Errorf("it is missing, and too much of its parity group is lost: %w", backup.ErrNotFound))
		}
	}
	return nil
}

// putBackGroup restores the missing members of a group.
func (r *rebuilding) putBackGroup(ctx context.Context, g *parity.Group, missing map[string]bool) error {
	lost := map[string]bool{}
	for _, name := range g.Names() {
		if missing[name] {
			lost[name] = true
		}
	}
	if len(lost) == 0 {
		return nil
	}
	restored, err := g.Restore(ctx, r.Store, lost)
	if err != nil {
		if usable(err) {
			return nil
		}
		return err
	}
	for name := range lost {
		err := r.Store.Put(ctx, name, restored[name])
		if errors.Is(err, fs.ErrPermission) {
			r.damaged(name, fmt.Errorf("it is missing, and parity has it: run bctl repair --from-parity with the configuration of the pruner, and then rebuild again: %w", err))
			missing[name] = false
			continue
		}
		if err != nil {
			return err
		}
		r.result.PutBack++
		delete(missing, name)
	}
	return nil
}

// describe reads the description of a group from one of its parity objects.
func (r *rebuilding) describe(ctx context.Context, id backup.PackID, objects []store.Object) (g parity.Group, err error) {
	slices.SortFunc(objects, func(a, b store.Object) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) })
	for _, o := range objects {
		var data []byte
		if data, err = r.Store.GetRange(ctx, nil, o.Name, 0, min(o.SizeBytes, parity.MaxDescriptionBytes)); err == nil {
			if g, _, err = parity.Parse(data); err == nil && (g.ID != id || g.Repository != r.Trust.Repository) {
				err = backup.ErrCorrupt
			}
		}
		if err == nil || !usable(err) {
			return g, err
		}
	}
	return g, err
}
