package serve

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/telemetry"
)

// A draining stops a worker while its process continues: the worker finishes its work in progress
// as if it were stopped, and takes no more until an operator undoes that. The state ends with the
// process.
type draining struct {
	log     *slog.Logger
	metrics *telemetry.Draining
	told    chan struct{} // signals that wanted has changed
	changed chan struct{} // signals that either has changed

	mu      sync.Mutex
	wanted  bool
	drained bool                    // no work is in progress
	stop    context.CancelCauseFunc // stops the running work; nil: none is running
}

func newDraining(log *slog.Logger, metrics *telemetry.Draining, changed chan struct{}) *draining {
	return &draining{log: log, metrics: metrics, told: make(chan struct{}, 1), changed: changed}
}

// drain handles the request of an operator.
func (d *draining) drain(undo bool, by string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted == !undo {
		return // a repeated request
	}
	d.wanted = !undo
	d.metrics.Set(d.wanted)
	if d.wanted {
		d.log.Info("drain begun: this worker takes no new work", "by", by)
		if d.stop != nil {
			d.stop(flow.ErrDrained)
		}
	} else {
		d.log.Info("drain cancelled: this worker takes new work again", "by", by)
	}
	loop.Wake(d.told)
	loop.Wake(d.changed)
}

// run calls work until ctx is done, and again after each drain that was undone. It calls idle
// periodically while no work runs.
func (d *draining) run(ctx context.Context, work func(context.Context), idle func()) {
	for ctx.Err() == nil {
		if working, ok := d.begin(ctx); ok {
			work(working)
			d.end(ctx)
			continue
		}
		d.wait(ctx, idle)
	}
}

// begin returns the context for work that starts, or false if no work may start.
func (d *draining) begin(ctx context.Context) (working context.Context, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted {
		d.drained = true
		return nil, false
	}
	working, d.stop = context.WithCancelCause(ctx)
	d.drained = false
	return working, true
}

// end records that work has ended.
func (d *draining) end(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop(nil)
	d.stop = nil
	if d.wanted && ctx.Err() == nil {
		d.drained = true
		d.log.Info("drain complete: this worker has no work in progress and can be stopped")
	}
	loop.Wake(d.changed)
}

// idleEvery is the interval between calls of idle.
const idleEvery = time.Second

func (d *draining) wait(ctx context.Context, idle func()) {
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.told:
			return
		case <-tick.C:
			idle()
		}
	}
}

// describe sets whether the worker is drained.
func (d *draining) describe(i *flow.Instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i.Draining, i.Drained = d.wanted, d.wanted && d.drained
}
