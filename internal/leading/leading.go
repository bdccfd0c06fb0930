// Package leading keeps a term of the index for as long as a run lasts that only one process may
// make at a time: a prune, or a scrub.
package leading

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
)

// A term is short, because the next leader waits for its end if a process is killed.
const (
	term  = time.Minute
	renew = term / 4
)

// Lead calls do as the leader of role, and renews the term until do returns. holder is a name that
// no other process has. The context of do ends if the term does; the error then wraps
// index.ErrNotLeading. led is false, without an error, if another process leads.
func Lead(ctx context.Context, idx index.Leading, role, holder string, do func(context.Context, index.Term) error) (led bool, err error) {
	t, ok, err := idx.Lead(ctx, role, holder, term)
	if err != nil || !ok {
		return false, err
	}
	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	renewing := keep(leading, idx, holder, t, end)
	err = do(leading, t)
	end(nil)
	renewing()
	if cause := context.Cause(leading); err != nil && ctx.Err() == nil && errors.Is(cause, index.ErrNotLeading) {
		err = cause
	}
	return true, errors.Join(err, idx.Resign(context.WithoutCancel(ctx), t))
}

// keep renews a term until ctx is done. It ends ctx if the term is lost. wait returns when the
// renewing has ended.
func keep(ctx context.Context, idx index.Leading, holder string, of index.Term, end context.CancelCauseFunc) (wait func()) {
	done := make(chan struct{})
	var renewed atomic.Int64
	renewed.Store(time.Now().UnixNano())
	go func() {
		defer close(done)
		loop.Every(ctx, renew, func() {
			t, ok, err := idx.Lead(ctx, of.Role, holder, term)
			switch {
			case err == nil && ok && t.Epoch == of.Epoch:
				renewed.Store(time.Now().UnixNano())
			case err == nil && ok: // a new term: this process was paused for longer than its own
				end(fmt.Errorf("the %s's term ended: %w", of.Role, errors.Join(index.ErrNotLeading, idx.Resign(context.WithoutCancel(ctx), t))))
			case err == nil || time.Since(time.Unix(0, renewed.Load())) > term:
				end(fmt.Errorf("the %s's term ended: %w", of.Role, index.ErrNotLeading))
			}
		})
	}()
	return func() { <-done }
}
