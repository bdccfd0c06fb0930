package sqliteindex

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
)

// Vacuum writes the database file anew, so that it has nothing of what was deleted, and empties the
// log. It takes about as long as copying the file twice, and as much space meanwhile.
func (x *Index) Vacuum(ctx context.Context) error {
	b := x.backend
	if b.writer == nil {
		return errReadOnly
	}
	if err := b.vacuum(ctx); err != nil {
		return b.Wrap(fmt.Errorf("vacuum: %w", err))
	}
	for range copyTries {
		if emptied, err := b.checkpoint(ctx); err != nil || emptied {
			return b.Wrap(err)
		}
	}
	return fmt.Errorf("index in %s: its log still has old pages, because other processes read it: %w", b.path, backup.ErrUnavailable)
}

// vacuum uses a connection of its own, because the writer keeps temporary files in memory.
func (b *backend) vacuum(ctx context.Context) error {
	if err := b.take(ctx); err != nil {
		return err
	}
	defer b.give()
	db, err := sql.Open("sqlite", b.dsn("immediate", "_pragma=temp_store(FILE)"))
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "VACUUM")
	return err
}
