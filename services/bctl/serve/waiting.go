package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/process/clock"
	"github.com/bctl/bctl/services/bctl/open"
)

// A waiting is a service that has just started and lacks a dependency. Its repository may not be
// known yet, so it has no connection of its own; until end, it uses another one to announce that it
// waits, so that operators can see it.
type waiting struct {
	c    *config.Config
	m    *monitoring
	role flow.Role
	// beside: the service works without NATS, and only announces itself there.
	beside bool
	clock  *clock.Watch // nil: it works with any clock

	mu   sync.Mutex
	why  string
	stop func() // nil: nothing is announced
	over bool   // the service has what it needs
}

// theStore names the store in the announcement of a service that waits for it.
const theStore = "the store"

// say announces what the service waits for, also at /readyz.
func (w *waiting) say(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.why = fmt.Sprintf("waits for %s: %v", what, err)
	if off := w.clockOff(); off != nil {
		w.why = fmt.Sprintf("%s: %v\n%s", needClock, off, w.why)
	}
	need := needIndex // of which the repository is a part
	if what == theStore {
		need = needStore
	}
	w.m.health.Depends(need, func(context.Context) error { return err })
	if w.stop != nil || !w.c.Fleet() {
		return
	}
	conn, err := open.ServiceNATS(w.c, workerName(w.c), backup.RepositoryID{}, w.m.log, nil, nil, nil)
	if err != nil {
		if !w.beside {
			w.m.health.Depends(needNATS, func(context.Context) error { return err })
		}
		return // logged when the service itself connects
	}
	if !w.beside {
		w.m.health.Depends(needNATS, func(context.Context) error { return conn.Ready() })
	}
	a := announce(w.c, w.m, conn, nil, newReadiness(w.m.log, false), w.role)
	describe := func() flow.Instance {
		w.mu.Lock()
		defer w.mu.Unlock()
		i := a.instance
		i.Reason = w.why
		return i
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		conn.Announce(ctx, flow.Announcement{Describe: describe})
	}()
	w.stop = func() { cancel(); <-ended; conn.Close() }
}

// clockOff returns how far the clock is off: a store refuses the requests of a service whose clock
// is wrong, and does not say that this is why. nil: it is right, or not known.
func (w *waiting) clockOff() error {
	ctx, cancel := context.WithTimeout(context.Background(), clockWithin)
	defer cancel()
	if err := w.clock.Check(ctx); errors.Is(err, clock.ErrOff) {
		return err
	}
	return nil
}

// end ends the announcement, because the service has what it needs or ends. It may be called again.
func (w *waiting) end() {
	w.mu.Lock()
	stop := w.stop
	w.stop, w.over = nil, true
	w.mu.Unlock()
	if stop != nil {
		stop()
	}
}
