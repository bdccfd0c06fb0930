package sqliteindex

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/bctl/bctl/internal/index/entindex"
)

// OpenReadOnly opens the index in the file for a command that only reads. It also works where
// nothing can be written: on a read-only or full file system, and for a user who may only read. The
// methods that write fail.
//
// To read a database in WAL mode, SQLite needs a file beside it (the -shm), which it creates. If it
// cannot, the log is read into memory instead; see openStill.
func OpenReadOnly(ctx context.Context, path string) (*Index, error) {
	b, err := newBackend(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.path); err != nil {
		return nil, fileFailure(b.path, err)
	}
	err = entindex.Retry(ctx, isBusy, func() error {
		// Read-write as far as the user may, so that the files of the log are recovered and removed
		// as by every other process.
		err := b.try(ctx, "mode=rw&"+readerCache)
		if !cannotWrite(err) {
			return err
		}
		return b.openStill(ctx)
	})
	if err != nil {
		return nil, errors.Join(b.Wrap(err), b.Close())
	}
	return &Index{entindex.New(b), b}, nil
}

// try opens the readers, and reads with one of them.
func (b *backend) try(ctx context.Context, more string) error {
	if b.readers != nil {
		b.readers.Close() // of an earlier try, which failed
	}
	err := b.openReaders(more)
	if err != nil {
		return err
	}
	var version int
	return b.readers.QueryRowContext(ctx, "PRAGMA schema_version").Scan(&version)
}

// cannotWrite reports whether err is SQLite's error when it cannot create its -shm or -wal.
func cannotWrite(err error) bool {
	switch resultCode(err) & 0xff {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_PERM:
		return true
	}
	return false
}

// openStill opens an index that does not change while it is open. The log is included: SQLite keeps
// its index of the log in memory if it has the database exclusively (locking_mode), and takes no
// locks (unix-none); holdStill takes them in its place. Without a log, the database file is
// complete (immutable).
func (b *backend) openStill(ctx context.Context) error {
	b.letGo()
	if err := b.holdStill(); err != nil {
		return err
	}
	// The cache size of the readers is omitted: the driver would set it before the locking mode,
	// and that is too early.
	const inMemory = "mode=ro&_pragma=temp_store(MEMORY)&"
	_, err := os.Stat(b.path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return b.try(ctx, inMemory+"immutable=1")
	}
	return b.try(ctx, inMemory+"vfs=unix-none&_pragma=locking_mode(EXCLUSIVE)")
}

// Positions of SQLite's locks, which its documentation fixes permanently: those of readers in the
// database (https://sqlite.org/fileformat2.html#locking) and in the -shm
// (https://sqlite.org/walformat.html#wal_locks).
const (
	sharedFirst, sharedBytes = 0x40000000 + 2, 510
	readLocks, readLockBytes = 123, 5
)

// holdStill takes the locks that keep other processes from copying the log into the database, from
// restarting the log, and from removing it. They may append to it. If there is no -shm and none can
// be created, no process can write here. A process that can write by another way (another mount,
// another user) must be kept away by the operator.
func (b *backend) holdStill() error {
	for _, lock := range []struct {
		suffix        string
		start, length int64
	}{{"", sharedFirst, sharedBytes}, {"-shm", readLocks, readLockBytes}} {
		file, err := os.Open(b.path + lock.suffix)
		if errors.Is(err, fs.ErrNotExist) && lock.suffix != "" {
			continue
		}
		if err != nil {
			return fileFailure(b.path, err)
		}
		b.locks = append(b.locks, file)
		// The lock belongs to the open file, not to the process: closing another descriptor does
		// not release it.
		at := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: lock.start, Len: lock.length}
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &at); err != nil {
			return fileFailure(b.path, err)
		}
	}
	return nil
}

// letGo releases the locks.
func (b *backend) letGo() {
	for _, file := range b.locks {
		file.Close()
	}
	b.locks = nil
}
