package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A fileRebuild rebuilds an index file. A new file is complete before it is moved to its place, and
// a damaged one is not deleted.
type fileRebuild struct {
	*indexCommand
	from *origin
	path string
	// catchesUp: there must be an index.
	catchesUp bool
	result    rebuild.Result
}

// sidecars are the files of a SQLite database. Its log may have changes that the main file lacks.
var sidecars = []string{"-wal", "-shm", ""}

// run rebuilds the index, or brings it up to date, in a new file, and prints the result. What is
// there stays as it is until that is complete, and accepted.
func (r *fileRebuild) run(ctx context.Context) error {
	whole, current, err := r.present(ctx)
	switch {
	case err != nil:
		return err
	case current && r.catchesUp:
		return errNotOlder
	case current:
		return fmt.Errorf("%s is undamaged and has all snapshots that the store has, so it was not replaced (to replace it, move it away): %w", r.path, backup.ErrExists)
	case !whole && r.catchesUp:
		return fmt.Errorf("%s is damaged, or there is none: run bctl index rebuild: %w", r.path, backup.ErrNoRepository)
	}
	fresh := r.path + ".new"
	if err := remove(fresh); err != nil { // of an interrupted rebuild
		return err
	}
	if whole {
		r.copied = true
		err = r.copy(ctx, fresh)
	} else {
		err = r.make(ctx, fresh)
	}
	if err != nil {
		return errors.Join(err, remove(fresh))
	}
	if r.result.Refused {
		return errors.Join(r.report(ctx, fresh), remove(fresh))
	}
	if err := r.replace(fresh); err != nil {
		return err
	}
	return r.report(ctx, r.path)
}

// copy brings a copy of the present index up to date.
func (r *fileRebuild) copy(ctx context.Context, fresh string) error {
	present, err := sqliteindex.Open(ctx, r.path)
	if err != nil {
		return err
	}
	err = present.Copy(ctx, func(file io.Reader, _ int64) error {
		to, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, file)
		return errors.Join(err, to.Close())
	})
	if err := errors.Join(err, present.Close()); err != nil {
		return err
	}
	return r.fill(ctx, fresh, 0)
}

// make makes an index from the newest copy in the store, or from nothing.
func (r *fileRebuild) make(ctx context.Context, fresh string) error {
	copied := int64(0)
	if !r.withoutCopy {
		made, err := embedded.RebuildIndex(ctx, r.from.store, r.from.trust, fresh)
		for _, damaged := range made.Damaged {
			r.app.note("skipped a copy of the index: %v", damaged)
		}
		if err != nil && !errors.Is(err, backup.ErrNotFound) && !errors.Is(err, backup.ErrCorrupt) {
			return err
		}
		if err == nil {
			copied, r.copied = made.Sequence, true
		}
	}
	err := r.fill(ctx, fresh, copied)
	if !errors.Is(err, backup.ErrExists) || copied == 0 {
		return err
	}
	r.app.note("the newest copy of the index is not used, because it has other snapshots than the store: %v", err)
	r.copied = false
	if err := remove(fresh); err != nil {
		return err
	}
	return r.fill(ctx, fresh, 0)
}

// present examines the existing index. whole is false if there is no index, or a damaged one.
// current is false if it is older than the store.
func (r *fileRebuild) present(ctx context.Context) (whole, current bool, err error) {
	if _, err := os.Lstat(r.path); errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	i, err := sqliteindex.OpenReadOnly(ctx, r.path)
	if err != nil {
		if errors.Is(err, backup.ErrCorrupt) {
			err = nil
		}
		return false, false, err
	}
	defer i.Close()
	of, err := i.Repository(ctx)
	if err != nil {
		if !errors.Is(err, backup.ErrUnavailable) {
			err = nil
		}
		return false, false, err
	}
	if of.ID != r.from.object.ID {
		return false, false, r.otherRepository(of.ID, r.from)
	}
	facts, err := i.Inspect(ctx)
	if errors.Is(err, backup.ErrCorrupt) || err == nil && len(facts.Damage) > 0 {
		return false, false, nil
	}
	if err == nil {
		err = i.CheckSchema(ctx)
	}
	if err != nil {
		return false, false, err
	}
	if _, damaged, _, err := i.CheckPages(ctx); err != nil || damaged > 0 {
		return false, false, err
	}
	err = repo.CheckCurrent(ctx, r.from.store, i, &of)
	if errors.Is(err, repo.ErrIndexOld) {
		return true, false, nil
	}
	return true, err == nil, err
}

// fill makes the index at path what the store describes. copied is the sequence of the copy that it
// is, if it is one.
func (r *fileRebuild) fill(ctx context.Context, path string, copied int64) error {
	i, err := sqliteindex.Open(ctx, path)
	if err != nil {
		return err
	}
	defer i.Close()
	if _, _, err := i.Migrate(ctx); err != nil {
		return err
	}
	if _, err := i.Repository(ctx); errors.Is(err, backup.ErrNoRepository) {
		err = i.CreateRepository(ctx, r.from.object.Repository)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	_, damaged, _, err := i.CheckPages(ctx)
	if err != nil {
		return err
	}
	if r.result, err = r.indexCommand.run(ctx, r.from, i, damaged > 0); err != nil {
		return err
	}
	if copied > 0 { // the copy was taken while it was being written
		if err := i.EndCopy(ctx, copied, sqliteindex.CopySound); err != nil {
			return err
		}
	}
	return r.accept(ctx, r.from, i, &r.result)
}

// replace moves the existing index aside and the new one to its place.
func (r *fileRebuild) replace(fresh string) error {
	aside := fmt.Sprintf("%s.%s", r.path, time.Now().UTC().Format("20060102T150405.000Z"))
	moved := false
	for _, file := range sidecars {
		switch err := os.Rename(r.path+file, aside+file); {
		case err == nil:
			moved = true
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if moved {
		r.app.note("%s was moved to %s", r.path, aside)
	}
	if err := os.Rename(fresh, r.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// remove deletes a SQLite database, if there is one.
func remove(path string) error {
	for _, file := range sidecars {
		if err := os.Remove(path + file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// report prints the result. The index is at path.
func (r *fileRebuild) report(ctx context.Context, path string) error {
	i, err := sqliteindex.OpenReadOnly(ctx, path)
	if err != nil {
		return err
	}
	defer i.Close()
	return r.print(ctx, i, &r.result)
}
