package wire

import (
	"context"
	"sync/atomic"
	"time"
)

// readyEvery is how often a worker looks whether it is ready. It takes no work while it is not.
const readyEvery = 2 * time.Second

// A readiness is whether a service is ready, as it last looked.
type readiness struct {
	why     atomic.Pointer[error]
	takes   bool          // work, which it does not while it is not ready
	changed chan struct{} // told when it is another than before
}

func newReadiness(takesWork bool) *readiness {
	return &readiness{takes: takesWork, changed: make(chan struct{}, 1)}
}

// mayTake returns why no work is to be taken; nil: it is.
func (r *readiness) mayTake() error {
	if why := r.why.Load(); why != nil {
		return *why
	}
	return nil
}

// look looks whether the service is ready until ctx is done.
func (r *readiness) look(ctx context.Context, w *watched) {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		err := w.health.Ready(ctx)
		before := r.mayTake()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			r.why.Store(nil)
		} else {
			r.why.Store(&err)
		}
		if (err == nil) != (before == nil) {
			r.say(w, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *readiness) say(w *watched, err error) {
	tell(r.changed)
	switch {
	case !r.takes:
	case err != nil:
		w.log.Warn("not ready; no work is taken", "error", err)
	default:
		w.log.Info("ready again")
	}
}

// tell tells a loop, which may have been told already.
func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
