package serve

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/process/clock"
	"github.com/bctl/bctl/internal/telemetry"
)

const (
	// clockEvery is the interval at which a service compares its clock with that of the database.
	clockEvery = 30 * time.Second
	// clockWithin is how long the database may take to respond.
	clockWithin = 3 * time.Second
)

// An announced service publishes the data that bctl worker ls shows.
type announced struct {
	m        *monitoring
	conn     *flow.Conn
	index    index.Index
	instance flow.Instance // the constant part
	ready    *readiness
	changed  chan struct{}
	also     func(*flow.Instance) // adds further data
	drain    func(undo bool, by string)
	sealsTo  []string     // recipients; nil: it seals nothing
	seals    *slog.Logger // a pair of lines

	mu    sync.Mutex
	known bool // the difference of the clock is known
	ahead time.Duration
	stale bool // sealsTo are not the recipients in force
}

// announce returns the announcement of a service; run publishes it.
func announce(c *config.Config, m *monitoring, conn *flow.Conn, idx index.Index, ready *readiness, role flow.Role) *announced {
	i := flow.Instance{Role: role, Name: workerName(c), Version: process.Version(), Started: m.started}
	if i.Worker() {
		i.Site = backup.SiteName(c.Worker.Site)
	}
	return &announced{m: m, conn: conn, index: idx, instance: i, ready: ready, changed: ready.changed, seals: telemetry.Pair(m.log)}
}

// run publishes the announcement until ctx is done.
func (a *announced) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { a.ready.look(ctx, a.m) })
	parts.Go(func() { a.compareClocks(ctx) })
	parts.Go(func() {
		a.conn.Announce(ctx, flow.Announcement{Describe: a.describe, Changed: a.changed, Drain: a.drain})
	})
	parts.Wait()
}

func (a *announced) describe() flow.Instance {
	i := a.instance
	err := a.ready.mayTake()
	if i.Ready = err == nil; !i.Ready {
		i.Reason = err.Error()
	}
	a.mu.Lock()
	i.ClockKnown, i.ClockAhead, i.OtherRecipients = a.known, a.ahead, a.stale
	a.mu.Unlock()
	a.also(&i)
	return i
}

func (a *announced) compareClocks(ctx context.Context) {
	a.compareWithIndex(ctx)
	loop.Every(ctx, clockEvery, func() { a.compareWithIndex(ctx) })
}

func (a *announced) compareWithIndex(ctx context.Context) {
	a.compareClock(ctx)
	if a.sealsTo != nil {
		a.compareRecipients(ctx)
	}
}

// compareRecipients finds out whether bctl key has changed the recipients since this service has
// read them. The index only says so: a service never seals to what the index names.
func (a *announced) compareRecipients(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, clockWithin)
	defer cancel()
	r, err := a.index.Repository(asking)
	if err != nil {
		return // readiness reports an index that does not answer
	}
	stale := !sameRecipients(r.Recipients, a.sealsTo)
	a.mu.Lock()
	changed := stale != a.stale
	a.stale = stale
	a.mu.Unlock()
	if !changed {
		return
	}
	loop.Wake(a.changed)
	if stale {
		a.seals.Warn("this service seals to other recipients than those in force: give it the present worker key, then restart it")
	} else {
		a.seals.Info("this service seals to the recipients in force again")
	}
}

// sameRecipients ignores the order.
func sameRecipients(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (a *announced) compareClock(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, clockWithin)
	defer cancel()
	ahead, _, err := clock.Ahead(asking, a.index, time.Now)
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known = err == nil; a.known {
		a.ahead = ahead
	}
}
