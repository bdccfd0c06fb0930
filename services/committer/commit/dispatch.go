package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	// freedEvery is the minimum interval at which freed places are assigned again: several at a
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
			switch told := s.retry(err); {
			case told:
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

// listenLoop triggers a search for work when a snapshot begins, and calls OnSnapshot when one begins
// or ends. Notifications that are lost while the index is unavailable are made up for by polling.
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

// handOutTasks reports whether there may be more.
func (s *Service) handOutTasks(ctx context.Context, claim index.Claim) (more bool, err error) {
	tasks, err := s.Index.ClaimTasks(ctx, claim)
	if err != nil {
		return false, err
	}
	for i := range tasks {
		s.sayBegun(ctx, &tasks[i])
	}
	left, err := publishAll(ctx, s.Conn, flow.Walk, tasks, s.handOutTask, func(t *backup.WalkTask) bool {
		if t.Attempt > maxAttempts {
			s.fail(ctx, t.Job.Snapshot, fmt.Sprintf("walk task %d was tried %d times without success", t.ID, t.Attempt-1), nil)
		}
		return t.Attempt <= maxAttempts
	})
	if err != nil {
		held := make([]index.Held, 0, len(left))
		for _, t := range left {
			held = append(held, index.Held{Snapshot: t.Job.Snapshot, Task: t.ID})
		}
		return false, s.takeBack(ctx, held, err)
	}
	s.opts.Metrics.HandedOut("task", len(tasks))
	return len(tasks) == claim.Limit, nil
}

func (s *Service) handOutBatches(ctx context.Context, claim index.Claim) (more bool, err error) {
	batches, err := s.Index.ClaimBatches(ctx, claim)
	if err != nil {
		return false, err
	}
	left, err := publishAll(ctx, s.Conn, flow.Read, batches, s.handOutBatch, func(b *backup.ReadBatch) bool {
		if b.Attempt > maxAttempts {
			s.fail(ctx, b.Job.Snapshot, fmt.Sprintf("read batch %d was tried %d times without success", b.ID, b.Attempt-1), nil)
		}
		return b.Attempt <= maxAttempts
	})
	if err != nil {
		held := make([]index.Held, 0, len(left))
		for _, b := range left {
			held = append(held, index.Held{Snapshot: b.Job.Snapshot, Batch: b.ID})
		}
		return false, s.takeBack(ctx, held, err)
	}
	s.opts.Metrics.HandedOut("batch", len(batches))
	return len(batches) == claim.Limit, nil
}

// traces begins the span of a piece of work.
type traces[T any] func(context.Context, *T) (context.Context, *telemetry.Span)

// publishAll publishes the wanted part of the work, several messages at a time. With an error it
// returns the work that was not published.
func publishAll[T any](ctx context.Context, conn *flow.Conn, hop flow.Hop[T], work []T, traced traces[T], wanted func(*T) bool) (left []*T, err error) {
	var all errgroup.Group
	all.SetLimit(publishAtOnce)
	failed := make([]bool, len(work))
	for i := range work {
		if !wanted(&work[i]) {
			continue
		}
		all.Go(func() error {
			sending, span := traced(ctx, &work[i])
			err := flow.Publish(sending, conn, hop, &work[i])
			span.End(err)
			failed[i] = err != nil
			return err
		})
	}
	err = all.Wait()
	for i := range work {
		if failed[i] {
			left = append(left, &work[i])
		}
	}
	return left, err
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
