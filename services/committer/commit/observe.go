package commit

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

// Observation of a committer: its logs, metrics and traces of results and snapshots and, if it
// leads, metrics of the whole fleet.

const (
	// loopWithin is how long an iteration of a loop may take that queries the index and the queues,
	// which answer or fail much sooner.
	loopWithin = 5 * time.Minute
	// fleetWithin is how long a scrape may wait for the index and the queues.
	fleetWithin = 5 * time.Second
)

// about identifies a result by the ids used in logs, spans and metrics.
type about struct {
	kind     string // slice, pack, lists or batch
	snapshot backup.SnapshotID
	ids      []slog.Attr
}

func describe(r flow.Received) about {
	switch {
	case r.Slice != nil:
		return about{"slice", r.Slice.Snapshot, []slog.Attr{slog.Int64("task", int64(r.Slice.Task)), slog.Int("attempt", int(r.Slice.Attempt))}}
	case r.Pack != nil:
		return about{"pack", r.Pack.Snapshot, []slog.Attr{slog.String("pack", r.Pack.Pack.String())}}
	case r.Lists != nil:
		return about{"lists", r.Lists.Snapshot, []slog.Attr{slog.Int("lists", len(r.Lists.Lists))}}
	}
	return about{"batch", r.Batch.Snapshot, []slog.Attr{slog.Int64("batch", int64(r.Batch.Batch)), slog.Int("attempt", int(r.Batch.Attempt))}}
}

// about returns a logger that adds the ids of a result to each line.
func (s *Service) about(a *about) *slog.Logger {
	args := []any{slog.String("snapshot", a.snapshot.Short())}
	for _, id := range a.ids {
		args = append(args, id)
	}
	return s.log.With(args...)
}

// outcomeOf names the outcome of a result.
func outcomeOf(o *index.Outcome) string {
	switch {
	case o.Failed:
		return "failed"
	case o.Late:
		return "late"
	case o.Err == nil:
		return "accepted"
	case isEarly(o.Err):
		return "early"
	case errors.Is(o.Err, index.ErrCondemned):
		return "condemned"
	}
	return "refused"
}

// isEarly reports whether a result is refused only because another, which it relies on, has not
// arrived yet.
func isEarly(err error) bool {
	return errors.Is(err, index.ErrPackUnknown) || errors.Is(err, index.ErrListUnknown) || errors.Is(err, index.ErrPartMissing)
}

// beginApply begins a span for each result of a transaction, as a child of the sending worker's
// span; nil if there are no traces.
func (s *Service) beginApply(ctx context.Context, batch []flow.Received) (spans []*telemetry.Span) {
	if s.opts.Trace == nil {
		return nil
	}
	for _, r := range batch {
		a := describe(r)
		_, span := s.opts.Trace.Start(r.Delivery.Trace(ctx), "apply "+a.kind, a.snapshot, a.ids...)
		spans = append(spans, span)
	}
	return spans
}

func endApply(spans []*telemetry.Span, outcomes []index.Outcome, err error) {
	for i, span := range spans {
		why := err
		if err == nil {
			span.Set(slog.String("outcome", outcomeOf(&outcomes[i])))
			why = outcomes[i].Err
		}
		span.End(why)
	}
}

// traceTask begins the span of work that is assigned; its message carries the span.
func (s *Service) traceTask(ctx context.Context, t *backup.WalkTask) (context.Context, *telemetry.Span) {
	ctx, span := s.opts.Trace.Start(ctx, "hand out task", t.Job.Snapshot, slog.Int64("task", int64(t.ID)), slog.Int("attempt", int(t.Attempt)))
	if span != nil {
		span.Set(telemetry.Paths(len(t.Directories), func(i int) string { return t.Directories[i] })...)
	}
	return ctx, span
}

// traceBatch is traceTask for read batches.
func (s *Service) traceBatch(ctx context.Context, b *backup.ReadBatch) (context.Context, *telemetry.Span) {
	ctx, span := s.opts.Trace.Start(ctx, "hand out batch", b.Job.Snapshot, slog.Int64("batch", int64(b.ID)), slog.Int("attempt", int(b.Attempt)))
	if span != nil {
		span.Set(telemetry.Paths(len(b.Pages), func(i int) string { return b.Pages[i].Path })...)
	}
	return ctx, span
}

// retry reports that something has to be retried. reported is false if no OnRetry is set, so that
// the caller logs it.
func (s *Service) retry(err error) (reported bool) {
	s.opts.Metrics.Retry(err)
	if s.opts.OnRetry == nil {
		return false
	}
	s.opts.OnRetry(err)
	return true
}

// observeEnd records a snapshot that this committer has ended in metrics and traces; reason is why
// it failed.
func (s *Service) observeEnd(ctx context.Context, snap *backup.Snapshot, reason string) {
	s.opts.Metrics.Ended(howEnded(snap, reason))
	if snap.Ended.IsZero() { // the index did not answer
		s.log.Debug("ending the trace of a snapshot failed", "snapshot", snap.ID.Short())
		return
	}
	s.opts.Trace.Ended(ctx, snap, reason)
}

// howEnded returns how a snapshot has ended, for metrics and logs.
func howEnded(snap *backup.Snapshot, reason string) string {
	switch reason {
	case "":
		return string(backup.Committed)
	case snap.Cancel:
		return telemetry.Cancelled
	}
	return string(backup.Failed)
}

// level returns the level at which something is logged. Within a single process it is only for
// debugging, because the command that runs the backup reports the outcome.
func (s *Service) level(l slog.Level) slog.Level {
	if s.opts.Alone {
		return slog.LevelDebug
	}
	return l
}

// logBegun logs that the first work of a snapshot is assigned, which happens once, no matter which
// process began the snapshot.
func (s *Service) logBegun(ctx context.Context, t *backup.WalkTask) {
	if t.Generation > 0 || t.Attempt > 1 || s.opts.Alone {
		return
	}
	snap, err := s.Index.Snapshot(ctx, t.Job.Snapshot)
	if err != nil {
		snap = backup.Snapshot{ID: t.Job.Snapshot, Number: t.Job.Number}
	}
	s.log.Info("snapshot begun", "snapshot", snap.ID.Short(), "filer", snap.Filer.Name, "shard", snap.Shard.Name, "number", snap.Number)
}

// logEnd logs how a snapshot has ended, once: by the committer that ended it.
func (s *Service) logEnd(ctx context.Context, snap *backup.Snapshot, reason string) {
	seconds := 0.0
	if !snap.Ended.IsZero() {
		seconds = snap.Ended.Sub(snap.Started).Seconds()
	}
	switch howEnded(snap, reason) {
	case string(backup.Committed):
		s.log.Log(ctx, s.level(slog.LevelInfo), "snapshot committed", "snapshot", snap.ID.Short(), "filer", snap.Filer.Name, "shard", snap.Shard.Name,
			"number", snap.Number, "files", snap.Counts.Files, "new_bytes", snap.Counts.NewBytes, "errors", snap.Counts.Errors, "seconds", seconds)
	case telemetry.Cancelled:
		s.log.Log(ctx, s.level(slog.LevelInfo), "snapshot cancelled", "snapshot", snap.ID.Short(), "filer", snap.Filer.Name, "shard", snap.Shard.Name,
			"number", snap.Number, "reason", reason, "seconds", seconds)
	default:
		s.log.Log(ctx, s.level(slog.LevelError), "snapshot failed", "snapshot", snap.ID.Short(), "filer", snap.Filer.Name, "shard", snap.Shard.Name,
			"number", snap.Number, "reason", reason, "seconds", seconds)
	}
}

// fleet collects the metrics of the fleet.
func (s *Service) fleet(ctx context.Context) (*telemetry.Fleet, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetWithin)
	defer cancel()
	f := &telemetry.Fleet{}
	var err error
	if f.Filers, err = s.Index.ListFilers(ctx, index.FilerFilter{}); err != nil {
		return nil, err
	}
	if f.Shards, err = s.Index.ListShards(ctx, index.ShardFilter{}); err != nil {
		return nil, err
	}
	if f.Running, err = s.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}}); err != nil {
		return nil, err
	}
	if f.Stops, err = s.Index.Stops(ctx); err != nil {
		return nil, err
	}
	if f.Holds, err = s.Index.Holds(ctx); err != nil {
		return nil, err
	}
	sites, err := s.Index.Sites(ctx)
	if err != nil {
		return nil, err
	}
	if f.Queues, err = s.Conn.Depths(ctx, sites); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Held = s.held
	return f, nil
}

// heldByFiler counts the reported work in progress by filer.
func (r *reported) heldByFiler() map[backup.FilerID]telemetry.Held {
	by := map[backup.FilerID]telemetry.Held{}
	for id, w := range r.work {
		n := by[w.filer]
		all, stalled := &n.Tasks, &n.StalledTasks
		if id.task == 0 {
			all, stalled = &n.Batches, &n.StalledBatches
		}
		*all++
		if w.Stalled {
			*stalled++
		}
		by[w.filer] = n
	}
	return by
}
