package sqliteindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
)

const (
	// copyTries is how often an empty log is tried for. Other processes may write to the log.
	copyTries = 20
	// emptiedWithin is for how long one try waits for other processes that read the log.
	emptiedWithin = 5 * time.Second
	emptyEvery    = 50 * time.Millisecond
)

// Copy calls read with the bytes of the database as it is now. They form a complete SQLite file, of
// which the free pages are zero. Other processes continue to read and write in the meantime.
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
	if emptied, err := b.checkpoint(ctx); err != nil || !emptied {
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
	free, err := readFreePages(file, info.Size())
	if err != nil {
		return false, err
	}
	return true, read(&contentReader{file: file, bytes: info.Size(), free: free}, info.Size())
}

// checkpoint empties the log, unless other processes use it for longer than emptiedWithin. SQLite
// would wait for them with the lock of the writer, which they may need to end.
func (b *backend) checkpoint(ctx context.Context) (emptied bool, err error) {
	for end := time.Now().Add(emptiedWithin); ; loop.Pause(ctx, emptyEvery) {
		emptied, err = b.tryCheckpoint(ctx)
		if err != nil || emptied || time.Now().After(end) || ctx.Err() != nil {
			return emptied, err
		}
	}
}

func (b *backend) tryCheckpoint(ctx context.Context) (emptied bool, err error) {
	if err := b.take(ctx); err != nil {
		return false, err
	}
	defer b.give()
	defer func() { // also if ctx ends in between
		_, reset := b.writer.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout=%d", busyMilliseconds))
		err = errors.Join(err, reset)
	}()
	if _, err := b.writer.ExecContext(ctx, "PRAGMA busy_timeout=0"); err != nil {
		return false, err
	}
	var busy, logged, copied int
	err = b.writer.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &logged, &copied)
	return busy == 0, err
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
