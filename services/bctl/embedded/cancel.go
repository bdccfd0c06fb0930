package embedded

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Cancel ends a running snapshot. If no process was making it, the snapshot has failed when Cancel
// returns, and ended is true. Otherwise the process is requested to end it, and does so soon. If
// the snapshot is not running, the error is backup.ErrNotFound.
func Cancel(ctx context.Context, idx index.Index, lockDir string, s *backup.Snapshot, reason string) (ended bool, err error) {
	unlock, err := lockShard(lockDir, s.Shard)
	if errors.Is(err, backup.ErrRunning) {
		return false, idx.RequestCancel(ctx, s.ID, reason)
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	return true, idx.Fail(ctx, s.ID, reason, time.Time{})
}
