package pgindex

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

var errNotWritable = errors.New("it is read-only: a standby, or default_transaction_read_only is set")

// fullFor is how long a write that failed counts. Small writes succeed on a full disk, so a success
// does not show that there is space again. A committer that is not ready applies no results; after
// this time it tries again.
const fullFor = 15 * time.Second

// A fullDisk knows whether the server had no space for a write.
type fullDisk struct {
	mu   sync.Mutex
	last time.Time
	err  error
}

// note notes the outcome of a transaction.
func (f *fullDisk) note(err error, now time.Time) {
	if err == nil || !isCode(err, "53100") {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.err = now, err
}

// refused returns why a recent write failed.
func (f *fullDisk) refused(now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil || now.Sub(f.last) > fullFor {
		return nil
	}
	return f.err
}

// Writable returns nil if the server accepts writes, and an error that wraps backup.IndexAway if it
// does not: another server may be the primary now, or its disk is full.
func (x *Index) Writable(ctx context.Context) error {
	var readOnly bool
	err := x.backend.pool.QueryRow(ctx, "SELECT current_setting('transaction_read_only') = 'on'").Scan(&readOnly)
	if err != nil {
		return x.backend.Wrap(err)
	}
	if readOnly {
		return fmt.Errorf("index at %s: %w: %w", x.backend.address, backup.IndexAway, errNotWritable)
	}
	if err := x.backend.full.refused(time.Now()); err != nil {
		return fmt.Errorf("index at %s: %w: its disk is full: %w", x.backend.address, backup.IndexAway, err)
	}
	return nil
}
