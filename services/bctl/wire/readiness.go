package wire

import (
	"context"
	"sync/atomic"
	"time"
)

// readyEvery is how often a worker looks whether it is ready. It takes no work while it is not.
const readyEvery = 2 * time.Second

// A readiness is whether a worker is ready, as it last looked.
type readiness struct{ why atomic.Pointer[error] }

// mayTake returns why no work is to be taken; nil: it is.
func (r *readiness) mayTake() error {
	if why := r.why.Load(); why != nil {
		return *why
	}
	return nil
}

// look looks whether the worker is ready until ctx is done.
func (r *readiness) look(ctx context.Context, w *watched) {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		err := w.health.Ready(ctx)
		before := r.mayTake()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && before == nil:
			w.log.Warn("not ready; no work is taken", "error", err)
		case err == nil && before != nil:
			w.log.Info("ready again")
		}
		if err == nil {
			r.why.Store(nil)
		} else {
			r.why.Store(&err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
