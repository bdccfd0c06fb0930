package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/services/bctl/open"
)

// A mirroring makes one pass after another.
type mirroring struct {
	*monitoring
	c       *config.Config
	o       mirror.Options
	measure *telemetry.Mirror
	retries *telemetry.Retries

	mu  sync.Mutex
	why error // why the stores are not known to answer; nil: they do
}

// Mirror makes one pass of a mirror after another, until ctx is done. It needs the two stores, and
// neither NATS, nor the index, nor a key. o are the options of each pass, without the stores.
func Mirror(ctx context.Context, c *config.Config, log *slog.Logger, o mirror.Options) error {
	if c.Mirror.URL == "" {
		return fmt.Errorf("no mirror is named (mirror.url): %w", backup.ErrInvalid)
	}
	m, err := monitor(ctx, c, "mirror", log, needStore)
	if err != nil {
		return err
	}
	defer m.close()
	w := &mirroring{monitoring: m, c: c, o: o, measure: m.metrics.Mirror(), retries: m.metrics.Retries("mirror"), why: errNotReached}
	w.health.Depends(needStore, func(context.Context) error { return w.failed() })
	w.log.Info("mirror started")
	for ctx.Err() == nil {
		err := w.pass(ctx)
		if ctx.Err() != nil {
			break
		}
		w.reached(err)
		loop.Pause(ctx, max(c.Mirror.Every, time.Second))
	}
	w.log.Info("mirror stopped")
	return nil
}

// errNotReached is why a mirror is not ready before its first pass has reached both stores.
var errNotReached = errors.New("the two stores have not answered yet")

// reached notes that both stores have answered, or why they have not.
func (w *mirroring) reached(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = err
}

func (w *mirroring) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// pass makes one pass. It opens the stores each time: either may have been away, or be new.
func (w *mirroring) pass(ctx context.Context) error {
	began := time.Now()
	from, to, err := open.MirrorPair(ctx, w.c, true, w.log, func(err *store.Error) { w.retries.Add(err.Err) })
	if err != nil {
		w.measure.Failed()
		w.log.Error("mirror cannot open a store, will retry", "error", err)
		return err
	}
	defer from.Close()
	defer to.Close() // everything that was put is durable
	o := w.o
	o.From, o.To, o.Reached = from, to, func() { w.reached(nil) }
	s, err := mirror.Run(ctx, o)
	w.measure.Copied(s.Copied, s.CopiedBytes, s.Deleted)
	stopped, braked := errors.AsType[*mirror.BrakeError](err)
	if err != nil && !braked {
		if ctx.Err() == nil {
			w.measure.Failed()
			w.log.Error("pass of the mirror failed, will retry", "error", err, "copied_objects", s.Copied, "copied_bytes", s.CopiedBytes)
		}
		return err
	}
	w.measure.Holds(s.Objects, s.Bytes, s.Retained, s.RetainedBytes, len(s.Problems)+s.MoreProblems)
	w.measure.Passed(began, time.Since(began))
	w.measure.Stopped(0)
	if braked {
		w.measure.Stopped(stopped.Bytes)
		w.log.Error("the brake of the mirror has stopped the deletions", "error", err)
	}
	for _, p := range s.Problems {
		w.log.Error("object is damaged", "side", string(p.Side), "object", p.Name, "error", p.Text)
	}
	w.log.Info("pass of the mirror is complete", "copied_objects", s.Copied, "copied_bytes", s.CopiedBytes, "objects", s.Objects, "bytes", s.Bytes,
		"gone_objects", s.Gone, "retained_objects", s.Retained, "deleted_objects", s.Deleted, "left_to_next_pass", s.Behind, "seconds", time.Since(began).Seconds())
	return nil
}
