package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/store"
)

// A result is some worker's word. What would do harm later, at a restore or to the next snapshot, and can be seen
// now, is refused before the index sees it: a pack that is not there, a listing that nobody can read. Work of a
// refused result comes again with its lease, to another worker perhaps.
//
// What a listing says of a tree, and a pack's table of its chunks, cannot be judged here: see docs/security.md.

// statWithin is how long a committer waits for the store before it looks at other results. The
// store's client goes on for minutes where it does not answer.
const statWithin = 5 * time.Second

// receive takes a result in hand: it goes on to applyLoop once it may. Nothing of one process is looked
// at: it would be its own word that it does not believe.
func (s *Service) receive(ctx, hand context.Context, r flow.Result) {
	if s.opts.Alone {
		s.pass(ctx, r)
		return
	}
	if r.Pack == nil {
		if err := readable(r); err != nil {
			s.acknowledge(hand, r, &index.Outcome{Err: err})
			return
		}
		s.pass(ctx, r)
		return
	}
	// Requests to the store take their time, and wait for each other as little as those of readers do. There
	// are no more of them than the consumer has results in hand.
	s.stats.Go(func() {
		switch err := s.stored(hand, r.Pack); {
		case err == nil:
			s.pass(ctx, r)
		case errors.Is(err, errLie):
			s.acknowledge(hand, r, &index.Outcome{Err: err})
		default:
			r.Delivery.Retry(later)
			if hand.Err() == nil {
				s.log.Warn("a pack will be registered later", append(describe(r).log(), "error", err)...)
				s.retry(err)
			}
		}
	})
}

// pass hands a result to applyLoop.
func (s *Service) pass(ctx context.Context, r flow.Result) {
	select {
	case s.results <- r:
	case <-ctx.Done():
		r.Delivery.Retry(0)
	}
}

// errLie is of a pack that is not as its PackStored says. Whatever else keeps the committer from seeing
// it (the store is away, the committer's own key has ended) is no reason to refuse the pack.
var errLie = errors.New("the store does not have the pack that was announced")

// stored fails with errLie unless the pack is in the store, with the length that it is said to have (I1).
func (s *Service) stored(ctx context.Context, p *backup.PackStored) error {
	ctx, cancel := context.WithTimeout(ctx, statWithin)
	defer cancel()
	name := store.PackName(p.Snapshot, p.Pack)
	sizeBytes, err := s.Store.Stat(ctx, name)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		// Where the bucket or a key is gone, nothing is found: what is surely there has to be.
		if _, other := s.Store.Stat(ctx, store.ConfigName); other != nil {
			return other
		}
		return fmt.Errorf("%w: %w", errLie, err)
	case err == nil && sizeBytes != p.StoredBytes:
		return fmt.Errorf("%s has %d bytes, and is said to have %d: %w", name, sizeBytes, p.StoredBytes, errLie)
	}
	return err
}

// readable fails with backup.ErrInvalid unless all listings of a result can be decoded: one that cannot would fail the
// restore of its directory, and every walk that compares with it.
func readable(r flow.Result) error {
	var pages [][]backup.PageVersion
	switch {
	case r.Slice != nil:
		pages = slices.Concat(r.Slice.Batches, [][]backup.PageVersion{r.Slice.Pages})
	case r.Batch != nil:
		pages = append(pages, r.Batch.Pages)
	}
	for _, list := range pages {
		for i := range list {
			if _, err := listing.DecodePage(list[i]); err != nil {
				return fmt.Errorf("%w: %w", err, backup.ErrInvalid)
			}
		}
	}
	return nil
}
