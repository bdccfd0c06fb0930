package commit

import (
	"context"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

const (
	// maxAttempts at one task or batch; then the snapshot fails, for something
	// about it is beyond its workers.
	maxAttempts = 100
	// claimAtOnce bounds what one claim takes, and so what a crash leaves to leases.
	claimAtOnce = 64
	// streamsEvery is how often the streams are looked after.
	streamsEvery = 5 * time.Second
)

// dispatchLoop hands out open work: whenever it is told that there is some,
// and every now and then.
func (s *Service) dispatchLoop(ctx context.Context) {
	poll := time.NewTicker(s.opts.Poll)
	defer poll.Stop()
	var looked time.Time
	for {
		// Without streams nothing is claimed: attempts would be spent on nothing.
		var err error
		if time.Since(looked) > streamsEvery {
			if err = s.ensureStreams(ctx); err == nil {
				looked = time.Now()
			}
		}
		if err == nil {
			err = s.dispatch(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("work will be handed out later", "error", err)
			s.opts.OnRetry(err)
			looked = time.Time{}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-poll.C:
		}
	}
}

// ensureStreams makes what is missing. Where a stream was, all messages that
// were on their way are lost: their work can be handed out at once.
func (s *Service) ensureStreams(ctx context.Context) error {
	lost, err := s.Conn.EnsureStreams(ctx, []string{backup.DefaultSite})
	if err != nil || !lost {
		return err
	}
	running, err := s.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}})
	if err != nil {
		return err
	}
	for i := range running {
		if err := s.Index.ExpireLeases(ctx, running[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// dispatch hands out what the queues have room for.
func (s *Service) dispatch(ctx context.Context) error {
	for {
		now := time.Now()
		claim := index.Claim{Snapshots: s.opts.Snapshots, Lease: s.opts.QueueLease, Queued: s.opts.Queued, Limit: claimAtOnce, Now: now}
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
	if claim.Limit <= 0 {
		return false, nil
	}
	tasks, err := s.Index.ClaimTasks(ctx, claim)
	if err != nil {
		return false, err
	}
	for i := range tasks {
		t := &tasks[i]
		if t.Attempt > maxAttempts {
			s.fail(ctx, t.Job.Snapshot, fmt.Sprintf("walk task %d was tried %d times without success", t.ID, t.Attempt-1), nil)
			continue
		}
		if err := flow.Publish(ctx, s.Conn, flow.Walk, t); err != nil {
			ids := make([]backup.TaskID, 0, len(tasks)-i)
			for _, t := range tasks[i:] {
				ids = append(ids, t.ID)
			}
			return false, s.takeBack(ctx, ids, nil, err)
		}
	}
	return len(tasks) == claim.Limit, nil
}

func (s *Service) handOutBatches(ctx context.Context, claim index.Claim) (more bool, err error) {
	if claim.Limit <= 0 {
		return false, nil
	}
	batches, err := s.Index.ClaimBatches(ctx, claim)
	if err != nil {
		return false, err
	}
	for i := range batches {
		b := &batches[i]
		if b.Attempt > maxAttempts {
			s.fail(ctx, b.Job.Snapshot, fmt.Sprintf("read batch %d was tried %d times without success", b.ID, b.Attempt-1), nil)
			continue
		}
		if err := flow.Publish(ctx, s.Conn, flow.Read, b); err != nil {
			ids := make([]backup.BatchID, 0, len(batches)-i)
			for _, b := range batches[i:] {
				ids = append(ids, b.ID)
			}
			return false, s.takeBack(ctx, nil, ids, err)
		}
	}
	return len(batches) == claim.Limit, nil
}

// takeBack ends the leases of work that could not be sent: it need not wait
// for them to run out.
func (s *Service) takeBack(ctx context.Context, tasks []backup.TaskID, batches []backup.BatchID, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), later) // also when this process is told to stop
	defer cancel()
	if err := s.Index.GiveBack(ctx, tasks, batches); err != nil {
		s.log.Debug("leases run out by themselves", "error", err)
	}
	return cause
}

// leaseLoop renews the leases of work that its workers report to have in hand.
func (s *Service) leaseLoop(ctx context.Context) {
	reports := make(chan *backup.Progress, 256)
	stop, err := s.Conn.SubscribeProgress(func(p *backup.Progress) {
		select {
		case reports <- p:
		default: // the next report says it again
		}
	})
	if err != nil {
		s.log.Error("leases are not renewed", "error", err)
		return
	}
	defer stop()
	renew := time.NewTicker(s.opts.Lease / 3)
	defer renew.Stop()
	tasks, batches := map[backup.TaskID]struct{}{}, map[backup.BatchID]struct{}{}
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-reports:
			for _, id := range p.Tasks {
				tasks[id] = struct{}{}
			}
			for _, id := range p.Batches {
				batches[id] = struct{}{}
			}
		case now := <-renew.C:
			if len(tasks)+len(batches) == 0 {
				continue
			}
			if err := s.Index.Extend(ctx, held(tasks, batches), now.Add(s.opts.Lease)); err != nil && ctx.Err() == nil {
				s.log.Warn("leases cannot be renewed", "error", err)
			}
			clear(tasks)
			clear(batches)
		}
	}
}

func held(tasks map[backup.TaskID]struct{}, batches map[backup.BatchID]struct{}) []index.Held {
	var list []index.Held
	for id := range tasks {
		list = append(list, index.Held{Task: id})
	}
	for id := range batches {
		list = append(list, index.Held{Batch: id})
	}
	return list
}
