package serve

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/telemetry"
)

// readyEvery is the interval at which a service checks whether it is ready, and againEvery while it
// is not: then it takes no work.
const (
	readyEvery = 2 * time.Second
	againEvery = readyEvery / 4
)

// A readiness holds the result of a service's last readiness check.
type readiness struct {
	why     atomic.Pointer[error]
	log     *slog.Logger  // a pair of lines
	takes   bool          // takes work if it is ready
	changed chan struct{} // signals that the result has changed
}

func newReadiness(log *slog.Logger, takesWork bool) *readiness {
	return &readiness{log: telemetry.Pair(log), takes: takesWork, changed: make(chan struct{}, 1)}
}

// mayTake returns the reason why no work may be taken; nil if it may.
func (r *readiness) mayTake() error {
	if why := r.why.Load(); why != nil {
		return *why
	}
	return nil
}

// mayApply is mayTake for the results that a committer takes: it needs only the index for them.
func (r *readiness) mayApply() error {
	if err := r.mayTake(); errors.Is(err, backup.IndexAway) {
		return err
	}
	return nil
}

// look checks periodically whether the service is ready, until ctx is done.
func (r *readiness) look(ctx context.Context, m *monitoring) {
	for ctx.Err() == nil {
		r.lookOnce(ctx, m)
		if r.mayTake() != nil {
			loop.Pause(ctx, againEvery)
		} else {
			loop.Pause(ctx, readyEvery)
		}
	}
}

func (r *readiness) lookOnce(ctx context.Context, m *monitoring) {
	err := m.health.Ready(ctx)
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
		r.say(err)
	}
	if errors.Is(err, backup.IndexAway) {
		// While the server hangs, all other requests wait: none fails, and none reports the outage.
		m.log.Warn("checking the index failed, will retry", "error", err)
	}
}

func (r *readiness) say(err error) {
	loop.Wake(r.changed)
	switch {
	case !r.takes, errors.Is(err, health.ErrStopping): // which the log says already
	case err != nil:
		r.log.Warn("not ready: this worker takes no new work", "error", err)
	default:
		r.log.Info("ready again: this worker takes new work")
	}
}
