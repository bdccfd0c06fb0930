package rebuild

import (
	"context"
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
	for id, objects := range stored {
		g, err := r.describe(ctx, id, objects)
		switch {
		case err != nil && !usable(err):
			return err
		case err == nil:
			groups = append(groups, index.ParityGroup{ID: id, State: index.ParityValid, Description: g.Describe(0), Bytes: int64(len(g.Bodies)) * g.ObjectBytes()})
		case known[id].State == index.ParityValid:
			groups = append(groups, known[id])
		default:
			r.damaged(objects[0].Name, err)
		}
	}
	return r.Index.RecoverParity(ctx, groups)
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
