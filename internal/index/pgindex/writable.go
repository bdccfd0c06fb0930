package pgindex

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

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

// lockedFor is how long another session may lock tables against writes before they count as locked.
// Postgres itself locks them for moments.
const lockedFor = 5 * time.Second

// A tableLock knows since when tables have been locked.
type tableLock struct {
	mu    sync.Mutex
	since time.Time // zero: they are not
}

// held reports whether tables that are locked now have been locked for long enough.
func (l *tableLock) held(tables []string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(tables) == 0 {
		l.since = time.Time{}
		return false
	}
	if l.since.IsZero() {
		l.since = now
	}
	return now.Sub(l.since) >= lockedFor
}

// selectLocked returns the tables against whose change other sessions hold locks. Requests that
// write to them wait, and do not fail.
const selectLocked = `
SELECT DISTINCT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.granted AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') AND l.pid <> pg_backend_pid()
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY 1`

// lockedTables returns the tables that other sessions have locked against writes.
func (x *Index) lockedTables(ctx context.Context) ([]string, error) {
	rows, err := x.backend.pool.Query(ctx, selectLocked)
	if err != nil {
		return nil, x.backend.Wrap(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, x.backend.Wrap(err)
	}
	return tables, nil
}

// Writable returns nil if the server accepts writes, and an error that wraps backup.IndexAway if it
// does not: another server may be the primary now, its disk is full, or somebody has locked tables.
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
	tables, err := x.lockedTables(ctx)
	if err != nil {
		return err
	}
	if x.backend.locked.held(tables, time.Now()) {
		return fmt.Errorf("index at %s: %w: another session has locked tables (%s): see pg_locks", x.backend.address, backup.IndexAway, strings.Join(tables, ", "))
	}
	return nil
}
