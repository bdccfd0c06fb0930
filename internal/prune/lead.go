package prune

import (
	"context"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/leading"
)

// Lead calls do as the leading pruner: no other process prunes or sweeps meanwhile. It fails with
// ErrBusy if another process leads. Only Index and Holder of the options are used.
func Lead(ctx context.Context, o Options, do func(ctx context.Context, t index.Term) error) error {
	p := &pass{Options: o}
	return p.lead(ctx, func(ctx context.Context) error { return do(ctx, p.term) })
}

// lead calls do as the leading pruner. It fails with ErrBusy if another process leads.
func (p *pass) lead(ctx context.Context, do func(context.Context) error) error {
	led, err := leading.Lead(ctx, p.Index, Role, p.Holder, func(ctx context.Context, t index.Term) error {
		p.term = t
		return do(ctx)
	})
	if err == nil && !led {
		return ErrBusy
	}
	return err
}
