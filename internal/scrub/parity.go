package scrub

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
)

// proveParity proves the parity objects of the groups that are due; with Failed, of those with
// damage.
func (r *run) proveParity(ctx context.Context, state *index.Scrub) error {
	due, err := r.Index.ParityToProve(ctx, r.before(state))
	if err != nil {
		return err
	}
	for i := range due {
		p := &due[i]
		if r.Failed && !p.Suspect {
			continue
		}
		if p.Begun.IsZero() {
			p.Begun, p.Reached, p.Damaged, p.Damage = state.Now, 0, 0, ""
		}
		if more, err := r.part(r.group(ctx, state, p)); err != nil || !more {
			return err
		}
	}
	return nil
}

// group proves the parity objects of a group, from where the last run ended.
func (r *run) group(ctx context.Context, state *index.Scrub, p *index.ParityToProve) (err error) {
	note := index.ScrubCost{}
	defer func() {
		err = noted(err, r.Index.NoteParity(context.WithoutCancel(ctx), r.term, p, note))
	}()
	g, _, err := parity.Parse(p.Description)
	if err != nil || g.ID != p.ID || g.Repository != r.Repository {
		p.Done = true // without its row, nothing is known of the objects
		return r.damagedParity(ctx, p, "", "the row of parity group "+p.ID.String()+" is damaged")
	}
	for ; p.Reached < len(g.Bodies); p.Reached++ {
		requests, bytes := g.CheckCost(p.Reached)
		if !r.spend(state, index.ScrubCost{Requests: int64(requests), Bytes: bytes}, &note) {
			return errLimited
		}
		name := g.Name(p.Reached)
		err := g.Check(ctx, r.Store, name)
		switch {
		case errors.Is(err, backup.ErrNotFound):
			err = r.damagedParity(ctx, p, name, "it is missing")
		case errors.Is(err, backup.ErrCorrupt):
			err = r.damagedParity(ctx, p, name, err.Error())
		}
		if err != nil {
			return err
		}
		r.summary.Parity++
		if r.Progress != nil {
			r.Progress(r.summary)
		}
	}
	p.Done = true
	return nil
}

// damagedParity notes a damaged parity object, or a damaged row, unless a pruner has replaced the
// group meanwhile.
func (r *run) damagedParity(ctx context.Context, p *index.ParityToProve, object, text string) error {
	for g, err := range r.Index.ParityGroups(ctx) {
		if err != nil {
			return err
		}
		if g.ID != p.ID || g.State != index.ParityValid {
			continue
		}
		if p.Damaged++; p.Damaged == 1 {
			p.Damage = text
			if object != "" {
				p.Damage = object + ": " + text
			}
		}
		r.summary.DamagedParity++
		r.Log.Error("a parity object is damaged or missing: bctl repair puts it back", "object", object, "group", p.ID.String(), "error", text)
		if r.Damaged != nil {
			r.Damaged(&check.Finding{Kind: check.Parity, Object: object, Text: text})
		}
		return nil
	}
	return nil
}
