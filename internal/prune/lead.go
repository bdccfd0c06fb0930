package prune

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
)

// Lead calls do as the leading pruner: no other process prunes or sweeps meanwhile. It fails with
// ErrBusy if another process leads. Only Index and Holder of the options are used.
func Lead(ctx context.Context, o Options, do func(ctx context.Context, t index.Term) error) error {
	p := &pass{Options: o}
	return p.lead(ctx, func(ctx context.Context) error { return do(ctx, p.term) })
}

// lead calls do as the leading pruner. It fails with ErrBusy if another process leads.
func (p *pass) lead(ctx context.Context, do func(context.Context) error) error {
	t, ok, err := p.Index.Lead(ctx, Role, p.Holder, term)
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	p.term = t
	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	renewing := p.renew(leading, end)
	err = do(leading)
	end(nil)
	renewing()
	if cause := context.Cause(leading); err != nil && ctx.Err() == nil && errors.Is(cause, index.ErrNotLeading) {
		err = cause
	}
	return errors.Join(err, p.Index.Resign(context.WithoutCancel(ctx), t))
}

// renew renews the term until ctx is done. It ends ctx if the term is lost. wait returns when the
// renewing has ended.
func (p *pass) renew(ctx context.Context, end context.CancelCauseFunc) (wait func()) {
	done := make(chan struct{})
	var renewed atomic.Int64
	renewed.Store(time.Now().UnixNano())
	go func() {
		defer close(done)
		loop.Every(ctx, renewTerm, func() {
			t, ok, err := p.Index.Lead(ctx, Role, p.Holder, term)
			switch {
			case err == nil && ok && t.Epoch == p.term.Epoch:
				renewed.Store(time.Now().UnixNano())
			case err == nil && ok: // a new term: this process was paused for longer than its own
				end(fmt.Errorf("the pruner's term ended: %w", errors.Join(index.ErrNotLeading, p.Index.Resign(context.WithoutCancel(ctx), t))))
			case err == nil || time.Since(time.Unix(0, renewed.Load())) > term:
				end(fmt.Errorf("the pruner's term ended: %w", index.ErrNotLeading))
			}
		})
	}()
	return func() { <-done }
}
