package pgindex

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
)

var errNotWritable = errors.New("it is read-only: a standby, or default_transaction_read_only is set")

// Writable returns nil if the server accepts writes, and an error that wraps backup.IndexAway if it
// does not: another server may be the primary now.
func (x *Index) Writable(ctx context.Context) error {
	var readOnly bool
	err := x.backend.pool.QueryRow(ctx, "SELECT current_setting('transaction_read_only') = 'on'").Scan(&readOnly)
	if err != nil {
		return x.backend.Wrap(err)
	}
	if readOnly {
		return fmt.Errorf("index at %s: %w: %w", x.backend.address, backup.IndexAway, errNotWritable)
	}
	return nil
}
