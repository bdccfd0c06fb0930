// Package clock keeps a committer or a pruner from leading while its clock differs from that of the
// index. Times in the index are the database's own, so what such a service stores is harmless; but
// its certificates, logs and metrics are wrong, a store may refuse its requests, and a fleet is
// better led by a service with a correct clock.
package clock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

// MaxDifference is how far the clock of a service that leads may be from that of the index.
// Clocks synchronized by NTP differ by milliseconds.
const MaxDifference = 30 * time.Second

// ErrOff means that this machine's clock and that of the index differ by more than MaxDifference.
var ErrOff = errors.New("the clocks differ: let NTP keep those of both machines (chrony, systemd-timesyncd)")

// Ahead returns how far this machine's clock, now, is ahead of that of an index, and how long the
// index took to answer. The difference is exact to half of that time.
func Ahead(ctx context.Context, idx interface {
	Clock(context.Context) (time.Time, error)
}, now func() time.Time) (ahead, took time.Duration, err error) {
	sent := now()
	there, err := idx.Clock(ctx)
	if err != nil {
		return 0, 0, err
	}
	took = now().Sub(sent)
	return sent.Add(took / 2).Round(0).Sub(there), took, nil
}

// A Watch compares this machine's clock with that of an index. It may be used concurrently. A nil
// Watch finds that they agree.
type Watch struct {
	index   index.Index
	now     func() time.Time
	log     *slog.Logger
	metrics *telemetry.Clock

	mu  sync.Mutex
	off bool
}

// New returns a Watch; now is this machine's clock.
func New(idx index.Index, now func() time.Time, log *slog.Logger, metrics *telemetry.Clock) *Watch {
	return &Watch{index: idx, now: now, log: telemetry.Pair(log), metrics: metrics}
}

// Check compares the clocks, and fails with ErrOff if they differ too much.
func (w *Watch) Check(ctx context.Context) error {
	if w == nil {
		return nil
	}
	ahead, took, err := Ahead(ctx, w.index, w.now)
	if err != nil {
		return err
	}
	w.metrics.Ahead(ahead)
	// The index may have read its clock at any time in between.
	off := ahead.Abs()-took/2 > MaxDifference
	w.report(off, ahead)
	if !off {
		return nil
	}
	return fmt.Errorf("this machine's clock is %s, and this service does not lead: %w", text(ahead), ErrOff)
}

// report logs when the clock becomes wrong, and when it is right again.
func (w *Watch) report(off bool, ahead time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case off && !w.off:
		w.log.Error("this service does not lead: its clock differs from the database's", "ahead_seconds", ahead.Seconds(), "most_seconds", MaxDifference.Seconds())
	case !off && w.off:
		w.log.Info("the clock of this service agrees with the database again", "ahead_seconds", ahead.Seconds())
	}
	w.off = off
}

func text(ahead time.Duration) string {
	if ahead < 0 {
		return fmt.Sprintf("%v behind that of the index", ahead.Abs().Round(time.Millisecond))
	}
	return fmt.Sprintf("%v ahead of that of the index", ahead.Round(time.Millisecond))
}

// Index returns the index for use by a service that may lead: Lead is refused, as if another led,
// while the clocks differ too much.
func (w *Watch) Index() index.Index { return checked{w.index, w} }

type checked struct {
	index.Index
	watch *Watch
}

// Lead implements index.Leading.
func (x checked) Lead(ctx context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	err := x.watch.Check(ctx)
	if errors.Is(err, ErrOff) {
		return index.Term{}, false, nil
	}
	if err != nil {
		return index.Term{}, false, err
	}
	return x.Index.Lead(ctx, role, holder, ttl)
}
