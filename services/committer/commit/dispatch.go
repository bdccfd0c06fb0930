package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

const (
	// maxAttempts at one task or batch; then the snapshot fails, for something
	// about it is beyond its workers.
	maxAttempts = 100
	// claimAtOnce bounds what one claim takes, and so what a crash leaves to leases.
	claimAtOnce = 64
	// publishAtOnce messages are on their way to the queues at a time.
	publishAtOnce = 16
	// freedEvery is how soon, at most, places that became free are given away again:
	// several at a time, where work is done fast.
	freedEvery = 10 * time.Millisecond
)

// dispatchLoop hands out open work: whenever it is told that there is some, when work
// was settled, for its filer has room then, and every now and then. Any number of committers do it: the
// index lets one at a time claim, and none beyond the bounds.
func (s *Service) dispatchLoop(ctx context.Context) {
	// Committers that were started together shall not ask together for ever.
	poll := time.NewTicker(s.opts.Poll + rand.N(s.opts.Poll/8+1))
	defer poll.Stop()
	open := s.opts.Alone // the queues are known to be there
	var last time.Time
	beat := s.opts.Health.Loop("hand out", loopWithin)
	defer beat.Done()
	for {
		beat.Moved()
		// Without streams nothing is claimed: attempts would be spent on nothing.
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
			if !s.retry(err) {
				s.log.Warn("work will be handed out later", "error", err)
			}
			signal(s.unpublished)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-s.freed:
			pause(ctx, freedEvery-time.Since(last))
		case <-poll.C:
		}
	}
}

// listenLoop has work looked for when a snapshot was begun. What is not heard while the index is away, polling finds.
func (s *Service) listenLoop(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.Index.ListenBegun(ctx, func() { signal(s.freed) })
		s.log.Debug("new snapshots are not heard of", "error", err)
		pause(ctx, later)
	}
}

// dispatch hands out what the queues and the filers have room for.
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

// publishAll publishes what is wanted of the work, several messages at a time.
// With an error it returns the work that was not published.
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

// takeBack ends the leases of work that could not be sent: it need not wait
// for them to run out.
func (s *Service) takeBack(ctx context.Context, held []index.Held, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), later) // also when this process is told to stop
	defer cancel()
	if err := s.Index.GiveBack(ctx, held); err != nil {
		s.log.Debug("leases run out by themselves", "error", err)
	}
	return cause
}
