package sqliteindex

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
)

// An index on one machine is a file, which can be replaced by an older copy. The methods here
// determine which objects in the store belong to this file.

// Unknown returns those of the snapshots that the index has never contained.
func (x *Index) Unknown(ctx context.Context, ids []backup.SnapshotID) (unknown []backup.SnapshotID, err error) {
	list := make([]uuid.UUID, len(ids))
	for n, id := range ids {
		list[n] = uuid.UUID(id)
	}
	const query = `SELECT value FROM json_each($1)
		WHERE value NOT IN (SELECT id FROM snapshots) AND value NOT IN (SELECT id FROM lost_snapshots)
		AND value NOT IN (SELECT id FROM removed_snapshots)`
	err = x.backend.each(ctx, query, []any{dialectSQLite.List(list)}, func(rows *sql.Rows) error {
		var id uuid.UUID
		err := rows.Scan(&id)
		unknown = append(unknown, backup.SnapshotID(id))
		return err
	})
	return unknown, err
}

// Lose records snapshots as lost. No later snapshot of a shard gets the number of one of them.
func (x *Index) Lose(ctx context.Context, lost []index.LostSnapshot) error {
	return x.backend.Update(ctx, entindex.Durable, func(ctx context.Context, tx *entindex.Tx) error {
		for _, s := range lost {
			if _, err := tx.ExecContext(ctx, "INSERT INTO lost_snapshots (id) VALUES ($1) ON CONFLICT DO NOTHING", uuid.UUID(s.ID)); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE shards SET last_number = max(last_number, $1) WHERE shard_key = $2", int64(s.Number), uuid.UUID(s.Shard)); err != nil {
				return err
			}
		}
		return nil
	})
}

// AdoptAmendment notes an amended record that is in the store, and that this index has not made: it
// is stale, because the index has what the amendment lacks.
func (x *Index) AdoptAmendment(ctx context.Context, a index.Amendment) error {
	if err := x.Amend(ctx, index.Term{}, a); err != nil {
		return err
	}
	return x.backend.Update(ctx, entindex.Durable, func(ctx context.Context, tx *entindex.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE amendments SET stale = true WHERE snapshot = $1", uuid.UUID(a.ID))
		return err
	})
}

// A CopyState is the progress of a copy of the index.
type CopyState int

// The states of copies.
const (
	CopyBegun CopyState = iota // some parts may be in the store
	CopyWhole                  // all parts are in the store
	CopySound                  // all parts are, and the index passed Check just before
)

// Copies returns the states of the copies of this index, by their sequences.
func (x *Index) Copies(ctx context.Context) (map[int64]CopyState, error) {
	copies := map[int64]CopyState{}
	err := x.backend.each(ctx, "SELECT sequence, state FROM index_copies", nil, func(rows *sql.Rows) error {
		var sequence int64
		var state CopyState
		err := rows.Scan(&sequence, &state)
		copies[sequence] = state
		return err
	})
	return copies, err
}

// NewestCopy implements repo.History.
func (x *Index) NewestCopy(ctx context.Context) (sequence int64, err error) {
	err = x.backend.each(ctx, "SELECT coalesce(max(sequence), 0) FROM index_copies", nil, func(rows *sql.Rows) error {
		return rows.Scan(&sequence)
	})
	return sequence, err
}

// Bytes returns the size of the index file, with what is in its log.
func (x *Index) Bytes(ctx context.Context) (bytes int64, err error) {
	err = x.backend.each(ctx, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", nil, func(rows *sql.Rows) error {
		return rows.Scan(&bytes)
	})
	return bytes, err
}

// LastLogged returns the time of the latest entry of the log; zero: there is none.
func (x *Index) LastLogged(ctx context.Context) (at time.Time, err error) {
	err = x.backend.each(ctx, "SELECT coalesce(max(time), 0) FROM log", nil, func(rows *sql.Rows) error {
		var micros int64
		err := rows.Scan(&micros)
		if micros != 0 {
			at = time.UnixMicro(micros).UTC()
		}
		return err
	})
	return at, err
}

// BeginCopy returns the sequence of a copy that is to be written. It is at least atLeast, and
// greater than those of all previous copies.
func (x *Index) BeginCopy(ctx context.Context, atLeast int64) (sequence int64, err error) {
	err = x.backend.Update(ctx, entindex.Durable, func(ctx context.Context, tx *entindex.Tx) error {
		return tx.Each(ctx, `INSERT INTO index_copies (sequence, state)
			SELECT max($1, coalesce(max(sequence) + 1, 1)), 0 FROM index_copies RETURNING sequence`, []any{atLeast},
			func(scan func(...any) error) error { return scan(&sequence) })
	})
	return sequence, err
}

// EndCopy records that all parts of a copy are in the store.
func (x *Index) EndCopy(ctx context.Context, sequence int64, state CopyState) error {
	return x.setCopy(ctx, "INSERT INTO index_copies (sequence, state) VALUES ($1, $2) ON CONFLICT (sequence) DO UPDATE SET state = $2", sequence, int(state))
}

// ForgetCopy records that the store has no part of a copy any more.
func (x *Index) ForgetCopy(ctx context.Context, sequence int64) error {
	return x.setCopy(ctx, "DELETE FROM index_copies WHERE sequence = $1", sequence)
}

func (x *Index) setCopy(ctx context.Context, statement string, args ...any) error {
	return x.backend.Update(ctx, entindex.Relaxed, func(ctx context.Context, tx *entindex.Tx) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
}

// InPlace returns an error if the file at the index's path, or its log, is not the open one. In
// that case it has been replaced or removed, and new writes are lost.
func (x *Index) InPlace() error {
	b := x.backend
	now, err := os.Stat(b.path)
	if err != nil {
		return fileFailure(b.path, err)
	}
	replaced := &failure{b.path, "the file, or its log, was replaced while it was open", []error{backup.ErrUnavailable}}
	if b.opened != nil && !os.SameFile(b.opened, now) {
		return replaced
	}
	b.logging.Lock()
	defer b.logging.Unlock()
	switch log, err := os.Stat(b.path + "-wal"); {
	case b.log == nil && err == nil:
		b.log = log // SQLite creates it on first use, and keeps it while any process has the index open
	case b.log != nil && (err != nil || !os.SameFile(b.log, log)):
		return replaced
	}
	return nil
}

// ErrDamaged reports that the file is damaged, or was never an index. It is a backup.ErrCorrupt.
var ErrDamaged = fmt.Errorf("damaged index: %w", backup.ErrCorrupt)
