package embedded

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/committer/commit"
)

// recordWithin is how long backups may keep on ending while the index is copied.
const recordWithin = 10 * time.Second

// Prune is prune.Run for a repository on one machine. An index that is rebuilt from a copy must not
// rely on packs that are gone, and an old index file that is put back must be detected. So Prune
// puts a copy of the index into the store after the index has recorded what is to be deleted, and
// before it is deleted. At the end it puts another copy if one is due: it no longer has the rows of
// deleted packs.
func Prune(ctx context.Context, idx *sqliteindex.Index, keys journal.Keys, lockDir string, o prune.Options) (r prune.Summary, err error) {
	unlock, err := lockPrune(ctx, idx, lockDir)
	if err != nil {
		return r, err
	}
	defer unlock()
	idx.GiveWayWhile(func() (bool, error) { return isBackingUpAny(lockDir) })
	copied := func(ctx context.Context) error { return copyNow(ctx, idx, o.Store, keys) }
	o.Index, o.BeforeDelete, o.BeforeRemove = idx, copied, copied
	if r, err = prune.Run(ctx, o); err != nil {
		return r, err
	}
	o.BeforeRemove = nil // rebase puts a copy before it removes anything
	removed, err := rebase(ctx, idx, keys, o, copied)
	if err != nil {
		return r, err
	}
	r.Snapshots += removed
	if r.Packs > 0 || r.Thinned > 0 || r.Versions > 0 || r.Snapshots > 0 {
		err = copyWith(ctx, idx, o.Store, keys, CopyIndexIfDue)
	}
	return r, err
}

// lockPrune keeps other processes from pruning until unlock is called. It fails with prune.ErrBusy
// while one does.
func lockPrune(ctx context.Context, idx *sqliteindex.Index, lockDir string) (unlock func(), err error) {
	path := filepath.Join(lockDir, "prune.lock")
	unlock, err = lockFile(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w (it holds %s)", prune.ErrBusy, path)
	}
	if err != nil {
		return nil, err
	}
	if err := endTerm(ctx, idx); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// Prunes reports whether a process on this machine prunes the repository, or does what excludes
// that.
func Prunes(lockDir string) (bool, error) {
	return isLocked(filepath.Join(lockDir, "prune.lock"))
}

// endTerm ends the term of a process that was killed. Without the lock, which this process has, no
// other process prunes.
func endTerm(ctx context.Context, idx *sqliteindex.Index) error {
	leaders, err := idx.Leaders(ctx)
	if err != nil {
		return err
	}
	for _, l := range leaders {
		if l.Role == prune.Role {
			return idx.Resign(ctx, l.Term)
		}
	}
	return nil
}

// WriteRecords writes the records of snapshots that have ended, and of which the store has none:
// their processes died, or they were cancelled. The index is not copied without these records, and
// no command but the next backup would write them. It also writes the catalog if it has changed, so
// that an index that is rebuilt from the store knows what is forgotten.
func WriteRecords(ctx context.Context, idx commit.Index, s store.Store, keys journal.Keys) error {
	return commit.WriteRecords(ctx, commit.Parts{Index: idx, Store: s, Keys: keys})
}

// copyNow puts a copy of the index into the store, after what the store lacks of records and the
// catalog.
func copyNow(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys) error {
	return copyWith(ctx, idx, s, keys, CopyIndex)
}

// copyWith calls put, which is CopyIndex or CopyIndexIfDue, after it has written what the store
// lacks of records and the catalog. Backups may end meanwhile, and then it begins again.
func copyWith(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, put func(_ context.Context, _ *sqliteindex.Index, _ store.Store, _ journal.Keys, changed, now time.Time) error) error {
	for end := time.Now().Add(recordWithin); ; loop.Pause(ctx, recordWithin/100) {
		if err := WriteRecords(ctx, idx, s, keys); err != nil {
			return fmt.Errorf("write the missing records of snapshots: %w", err)
		}
		now := time.Now()
		err := put(ctx, idx, s, keys, now, now)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errNoRecord) || now.After(end) || ctx.Err() != nil {
			return fmt.Errorf("copy the index into the store: %w", err)
		}
	}
}
