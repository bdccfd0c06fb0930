package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/store"
)

// The exit statuses of bctl. They never change.
const (
	exitDone         = 0
	exitFailed       = 1
	exitUsage        = 2
	exitIncomplete   = 3  // committed or restored, except for some files
	exitNoRepository = 10 // or its index is lost, damaged or older than the store
	exitRunning      = 11
	exitWrongKey     = 12
	exitInterrupted  = process.ExitInterrupted
)

// errIncomplete: the command completed, and has already reported the files that failed.
var errIncomplete = errors.New("some files are missing")

// exitStatus is the only place where errors are mapped to statuses.
func exitStatus(err error) int {
	var wrongUse *usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &wrongUse):
		return exitUsage
	case errors.Is(err, process.ErrInterrupted):
		return exitInterrupted
	case errors.Is(err, backup.ErrNoRepository), errors.Is(err, sqliteindex.ErrDamaged), errors.Is(err, repo.ErrIndexOld),
		errors.Is(err, errNotAccepted):
		return exitNoRepository
	case errors.Is(err, backup.ErrRunning):
		return exitRunning
	case errors.Is(err, backup.ErrWrongKey):
		return exitWrongKey
	case isIncomplete(err):
		return exitIncomplete
	}
	return exitFailed
}

// isIncomplete reports whether an error is errIncomplete. If that is joined with another error, the
// other one decides.
func isIncomplete(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all := joined.Unwrap()
		return len(all) == 1 && isIncomplete(all[0])
	}
	return err == errIncomplete //nolint:errorlint // see above
}

// exit reports the error to the user and returns the exit status.
func (a *app) exit(ctx context.Context, err error) int {
	a.term.clear()
	if err == nil {
		return exitDone
	}
	// If the context ended because of a signal, the signal is the cause of every failure.
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), process.ErrInterrupted) {
		err = errors.Join(process.ErrInterrupted, err)
	}
	status := exitStatus(err)
	if status == exitIncomplete {
		return status
	}
	text := message(err)
	if a.serves.Load() {
		if status == exitInterrupted {
			a.log.Info("stopped before its dependencies were available")
		} else {
			a.log.Error("service failed", "error", text)
		}
		return status
	}
	if a.json {
		a.print(errorJSON{Type: "error", Error: text})
	}
	a.term.println(a.term.wrapped("bctl: " + text))
	return status
}

// message returns the text of err for users.
func message(err error) string {
	if errors.Is(err, process.ErrInterrupted) {
		return "interrupted"
	}
	return err.Error() + advice(err)
}

// advice returns advice for errors of the operating system, wherever they occurred; the errors
// themselves name the place.
func advice(err error) string {
	var unwritten *restore.SyncError
	var noRoom *restore.SpaceError
	var unfinished *restore.UnfinishedError
	switch {
	case errors.As(err, &unfinished):
		return "; run that again first, or delete that directory if nobody needs the changes"
	case errors.As(err, &noRoom):
		return "; make room, select less, or give --ignore-space if the target compresses files"
	case errors.As(err, &unwritten):
		// --verify would not suffice: while the file system is mounted, it may read data from
		// memory that is not on the disk.
		return "; repair the disk or free space there, then run the command again with --overwrite always"
	case errors.Is(err, syscall.EROFS):
		return "; mount it read-write"
	case errors.Is(err, store.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "; free space there, then run the command again"
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.EFBIG):
		return fileLimit()
	}
	return ""
}

// fileLimit describes this process's limit on file sizes, if there is one. SQLite reports an
// input/output error, and not that it reached the limit.
func fileLimit() string {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit) != nil || limit.Cur > math.MaxInt64 {
		return ""
	}
	return fmt.Sprintf("; this process cannot write files larger than %s (ulimit -f): raise the limit if that is the cause", size(int64(limit.Cur)))
}
