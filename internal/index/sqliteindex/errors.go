package sqliteindex

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/bctl/bctl/internal/backup"
)

// A failure is an operation that SQLite could not do, in the operating system's words. SQLite's own
// text is no more than a number to most people; its error stays in the chain.
type failure struct {
	path, text string
	is         []error
}

func (f *failure) Error() string   { return "index " + f.path + ": " + f.text }
func (f *failure) Unwrap() []error { return f.is }

// errReadOnly reports an attempt to write to an index that was opened for reading.
var errReadOnly = fmt.Errorf("the index is open read-only: %w", backup.ErrInvalid)

const rebuildAdvice = "bctl index rebuild recreates it from a copy in the store"

// isBusy reports whether another process held a lock.
func isBusy(err error) bool {
	code := resultCode(err) & 0xff
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED || errors.Is(err, syscall.EAGAIN)
}

// resultCode returns SQLite's extended result code, 0 if err is not an error of SQLite.
func resultCode(err error) int {
	var failed *sqlite.Error
	if !errors.As(err, &failed) {
		return 0
	}
	return failed.Code()
}

// Wrap implements entindex.Backend.
func (b *backend) Wrap(err error) error {
	var known *failure
	code := resultCode(err)
	if code == 0 || errors.As(err, &known) {
		return err
	}
	text, is := explain(b.path, code)
	if text == "" {
		return err
	}
	return &failure{b.path, text, append(is, err)}
}

// wrapScan is Wrap for an error of reading a row. A value of another type than its column's is
// damage that SQLite has not noticed. For its errors, package sql has no type.
func (b *backend) wrapScan(err error) error {
	if !strings.HasPrefix(err.Error(), "sql: Scan error") {
		return err
	}
	text, is := explain(b.path, sqlite3.SQLITE_CORRUPT)
	return &failure{b.path, text, append(is, err)}
}

// explain returns the meaning of a result code as text, and the errors that it counts as. text is
// empty for a code that does not concern the file.
func explain(path string, code int) (text string, is []error) {
	switch code & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return "it is damaged, or not an index (" + rebuildAdvice + ")", []error{ErrDamaged}
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return explainErrno(syscall.EAGAIN)
	case sqlite3.SQLITE_FULL:
		return explainErrno(syscall.ENOSPC)
	case sqlite3.SQLITE_NOMEM:
		return explainErrno(syscall.ENOMEM)
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return explainErrno(probe(path, code))
	}
	return "", nil
}

// probe determines the system error that made SQLite fail, which SQLite knows but does not return.
func probe(path string, code int) syscall.Errno {
	switch code {
	case sqlite3.SQLITE_IOERR_SHMSIZE: // only lack of space makes extending a file fail
		return syscall.ENOSPC
	case sqlite3.SQLITE_IOERR_NOMEM:
		return syscall.ENOMEM
	case sqlite3.SQLITE_READONLY_DBMOVED:
		return syscall.ENOENT
	}
	var errno syscall.Errno
	directory := filepath.Dir(path)
	var status unix.Statfs_t
	for _, try := range []func() error{
		func() error { return notDirectory(path) },
		func() error { return unix.Access(path, unix.R_OK) },
		func() error { return unix.Access(path, unix.W_OK) },
		func() error { return unix.Access(directory, unix.W_OK|unix.X_OK) },
		func() error { return unix.Statfs(directory, &status) },
	} {
		if err := try(); errors.As(err, &errno) {
			return errno
		}
	}
	if status.Bavail == 0 || status.Files > 0 && status.Ffree == 0 {
		return syscall.ENOSPC
	}
	return syscall.EIO
}

// notDirectory returns the error of a stat of path, or EISDIR.
func notDirectory(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return syscall.EISDIR
	}
	return err
}

// explainErrno is explain for an error of the operating system.
func explainErrno(errno syscall.Errno) (text string, is []error) {
	switch errno {
	case syscall.EAGAIN:
		return "another process is writing to it, and has not finished in time; try again", []error{backup.ErrUnavailable, errno}
	case syscall.ENOSPC, syscall.EDQUOT:
		return "disk full", []error{backup.ErrUnavailable, errno}
	case syscall.EROFS:
		return "read-only file system", []error{backup.ErrUnavailable, errno}
	case syscall.EACCES, syscall.EPERM:
		return fmt.Sprintf("permission denied to user %d; run bctl as the user who created the repository", os.Getuid()), []error{errno}
	case syscall.ENOTDIR:
		return "a parent of it in the path is not a directory", []error{errno}
	case syscall.EISDIR:
		return "it is a directory, not an index file", []error{errno}
	case syscall.ENOENT:
		return "it does not exist, or was replaced while it was open", []error{backup.ErrNotFound, errno}
	}
	if errno == syscall.EIO {
		return fmt.Sprintf("%v (see the system's log)", errno), []error{backup.ErrUnavailable, errno}
	}
	return errno.Error(), []error{backup.ErrUnavailable, errno}
}

// fileFailure is the failure of an operation on the file itself.
func fileFailure(path string, err error) error {
	var errno syscall.Errno
	if err == nil || !errors.As(err, &errno) {
		return err
	}
	text, is := explainErrno(errno)
	if errors.Is(err, fs.ErrNotExist) {
		text = errno.Error()
	}
	return &failure{path, text, append(is, err)}
}
