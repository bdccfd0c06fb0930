package commit

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

const (
	applyBatch = 32 // maximum number of results per transaction
	// First delay for a result that came too early; doubled each time.
	soon  = 25 * time.Millisecond
	later = 2 * time.Second // delay for a result that the index could not apply
	// giveUpAfter is the number of deliveries of a batch, in about 30 seconds, after which a pack
	// or list that it relies on is not expected any more. The report of a pack or list is dropped
	// if it comes after the end of its snapshot, but the reader may rely on it for another
	// snapshot.
	giveUpAfter = 20
)

// soonAfter returns the delay after this many deliveries. The result that another waits for is
// usually on its way. If it was never sent, the deliveries cost little until the work is settled or
// the snapshot ends.
func soonAfter(deliveries int) time.Duration {
	return min(soon<<min(deliveries-1, 10), later)
}

// applyLoop applies results, as many at a time as have arrived meanwhile.
func (s *Service) applyLoop(ctx, work context.Context) {
	for {
		var batch []flow.Received
		select {
		case <-ctx.Done():
			return
		case r := <-s.results:
			batch = append(batch, r)
		}
		for more := true; more && len(batch) < applyBatch; {
			select {
			case r := <-s.results:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		s.apply(work, batch)
	}
}

// applyWithin is how long a transaction may take. An index that accepts connections and does not
// answer (because of a synchronous standby, or a lock) must not stop the service's loops. Its
// results come again.
const applyWithin = time.Minute

// apply applies results in one transaction of the index (Apply of package entindex), and
// acknowledges each once the transaction is durable.
func (s *Service) apply(ctx context.Context, batch []flow.Received) {
	if s.opts.MayApply() != nil {
		for _, r := range batch {
			r.Delivery.Retry(later)
		}
		return
	}
	results := make([]index.Result, 0, len(batch))
	for _, r := range batch {
		results = append(results, index.Result{
			Slice: r.Slice, Pack: r.Pack, Lists: r.Lists, Batch: r.Batch, GiveUp: r.Batch != nil && r.Delivery.Attempts() >= giveUpAfter,
		})
	}
	s.addSeconds(results)
	spans := s.beginApply(ctx, batch)
	outcomes, err := s.applyTimed(ctx, results)
	endApply(spans, outcomes, err)
	if err != nil {
		for _, r := range batch {
			r.Delivery.Retry(later)
		}
		if ctx.Err() == nil && !s.retry(err) {
			s.log.Warn("applying results failed, will retry", "results", len(batch), "error", err)
		}
		return
	}
	for i := range outcomes {
		s.acknowledge(ctx, batch[i], &outcomes[i])
	}
}

// applyTimed calls Apply, and measures the time that it takes.
func (s *Service) applyTimed(ctx context.Context, results []index.Result) ([]index.Outcome, error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	outcomes, err := s.Index.Apply(ctx, results)
	took := time.Since(started)
	s.commitNanos.Add(int64(took))
	s.opts.Metrics.Applied(took)
	return outcomes, err
}

// addSeconds adds the time of previous transactions to the counts of the first result.
func (s *Service) addSeconds(results []index.Result) {
	for _, r := range results {
		switch {
		case r.Slice != nil:
			r.Slice.Counts.CommitSeconds += time.Duration(s.commitNanos.Swap(0)).Seconds()
			return
		case r.Batch != nil:
			r.Batch.Counts.CommitSeconds += time.Duration(s.commitNanos.Swap(0)).Seconds()
			return
		}
	}
}

func (s *Service) acknowledge(ctx context.Context, r flow.Received, o *index.Outcome) {
	about := describe(r)
	s.opts.Metrics.Result(about.kind, outcomeOf(o))
	switch {
	case o.Failed:
		snapshot, reason := failure(r)
		s.fail(ctx, snapshot, reason, r.Delivery)
	case o.Err == nil:
		r.Delivery.Ack()
	case isEarly(o.Err) && o.Announced:
		s.about(&about).Info("read batch relies on a pack that never came, and is read again", "error", o.Err)
		r.Delivery.Ack()
	case isEarly(o.Err):
		r.Delivery.Retry(soonAfter(r.Delivery.Attempts()))
	case errors.Is(o.Err, index.ErrCondemned):
		s.about(&about).Info("read batch relies on a condemned pack, and is read again", "error", o.Err)
		r.Delivery.Ack()
		loop.Wake(s.wake)
	default:
		r.Delivery.Drop() // its lease brings the work back
		if !s.retry(o.Err) {
			s.about(&about).Error("result refused", "error", o.Err)
		}
	}
	if o.Late {
		s.about(&about).Debug("late result ignored")
	}
	if o.Announced {
		loop.Wake(s.wake)
	}
	if o.Err == nil && !o.Late && !s.opts.Alone && (r.Slice != nil && r.Slice.Last || r.Batch != nil) {
		loop.Wake(s.freed)
	}
	if o.Complete {
		loop.Wake(s.settled)
	}
}

// failure returns the snapshot that a failed result belongs to, and the reason.
func failure(r flow.Received) (backup.SnapshotID, string) {
	if r.Batch != nil {
		return r.Batch.Snapshot, r.Batch.Failed
	}
	return r.Slice.Snapshot, r.Slice.Failed
}

// fail ends a snapshot that cannot be made.
func (s *Service) fail(ctx context.Context, id backup.SnapshotID, reason string, d *flow.Delivery) {
	s.end(ctx, &backup.Snapshot{ID: id}, reason, d)
}

// end ends a snapshot that cannot be made, or that an operator has cancelled.
func (s *Service) end(ctx context.Context, snap *backup.Snapshot, reason string, d *flow.Delivery) {
	id := snap.ID
	err := s.Index.Fail(ctx, id, reason, time.Time{})
	if err != nil && !errors.Is(err, backup.ErrNotFound) {
		if ctx.Err() == nil {
			s.log.Warn("marking a snapshot as failed failed, will retry", "snapshot", id.Short(), "error", err)
		}
		if d != nil {
			d.Retry(later)
		}
		return
	}
	if err == nil {
		s.ended(ctx, snap, reason)
	}
	if d != nil {
		d.Ack()
	}
}
