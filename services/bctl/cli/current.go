package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

// An index on one machine is a file: it may be an old copy of itself, and it may be replaced while
// another process writes to it. An index in Postgres may have been restored from an earlier dump.

// lookWithin is how long a command that needs only the index waits for the store.
const lookWithin = 5 * time.Second

// checkCurrent returns an error that wraps repo.ErrIndexOld if an index is older than its store.
func checkCurrent(ctx context.Context, i index.Index, s store.Store) error {
	r, err := i.Repository(ctx)
	if err != nil {
		return err
	}
	if x, local := i.(*sqliteindex.Index); local {
		return repo.CheckCurrent(ctx, s, x, &r)
	}
	err = repo.Compare(ctx, s, i, &r)
	if errors.Is(err, fs.ErrPermission) { // the key of a pruner may list what is signed, but not read it
		err = repo.Compare(ctx, s, i, nil)
	}
	return err
}

// lookCurrent is checkCurrent for a command that needs only the index, so it does not wait long for
// the store. known is false if the store does not respond.
func (a *app) lookCurrent(ctx context.Context, i index.Index) (known bool, err error) {
	if a.cfg.Store.URL == "" {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	once := *a.cfg
	once.Store.Retry = -1
	s, err := open.Store(ctx, &once, false, a.log)
	if err != nil {
		return false, err
	}
	defer s.Close()
	err = checkCurrent(ctx, i, s)
	return err == nil || errors.Is(err, repo.ErrIndexOld), err
}

// noteCurrent prints a note if the index is older than its store, or if the store does not respond.
func (a *app) noteCurrent(ctx context.Context, i index.Index) {
	switch known, err := a.lookCurrent(ctx, i); {
	case err == nil || ctx.Err() != nil:
	case known:
		a.note("%v", err)
	default:
		a.note("cannot check whether the index is older than the store: %v", err)
	}
}

// bringsUpToDate is the command that brings an index up to date that is older than its store.
func (a *app) bringsUpToDate() string {
	if _, local := a.cfg.IndexPath(); local {
		return "bctl index rebuild"
	}
	return "bctl index catchup"
}

// lockIndex prevents bctl index rebuild from replacing the index while this process writes to it.
// If alone is set, it prevents all other processes from writing to it. The operating system
// releases the lock when the process ends.
func (a *app) lockIndex(alone bool) error {
	dir, err := a.cfg.LockDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, "index.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	how, others := syscall.LOCK_SH, "bctl index rebuild or bctl purge is running"
	if alone {
		how, others = syscall.LOCK_EX, "a backup or another command writes to the index"
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return &busyError{fmt.Sprintf("%s; run this command again when it has ended (it holds %s)", others, path)}
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	a.indexLock = f
	return nil
}

// shareIndexLock lets other processes write to the index again, after lockIndex with alone set.
func (a *app) shareIndexLock() error {
	if err := syscall.Flock(int(a.indexLock.Fd()), syscall.LOCK_SH); err != nil {
		return fmt.Errorf("%s: %w", a.indexLock.Name(), err)
	}
	return nil
}

// A busyError is a backup.ErrRunning that does not concern a single shard.
type busyError struct{ text string }

func (e *busyError) Error() string        { return e.text }
func (e *busyError) Is(target error) bool { return target == backup.ErrRunning }

// whenEnded is the error of a command that another process keeps from running.
func whenEnded(err error) error {
	return &busyError{err.Error() + "; run this command again when that has ended"}
}

// holdIndex takes the lock for a SQLite index that was opened for writing. logged reports that the
// index had a log before it was opened: unless another process has it open, a process was killed.
// The log belongs to the file to which that process wrote. If the file was replaced, the
// combination of the two is damaged.
func (a *app) holdIndex(ctx context.Context, i index.Index, logged bool) error {
	x, local := i.(*sqliteindex.Index)
	if !local || a.indexLock != nil {
		return nil
	}
	if logged {
		if err := a.checkAlone(ctx, x); !errors.Is(err, backup.ErrRunning) {
			return err
		}
	}
	if err := a.lockIndex(false); err != nil {
		return err
	}
	return x.InPlace() // it may have been replaced before it was locked
}

// checkAlone checks the index while no other process writes to it, and then takes the lock. It
// fails with backup.ErrRunning if another process writes to it.
func (a *app) checkAlone(ctx context.Context, x *sqliteindex.Index) error {
	if err := a.lockIndex(true); err != nil {
		return err
	}
	err := x.InPlace()
	if err == nil {
		err = x.Check(ctx)
	}
	return errors.Join(err, a.shareIndexLock())
}

// indexLogged reports whether a SQLite index has a log with changes that are not in the file.
func (a *app) indexLogged() bool {
	path, local := a.cfg.IndexPath()
	if !local {
		return false
	}
	info, err := os.Stat(path + "-wal")
	return err == nil && info.Size() > 0
}
