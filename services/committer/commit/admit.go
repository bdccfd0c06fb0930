package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/store"
)

// A result is an unverified claim of a worker. Faults that would do harm later, at a restore or to
// the next snapshot, and can be detected now, are refused before they reach the index: a pack that
// does not exist, or a listing that cannot be decoded. The work of a refused result comes again
// with its lease, possibly to another worker.
//
// Whether a listing describes its tree, and a pack's table its chunks, cannot be verified here: see
// docs/security.md.

// statWithin is how long a committer waits for the store before it turns to other results. The
// store's client itself retries for minutes.
const statWithin = 5 * time.Second

// receive checks a result and passes it to applyLoop. It does not check the results of its own
// process.
func (s *Service) receive(ctx, work context.Context, r flow.Received) {
	if s.opts.Alone {
		s.pass(ctx, r)
		return
	}
	if r.Pack == nil {
		if err := checkListings(r); err != nil {
			s.acknowledge(work, r, &index.Outcome{Err: err})
			return
		}
		s.pass(ctx, r)
		return
	}
	// Requests to the store take time, and run concurrently, as those of readers do. There are at
	// most as many as the consumer has results in progress.
	s.packChecks.Go(func() {
		err := s.checkStored(work, r.Pack)
		if errors.Is(err, context.DeadlineExceeded) && work.Err() == nil {
			err = fmt.Errorf("%w (the store was %w for %s)", err, backup.StoreAway, statWithin)
		}
		switch {
		case err == nil:
			s.pass(ctx, r)
		case errors.Is(err, errNotStored):
			s.acknowledge(work, r, &index.Outcome{Err: err})
		default:
			r.Delivery.Retry(later)
			if work.Err() == nil && !s.retry(err) {
				about := describe(r)
				s.about(&about).Warn("registering a pack failed, will retry", "error", err)
			}
		}
	})
}

// pass sends a result to applyLoop.
func (s *Service) pass(ctx context.Context, r flow.Received) {
	select {
	case s.results <- r:
	case <-ctx.Done():
		r.Delivery.Retry(0)
	}
}

// errNotStored means that a pack differs from its PackStored. If the committer cannot see the pack
// for another reason (the store is unavailable, the committer's own key has expired), it does not
// refuse the pack.
var errNotStored = errors.New("the store does not have the pack that was announced")

// checkStored fails with errNotStored unless the pack is in the store with the announced length
// (I1).
func (s *Service) checkStored(ctx context.Context, p *backup.PackStored) error {
	ctx, cancel := context.WithTimeout(ctx, statWithin)
	defer cancel()
	name := store.PackName(p.Snapshot, p.Pack)
	sizeBytes, err := s.Store.Stat(ctx, name)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		// If the bucket or a key is gone, nothing is found: an object that certainly exists must be
		// found.
		if _, other := s.Store.Stat(ctx, store.ConfigName); other != nil {
			return other
		}
		return fmt.Errorf("%w: %w", errNotStored, err)
	case err == nil && sizeBytes != p.StoredBytes:
		return fmt.Errorf("%s has %d bytes, and is said to have %d: %w", name, sizeBytes, p.StoredBytes, errNotStored)
	}
	return err
}

// checkListings fails with backup.ErrInvalid unless all listings of a result can be decoded, and
// those that are final are complete. An invalid listing would fail the restore of its directory,
// and each walk that compares with it.
func checkListings(r flow.Received) error {
	switch {
	case r.Slice != nil:
		for _, b := range r.Slice.Batches {
			if err := checkPages(b.Pages, backup.Wanted|backup.XattrsWanted); err != nil {
				return err
			}
		}
		return checkPages(r.Slice.Pages, 0)
	case r.Batch != nil:
		return checkPages(r.Batch.Pages, 0)
	}
	return nil
}

// checkPages fails with backup.ErrInvalid unless all listings can be decoded, and no entry has a
// flag Wanted or XattrsWanted that may lacks.
func checkPages(pages []backup.PageVersion, may backup.Flags) error {
	for i := range pages {
		p, err := listing.DecodePage(pages[i])
		if err != nil {
			return fmt.Errorf("%w: %w", err, backup.ErrInvalid)
		}
		var wants backup.Flags
		if p.Self != nil {
			wants = p.Self.Flags
		}
		for j := range p.Entries {
			wants |= p.Entries[j].Flags
		}
		if wants &= backup.Wanted | backup.XattrsWanted; wants&^may != 0 {
			return fmt.Errorf("page %d of %q is not complete: %w", p.Key, p.Path, backup.ErrInvalid)
		}
	}
	return nil
}
