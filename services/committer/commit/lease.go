package commit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/backup"
)

// All committers notice that a snapshot is complete, and a segment may take minutes to write. So
// one committer takes the lease of the commit, which is in the index, and writes the segment. If
// that committer dies, another takes over when the lease has expired. If two committers write
// nevertheless, the index commits one segment, and the other is an orphan.

// errLeaseLost means that another committer has the lease, or that the snapshot has ended.
var errLeaseLost = errors.New("another committer commits the snapshot, or it has ended")

// releaseWithin bounds how long a committer tries to return a lease, possibly while it stops.
const releaseWithin = 2 * time.Second

// keepLease renews the lease of a commit until release is called. release can return the lease, so
// that another committer need not wait for it to expire. The context is done when the lease is
// lost.
func (s *Service) keepLease(ctx context.Context, id backup.SnapshotID) (leased context.Context, release func(giveBack bool)) {
	leased, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		loop.Every(leased, s.times.lease/3, func() {
			mine, err := s.Index.ClaimCommit(leased, id, s.holder, s.times.lease)
			switch {
			case err != nil: // if the lease expires, another committer does the work again
				s.log.Debug("renewing a commit lease failed, will retry", "snapshot", id.Short(), "error", err)
			case !mine:
				end(errLeaseLost)
			}
		})
	})
	return leased, func(giveBack bool) {
		end(nil)
		renewing.Wait()
		if !giveBack {
			return
		}
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer cancel()
		if _, err := s.Index.ClaimCommit(releasing, id, s.holder, 0); err != nil {
			s.log.Debug("ending a commit lease failed: it expires by itself", "snapshot", id.Short(), "error", err)
		}
	}
}
