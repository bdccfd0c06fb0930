package commit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

// A snapshot cannot succeed if no worker of its site sees its tree. Walkers find that out at the
// root, and readers in the last attempt at a batch, which takes twice QueueLease. The keeper hears
// from the roster when each worker that is ready has handed the work back, and fails the snapshot.

// unseenLoop fails the snapshots whose trees no worker sees, until ctx is done.
func (s *Service) unseenLoop(ctx context.Context) {
	var settled map[flow.Unseen]bool // workers mention a snapshot for a while after its end
	for {
		select {
		case <-ctx.Done():
			return
		case list := <-s.opts.Unseen:
			now := map[flow.Unseen]bool{}
			for n := range list {
				if settled[list[n]] || s.failUnseen(ctx, &list[n]) {
					now[list[n]] = true
				}
			}
			settled = now
		}
	}
}

// failUnseen fails a snapshot if it is running, and of a filer of the site. It reports whether it
// need not be called again.
func (s *Service) failUnseen(ctx context.Context, u *flow.Unseen) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	snap, err := s.Index.Snapshot(ctx, u.Snapshot)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		return true
	case err != nil:
		if ctx.Err() == nil && !s.retry(err) {
			s.log.Warn("looking up a snapshot that no worker sees failed, will retry", "snapshot", u.Snapshot.Short(), "error", err)
		}
		return false
	case snap.State != backup.Running || backup.SiteName(snap.Filer.Site) != u.Site:
		return true
	}
	s.fail(ctx, u.Snapshot, unseenReason(&snap, u), nil)
	return false // until it is seen to have ended
}

// unseenReason returns why a snapshot fails whose tree no worker sees.
func unseenReason(snap *backup.Snapshot, u *flow.Unseen) string {
	verb, who := "read", fmt.Sprintf("none of the %d %ss of site %s sees it", u.Workers, u.Role, u.Site)
	if u.Role == flow.RoleWalker {
		verb = "walk"
	}
	if u.Workers == 1 {
		who = fmt.Sprintf("the only %s of site %s that is ready does not see it", u.Role, u.Site)
	}
	advice := "mount it there"
	if strings.HasPrefix(snap.Source, "nfs://") {
		advice = "export it to there"
	}
	reason := fmt.Sprintf("cannot %s %s: %s: %s, and back it up again", verb, snap.Source, who, advice)
	if u.Why != "" {
		reason += fmt.Sprintf(" (%s)", u.Why)
	}
	return reason
}
