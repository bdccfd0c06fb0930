package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A rebuild rebuilds one index. The new index is complete before it is moved to its place, and the
// old one is not deleted.
type rebuild struct {
	app   *app
	store store.Store
	trust journal.Trust
	path  string

	// The records and copies in the store that the existing index does not know.
	unknown map[backup.SnapshotID]int // snapshots that the store has records of
	outdone int                       // records that a purge has amended since
	newest  int64                     // the newest copy that it has made
	newer   map[string]int64          // copies in the store that are newer

	made embedded.Rebuilt // zero if the existing index was kept
	lost []lostSnapshot
	// The number of pages of the index that do not match their digests: a restore of their
	// directories is incomplete.
	damaged int
	amended int // snapshots whose records a purge has amended since
	// removed has the snapshots that were forgotten and removed after the copy was written. They
	// are forgotten again.
	removed []backup.Snapshot
}

// A lostSnapshot has a record in the store, but is not in the index.
type lostSnapshot struct {
	index.LostSnapshot
	name      string // for display
	committed bool   // or its record is damaged
	damaged   bool   // or not signed
}

// sidecars are the files of a SQLite database. Its log may have changes that the main file lacks.
var sidecars = []string{"-wal", "-shm", ""}

func (r *rebuild) run(ctx context.Context) error {
	whole, err := r.present(ctx)
	if err != nil {
		return err
	}
	if whole && len(r.unknown)+r.outdone+len(r.newer) == 0 {
		return fmt.Errorf("%s is undamaged and has all snapshots that the store has, so it was not replaced (to replace it, move it away): %w", r.path, backup.ErrExists)
	}
	fresh := r.path + ".new"
	if err := remove(fresh); err != nil { // of an interrupted rebuild
		return err
	}
	made, err := embedded.RebuildIndex(ctx, r.store, r.trust, fresh)
	for _, damaged := range made.Damaged {
		r.app.note("skipped a copy of the index: %v", damaged)
	}
	switch none := errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt); {
	case none && whole:
		return r.stay(ctx)
	case err != nil:
		return err
	}
	if err := r.settle(ctx, fresh, made.Sequence); err != nil {
		return errors.Join(err, remove(fresh))
	}
	if whole && !r.isBetter(made.Sequence) {
		return errors.Join(remove(fresh), r.stay(ctx))
	}
	r.made = made
	return r.replace(fresh)
}

// isBetter reports whether a copy, which was settled, lacks less than the existing index. If both
// lack the same, a newer copy knows better which packs the store has: a prune has made it.
func (r *rebuild) isBetter(copied int64) bool {
	if len(r.lost)+r.amended < len(r.unknown)+r.outdone {
		return true
	}
	more := slices.ContainsFunc(r.lost, func(l lostSnapshot) bool {
		_, both := r.unknown[l.ID]
		return !both
	})
	return copied > r.newest && !more && r.amended <= r.outdone
}

// present examines the existing index, and finds out what it lacks. whole is false if there is no
// index, or a damaged one.
func (r *rebuild) present(ctx context.Context) (whole bool, err error) {
	if _, err := os.Lstat(r.path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	i, err := sqliteindex.OpenReadOnly(ctx, r.path)
	if err != nil {
		if errors.Is(err, backup.ErrCorrupt) {
			err = nil
		}
		return false, err
	}
	defer i.Close()
	of, err := i.Repository(ctx)
	if err != nil {
		if !errors.Is(err, backup.ErrUnavailable) {
			err = nil
		}
		return false, err
	}
	if of.ID != r.trust.Repository {
		return false, fmt.Errorf("%s is the index of repository %v, but %v holds %v: %w", r.path, of.ID, r.store, r.trust.Repository, backup.ErrWrongKey)
	}
	facts, err := i.Inspect(ctx)
	if errors.Is(err, backup.ErrCorrupt) || err == nil && len(facts.Damage) > 0 {
		return false, nil
	}
	if err == nil {
		err = i.CheckSchema(ctx)
	}
	if err != nil {
		return false, err
	}
	if _, damaged, _, err := i.CheckPages(ctx); err != nil || damaged > 0 {
		return false, err
	}
	if r.unknown, err = repo.Unknown(ctx, r.store, i); err != nil {
		return false, err
	}
	amended, err := repo.Amended(ctx, r.store, i)
	if err != nil {
		return false, err
	}
	r.outdone = len(amended)
	if r.newer, err = repo.Newer(ctx, r.store, i); err != nil {
		return false, err
	}
	r.newest, err = i.NewestCopy(ctx)
	return true, err
}

// stay keeps the existing index, because no copy has more snapshots.
func (r *rebuild) stay(ctx context.Context) error {
	r.app.note("%s was not replaced: no copy in the store has more snapshots", r.path)
	return r.settle(ctx, r.path, 0)
}

// settle determines which snapshots an index lacks, and makes the index accept that, so that
// backups continue from it. copied is the sequence of the copy from which the index was made, if
// any.
func (r *rebuild) settle(ctx context.Context, path string, copied int64) error {
	i, err := sqliteindex.Open(ctx, path)
	if err != nil {
		return err
	}
	defer i.Close()
	if _, _, err := i.Migrate(ctx); err != nil {
		return err
	}
	switch _, damaged, directories, err := i.CheckPages(ctx); {
	case err != nil:
		return err
	case damaged > 0:
		r.damaged = damaged
		r.app.note("%s has %s that do not match their digests, in %s; a restore names these directories", path, counted(damaged, "page"), some(directories, ", "))
	}
	unknown, err := repo.Unknown(ctx, r.store, i)
	if err != nil {
		return err
	}
	r.lost = nil
	lost := make([]index.LostSnapshot, len(unknown))
	for n, id := range slices.SortedFunc(maps.Keys(unknown), func(a, b backup.SnapshotID) int { return bytes.Compare(a[:], b[:]) }) {
		l, err := r.describe(ctx, id, unknown[id])
		if err != nil {
			return err
		}
		r.lost, lost[n] = append(r.lost, l), l.LostSnapshot
	}
	if err := i.Lose(ctx, lost); err != nil {
		return err
	}
	if err := r.forgetRemoved(ctx, i); err != nil {
		return err
	}
	if err := r.settleAmended(ctx, i); err != nil {
		return err
	}
	if copied > 0 { // the copy was taken while it was being written
		if err := i.EndCopy(ctx, copied, sqliteindex.CopySound); err != nil {
			return err
		}
	}
	return r.settleCopies(ctx, i)
}

// settleCopies makes an index current although the store has newer copies, which are damaged or
// lack more than the index. It begins a copy that is newer than these, and never ends it.
func (r *rebuild) settleCopies(ctx context.Context, i *sqliteindex.Index) error {
	newer, err := repo.Newer(ctx, r.store, i)
	if err != nil || len(newer) == 0 {
		return err
	}
	r.app.note("the store has newer copies of the index, which cannot be used. A prune may have moved or deleted packs since: run bctl doctor, which looks for lost packs")
	_, err = i.BeginCopy(ctx, slices.Max(slices.Collect(maps.Values(newer)))+1)
	return err
}

// describe returns what the store knows about a lost snapshot.
func (r *rebuild) describe(ctx context.Context, id backup.SnapshotID, amendment int) (l lostSnapshot, err error) {
	l = lostSnapshot{LostSnapshot: index.LostSnapshot{ID: id}, name: id.Short()}
	data, err := r.store.Get(ctx, store.AmendedName(id, amendment), pack.MaxBytes)
	if err != nil {
		return l, err
	}
	record, _, err := journal.OpenAmended(data, id, amendment, r.trust)
	if errors.Is(err, backup.ErrCorrupt) {
		l.committed, l.damaged = true, true // as far as known
		l.name += fmt.Sprintf(" (its record is damaged: %v)", err)
		return l, nil
	}
	if err != nil {
		return l, err
	}
	s := &record.Snapshot
	if l.Shard, err = backup.ParseShardKey(s.ShardKey); err != nil {
		return l, err
	}
	l.Number, l.committed = s.Number, record.State == backup.Committed
	l.name = fmt.Sprintf("%s of %s %s, number %d, started %s", id.Short(), display(s.Filer), display(s.Shard), s.Number, zoned(s.Started))
	return l, nil
}

// replace moves the existing index aside and the new one to its place.
func (r *rebuild) replace(fresh string) error {
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

// report prints the state of the index, and what the store has in addition.
func (r *rebuild) report(ctx context.Context) error {
	a := r.app
	i, err := sqliteindex.OpenReadOnly(ctx, r.path)
	if err != nil {
		return err
	}
	defer i.Close()
	found, err := i.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}})
	if err != nil {
		return err
	}
	missing, removed := []string{}, []string{}
	for n := range r.removed {
		s := &r.removed[n]
		removed = append(removed, s.ID.String())
		a.note("snapshot %s of %s %s, number %d, was forgotten after the copy was written, and is forgotten again", s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.Number)
	}
	for n := range r.lost {
		if r.lost[n].committed {
			missing = append(missing, r.lost[n].ID.String())
			a.note("snapshot %s is in the store, but not in the index", r.lost[n].name)
		}
	}
	written := r.made.Written
	if !written.IsZero() {
		a.note("holds, policies, marks and other settings are those of %s: repeat later changes before anything is forgotten (bctl hold ls, bctl policy ls, bctl brake)", zoned(written))
	}
	switch {
	case a.json:
		err = a.print(struct {
			Written   *string  `json:"written"` // time of the copy; null if the index was kept
			Snapshots int      `json:"snapshots"`
			Missing   []string `json:"missing"`
			Forgotten []string `json:"forgotten"`
		}{jsonTime(written), len(found), missing, removed})
	case written.IsZero():
		_, err = fmt.Fprintf(a.out, "the index has %s; the next backup continues from it\n", counted(len(found), "snapshot"))
	default:
		_, err = fmt.Fprintf(a.out, "the index has %s again; it was copied at %s\n", counted(len(found), "snapshot"), zoned(written))
	}
	if err == nil && (len(missing) > 0 || r.damaged > 0) {
		err = errIncomplete
	}
	return err
}
