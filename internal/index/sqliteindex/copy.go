package sqliteindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/bctl/bctl/internal/backup"
)

// copyTries is how often a copy waits for an empty log. Other processes may write to the log.
const copyTries = 20

// Copy calls read with the bytes of the database as it is now. They form a complete SQLite file.
// Other processes continue to read and write in the meantime.
func (x *Index) Copy(ctx context.Context, read func(file io.Reader, bytes int64) error) error {
	b := x.backend
	for range copyTries {
		done, err := b.copy(ctx, read)
		if done || err != nil {
			return b.Wrap(err)
		}
	}
	return fmt.Errorf("index in %s: not copied, because other processes keep writing to it: %w", b.path, backup.ErrUnavailable)
}

// copy moves the log into the database file, and then reads the file in a transaction. SQLite does
// not move a new log into the file while a transaction reads it, so the file does not change. done
// is false if another process has written in between.
func (b *backend) copy(ctx context.Context, read func(file io.Reader, bytes int64) error) (done bool, err error) {
	if err := b.checkpoint(ctx); err != nil {
		return false, err
	}
	tx, err := b.readers.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // it has only read
	var schema int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&schema); err != nil {
		return false, err
	}
	log, err := os.Stat(b.path + "-wal")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if log != nil && log.Size() > 0 {
		return false, nil
	}
	file, err := b.rawFile()
	if err != nil {
		return false, err
	}
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	return true, read(io.NewSectionReader(file, 0, info.Size()), info.Size())
}

// checkpoint empties the log.
func (b *backend) checkpoint(ctx context.Context) error {
	if err := b.take(ctx); err != nil {
		return err
	}
	defer b.give()
	var busy, logged, copied int
	return b.writer.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &logged, &copied)
}

// rawFile opens the database as a file. It must be closed after everything else, because closing it
// releases the locks that SQLite holds in this process.
func (b *backend) rawFile() (file *os.File, err error) {
	b.rawOpening.Lock()
	defer b.rawOpening.Unlock()
	if b.raw == nil {
		b.raw, err = os.Open(b.path)
	}
	return b.raw, err
}

func (b *backend) closeRaw() error {
	b.rawOpening.Lock()
	defer b.rawOpening.Unlock()
	if b.raw == nil {
		return nil
	}
	return b.raw.Close()
}
