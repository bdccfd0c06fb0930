package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

const (
	// maxAttempts is the maximum at one task or batch; then the snapshot fails, because its workers
	// cannot do the work.
	maxAttempts = 100
	// claimAtOnce bounds the work of one claim, and so the work that a crash leaves to leases.
	claimAtOnce = 64
	// publishAtOnce is how many messages are being published at a time.
	publishAtOnce = 16
	// freedEvery is the minimum interval at which freed slots are assigned again: several at a
	// time, if work completes fast.
	freedEvery = 10 * time.Millisecond
)

// dispatchLoop assigns open work: when it is signaled that there is some, when work was settled,
// because its filer then has room, and at an interval. Any number of committers run it: the index
// lets one at a time claim, and none beyond the limits.
func (s *Service) dispatchLoop(ctx context.Context) {
	// Committers that started together must not poll together for ever.
	poll := time.NewTicker(s.opts.Poll + rand.N(s.opts.Poll/8+1))
	defer poll.Stop()
	open := s.opts.Alone // the queues are known to exist
	var last time.Time
	beat := s.opts.Health.Loop("hand out", loopWithin)
	defer beat.Done()
	for {
		beat.Moved()
		// Without streams nothing is claimed: attempts would be wasted.
		err := s.Conn.Ready()
		if err == nil && !open {
			err = s.Conn.HaveStreams(ctx)
		}
		if err == nil {
			last = time.Now()
			err = s.dispatch(ctx)
		}
		open = err == nil
		if err != nil && ctx.Err() == nil {
			switch reported := s.retry(err); {
			case reported:
			case errors.Is(err, flow.ErrNoStream): // the keeper makes it, and logs what was lost
				s.log.Debug("work waits until the keeper has created the streams", "error", err)
			default:
				s.log.Warn("assigning work failed, will retry", "error", err)
			}
			loop.Wake(s.unpublished)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-s.freed:
			loop.Pause(ctx, freedEvery-time.Since(last))
		case <-poll.C:
		}
	}
}

// listenLoop triggers a search for work when a snapshot begins, and calls OnSnapshot when one
// begins or ends. Notifications that are lost while the index is unavailable are made up for by
// polling.
func (s *Service) listenLoop(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.Index.ListenSnapshots(ctx, func() {
			loop.Wake(s.freed)
			s.opts.OnSnapshot()
		})
		s.log.Debug("listening for snapshots failed, will retry", "error", err)
		loop.Pause(ctx, later)
	}
}

// dispatch assigns the work that the queues and the filers have room for.
func (s *Service) dispatch(ctx context.Context) error {
	for {
		claim := index.Claim{Snapshots: s.opts.Snapshots, Lease: s.opts.QueueLease, Queued: s.opts.Queued, Limit: claimAtOnce}
		moreTasks, err := s.handOutTasks(ctx, claim)
		if err != nil {
			return err
		}
		moreBatches, err := s.handOutBatches(ctx, claim)
		if err != nil || !moreTasks && !moreBatches {
			return err
		}
	}
}

// handOutTasks claims open walk tasks, and sends them to walkers. more reports whether there may be
// more open tasks.
func (s *Service) handOutTasks(ctx context.Context, claim index.Claim) (more bool, err error) {
	s.handing.Lock()
	defer s.handing.Unlock()
	tasks, err := s.Index.ClaimTasks(ctx, claim)
	if err != nil {
		return false, err
	}
	for i := range tasks {
		s.logBegun(ctx, &tasks[i])
	}
	return len(tasks) == claim.Limit, handOut(ctx, s, "walk task", flow.Walk, tasks, s.traceTask, func(t *backup.WalkTask) (index.Held, int32) {
		return index.Held{Snapshot: t.Job.Snapshot, Task: t.ID}, t.Attempt
	})
}

// handOutBatches is handOutTasks for read batches and readers.
func (s *Service) handOutBatches(ctx context.Context, claim index.Claim) (more bool, err error) {
	s.handing.Lock()
	defer s.handing.Unlock()
	batches, err := s.Index.ClaimBatches(ctx, claim)
	if err != nil {
		return false, err
	}
	return len(batches) == claim.Limit, handOut(ctx, s, "read batch", flow.Read, batches, s.traceBatch, func(b *backup.ReadBatch) (index.Held, int32) {
		return index.Held{Snapshot: b.Job.Snapshot, Batch: b.ID}, b.Attempt
	})
}

// traces begins the span of a piece of work.
type traces[T any] func(context.Context, *T) (context.Context, *telemetry.Span)

// handOut publishes claimed work, several messages at a time. Walkers and readers receive it
// (flow.ConsumeWalk, flow.ConsumeRead). It fails the snapshot of work that was tried too often, and
// gives back what could not be published.
func handOut[T any](ctx context.Context, s *Service, what string, hop flow.Hop[T], work []T, traced traces[T], held func(*T) (index.Held, int32)) error {
	var all errgroup.Group
	all.SetLimit(publishAtOnce)
	failed := make([]bool, len(work))
	for i := range work {
		if h, attempt := held(&work[i]); attempt > maxAttempts {
			s.fail(ctx, h.Snapshot, fmt.Sprintf("%s %d was tried %d times without success", what, max(int64(h.Task), int64(h.Batch)), attempt-1), nil)
			continue
		}
		all.Go(func() error {
			sending, span := traced(ctx, &work[i])
			err := flow.Publish(sending, s.Conn, hop, &work[i])
			span.End(err)
			failed[i] = err != nil
			return err
		})
	}
	if err := all.Wait(); err != nil {
		var left []index.Held
		for i := range work {
			if failed[i] {
				h, _ := held(&work[i])
				left = append(left, h)
			}
		}
		return s.takeBack(ctx, left, err)
	}
	_, kind, _ := strings.Cut(what, " ") // "task" or "batch"
	s.opts.Metrics.HandedOut(kind, len(work))
	return nil
}

// takeBack ends the leases of work that could not be sent, so that it need not wait for them to
// expire.
func (s *Service) takeBack(ctx context.Context, held []index.Held, cause error) error {
	// Also when this process is stopped.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), later)
	defer cancel()
	if err := s.Index.GiveBack(ctx, held); err != nil {
		s.log.Debug("ending leases failed: they expire by themselves", "error", err)
	}
	return cause
}
