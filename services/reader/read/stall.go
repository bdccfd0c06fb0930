package read

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/stall"
)

// maxStalled bounds the stalled batches. Further ones keep their slots, so that in the end nothing
// more is taken.
const maxStalled = 256

// Stalled gives back what other batches need. The batch keeps waiting for the filer, and keeps the
// buffer that the filer may still write to.
func (b *batch) Stalled(first bool) {
	s := b.svc
	if b.buffer != nil { // its goroutine does not touch it until the call returns
		b.buffer.home.replace(b.buffer)
	}
	s.reading.Give(b.filer())
	s.packer.leave(b.msg.Job.Snapshot)
	b.giveSlot()
	s.Report.StalledBatch(b.msg.Job.Snapshot, b.msg.ID, true)
	b.delivery.Stalled()
	if first {
		s.opts.Log.Warn("the filer does not answer: its read batches are stalled", "filer", b.msg.Job.FilerName, "shard", b.msg.Job.ShardName,
			"snapshot", b.msg.Job.Snapshot.Short(), "batch", b.msg.ID)
	}
}

// Resumed lets the batch continue. It does not wait for its turn, because it has a buffer.
func (b *batch) Resumed(hung time.Duration) {
	s := b.svc
	s.reading.Force(b.filer())
	s.packer.join(b.msg.Job.Snapshot)
	s.Report.StalledBatch(b.msg.Job.Snapshot, b.msg.ID, false)
	if hung > 0 {
		s.opts.Log.Info("the filer answers again", "filer", b.msg.Job.FilerName, "shard", b.msg.Job.ShardName,
			"snapshot", b.msg.Job.Snapshot.Short(), "batch", b.msg.ID, "seconds", hung.Seconds())
	}
}

// giveSlot gives back the slot of a batch in progress, if the batch has one.
func (b *batch) giveSlot() {
	if b.counted.Swap(false) {
		b.svc.inHand.Give(b.filer())
	}
}

// eachBatch calls do for the batches in progress.
func (s *Service) eachBatch(do func(*batch)) {
	s.watch.Each(func(o stall.Owner) { do(o.(*batch)) })
}

// watchFilers looks for stalled batches until ctx is done.
func (s *Service) watchFilers(ctx context.Context) {
	beat := s.opts.Health.Loop("stalled batches", s.watch.MaxInterval())
	defer beat.Done()
	s.watch.Run(ctx, func(inProgress, stalled int) {
		s.opts.Metrics.InHand(inProgress, stalled)
		beat.Moved()
	})
}
