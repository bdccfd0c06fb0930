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
// nothing can be written: on a read-only or full file system, and for a user who may only read.
// The methods that write fail.
//
// SQLite needs a file beside the database to read one in WAL mode (the -shm), and makes it. Where
// it cannot, the log is read into memory instead; see openStill.
func OpenReadOnly(ctx context.Context, path string) (*Index, error) {
	b, err := newBackend(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.path); err != nil {
		return nil, fileFailure(b.path, err)
	}
	err = entindex.Retry(ctx, isBusy, func() error {
		// Read-write as far as the user may, so that the files of the log are put in order and
		// removed as they are by everybody else.
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

// try opens the readers, and reads with one.
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

// cannotWrite reports whether err is what SQLite says where it cannot make its -shm or -wal.
func cannotWrite(err error) bool {
	switch resultCode(err) & 0xff {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_PERM:
		return true
	}
	return false
}

// openStill opens an index that stays as it is while it is open. What is in the log counts: SQLite
// has its index of the log in memory where it takes the database to be its own (locking_mode) and
// makes no locks (unix-none), which holdStill does in their place. Where there is no log, the
// database is all that there is (immutable).
func (b *backend) openStill(ctx context.Context) error {
	b.letGo()
	if err := b.holdStill(); err != nil {
		return err
	}
	// Not the readers' cache size: the driver sets that first, and then the locking mode comes too late.
	const inMemory = "mode=ro&_pragma=temp_store(MEMORY)&"
	_, err := os.Stat(b.path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return b.try(ctx, inMemory+"immutable=1")
	}
	return b.try(ctx, inMemory+"vfs=unix-none&_pragma=locking_mode(EXCLUSIVE)")
}

// Where SQLite has its locks, which its documentation fixes for all time: those of readers in the
// database (https://sqlite.org/fileformat2.html#locking) and in the -shm
// (https://sqlite.org/walformat.html#wal_locks).
const (
	sharedFirst, sharedBytes = 0x40000000 + 2, 510
	readLocks, readLockBytes = 123, 5
)

// holdStill takes the locks that keep others from copying the log into the database, from
// beginning the log anew, and from removing it. They may add to it. Where there is no -shm, and none can be made,
// nobody can write here; somebody who can by another way (another mount, another user) has to be kept away by the operator.
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
		// Of the open file, not of the process: closing another one does not drop it.
		at := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: lock.start, Len: lock.length}
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &at); err != nil {
			return fileFailure(b.path, err)
		}
	}
	return nil
}

// letGo gives the locks back.
func (b *backend) letGo() {
	for _, file := range b.locks {
		file.Close()
	}
	b.locks = nil
}
