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

// lead calls do as the leading pruner. It fails with ErrBusy if another process leads.
func (p *pass) lead(ctx context.Context, do func(context.Context) error) error {
	return Lead(ctx, p.Index, p.Holder, func(ctx context.Context, t index.Term) error {
		p.term = t
		return do(ctx)
	})
}

// Lead calls do as the leading pruner: until do returns, no other process deletes anything. holder
// is a name that no other process has. It fails with ErrBusy if another process leads. If the term
// is lost meanwhile, the context of do ends, and the error is index.ErrNotLeading.
func Lead(ctx context.Context, i index.Leading, holder string, do func(context.Context, index.Term) error) error {
	t, ok, err := i.Lead(ctx, Role, holder, term)
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	renewing := renew(leading, end, i, holder, t)
	err = do(leading, t)
	end(nil)
	renewing()
	if cause := context.Cause(leading); err != nil && ctx.Err() == nil && errors.Is(cause, index.ErrNotLeading) {
		err = cause
	}
	return errors.Join(err, i.Resign(context.WithoutCancel(ctx), t))
}

// renew renews a term until ctx is done. It ends ctx if the term is lost. wait returns when the
// renewing has ended.
func renew(ctx context.Context, end context.CancelCauseFunc, i index.Leading, holder string, held index.Term) (wait func()) {
	done := make(chan struct{})
	var renewed atomic.Int64
	renewed.Store(time.Now().UnixNano())
	go func() {
		defer close(done)
		loop.Every(ctx, renewTerm, func() {
			t, ok, err := i.Lead(ctx, Role, holder, term)
			switch {
			case err == nil && ok && t.Epoch == held.Epoch:
				renewed.Store(time.Now().UnixNano())
			case err == nil && ok: // a new term: this process was paused for longer than its own
				end(fmt.Errorf("the pruner's term ended: %w", errors.Join(index.ErrNotLeading, i.Resign(context.WithoutCancel(ctx), t))))
			case err == nil || time.Since(time.Unix(0, renewed.Load())) > term:
				end(fmt.Errorf("the pruner's term ended: %w", index.ErrNotLeading))
			}
		})
	}()
	return func() { <-done }
}
