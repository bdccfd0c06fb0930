package read

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
)

// A batch of a filer with a limit reads in pieces of paceBytes. The budget that it accumulates
// while it does something else is at most one small buffer.
const (
	paceBytes  = 256 << 10
	burstBytes = smallBufferBytes
)

const (
	// limitsEvery is how often a reader with batches in progress asks for the current limits.
	limitsEvery = 2 * time.Second
	// limitsWithin is how long that may take: the index answers or fails much sooner.
	limitsWithin = 5 * time.Minute
)

// A pace holds a batch to its share of the filer's bytes per second. The share may change while the
// batch waits. It is safe for concurrent use.
type pace struct {
	mu      sync.Mutex
	limiter *rate.Limiter // nil: no limit
	changed chan struct{} // closed when the limit changes
}

// newPace returns a pace with this limit; 0: there is none.
func newPace(bytesPerSecond int64) *pace {
	p := &pace{changed: make(chan struct{})}
	p.set(bytesPerSecond)
	return p
}

// set changes the limit. A new one starts empty, because a snapshot may consist of many small
// batches. A change of one keeps what was saved up, so that frequent changes delay no one for ever.
func (p *pace) set(bytesPerSecond int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch limit := rate.Limit(bytesPerSecond); {
	case bytesPerSecond <= 0 && p.limiter == nil:
		return
	case bytesPerSecond <= 0:
		p.limiter = nil
	case p.limiter == nil:
		p.limiter = rate.NewLimiter(limit, burstBytes)
		p.limiter.AllowN(time.Now(), burstBytes)
	case p.limiter.Limit() == limit:
		return
	default:
		p.limiter.SetLimit(limit)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// limited reports whether there is a limit now.
func (p *pace) limited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limiter != nil
}

// wait waits until n bytes, at most paceBytes, may be read.
func (p *pace) wait(ctx context.Context, n int) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.mu.Lock()
		limiter, changed := p.limiter, p.changed
		if limiter == nil {
			p.mu.Unlock()
			return nil
		}
		r := limiter.ReserveN(time.Now(), n)
		p.mu.Unlock()
		if granted, err := await(ctx, r, changed); granted || err != nil {
			return err
		}
	}
}

// await waits for a reservation. It cancels it when ctx is done, with an error, and when the limit
// changes.
func await(ctx context.Context, r *rate.Reservation, changed <-chan struct{}) (granted bool, err error) {
	t := time.NewTimer(r.Delay())
	defer t.Stop()
	select {
	case <-t.C:
		return true, nil
	case <-changed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.Cancel()
	return false, err
}

// followLimits applies changed limits of filers to the batches in progress, until ctx is done.
func (s *Service) followLimits(ctx context.Context) {
	beat := s.opts.Health.Loop("read limits", limitsWithin)
	defer beat.Done()
	loop.Every(ctx, limitsEvery, func() {
		beat.Moved()
		s.applyLimits(ctx)
	})
}

// applyLimits applies the current limits. If the index does not answer, batches keep theirs.
func (s *Service) applyLimits(ctx context.Context) {
	filers := s.filers()
	if len(filers) == 0 {
		return
	}
	shares, err := s.Index.ReadShares(ctx, filers, time.Time{})
	switch {
	case err == nil:
		s.eachBatch(func(b *batch) {
			if share, ok := shares[b.filer()]; ok {
				b.pace.set(share)
			}
		})
	case ctx.Err() != nil, errors.Is(err, backup.ErrUnavailable):
		s.opts.Log.Debug("the limits of filers are not known now; batches in progress keep theirs", "error", err)
	default: // for instance the privileges of an earlier version
		s.warnLimits.Do(func() {
			s.opts.Log.Warn("this reader cannot see the limits of filers; a changed limit applies to new batches only", "error", err)
		})
	}
}

// filers returns the filers of the batches in progress.
func (s *Service) filers() (list []backup.FilerID) {
	seen := map[backup.FilerID]bool{}
	s.eachBatch(func(b *batch) {
		if id := b.filer(); !seen[id] {
			seen[id] = true
			list = append(list, id)
		}
	})
	return list
}
