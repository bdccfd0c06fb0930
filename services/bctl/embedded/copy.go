package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A repository on one machine has its index in one file, on one disk. So the
// store gets a copy of it after each backup that has changed anything. Of those
// that are whole, keptCopies are kept, the older of them in case the newer is
// damaged; and the last that is sound, because damage to the file itself is copied.
const keptCopies = 2

// checkEvery is the age of the last sound copy at which the index is checked,
// which takes as long as reading all of it, before it is copied.
const checkEvery = 24 * time.Hour

// CopyIndex puts a copy of the index into the store, unless it has one that was
// written after changed, and deletes those that are not kept. The sequence of a
// copy is when it was written, in milliseconds since 1970. Copies of another
// index are neither counted nor deleted: this index may be the one that is wrong.
// An index that is found to be damaged is not copied: sqliteindex.ErrDamaged.
func CopyIndex(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, changed, now time.Time) error {
	stored, err := copies(ctx, s)
	if err != nil {
		return err
	}
	own, err := idx.Copies(ctx)
	if err != nil {
		return err
	}
	sequence := now.UnixMilli()
	for n := range stored {
		if own[n] >= sqliteindex.CopyWhole && n > changed.UnixMilli() && n <= now.UnixMilli() {
			return nil
		}
		sequence = max(sequence, n+1) // also after the clock has gone back
	}
	// A copy without the records of its snapshots could not be told from one that is too new.
	if missing, err := idx.Unrecorded(ctx, nil, 1); err != nil {
		return err
	} else if len(missing) > 0 {
		return fmt.Errorf("the store has no record of snapshot %s: %w", missing[0].ID.Short(), backup.ErrUnavailable)
	}
	state := sqliteindex.CopyWhole
	if sound, ok := lastSound(own); ok && now.Sub(time.UnixMilli(sound)).Abs() >= checkEvery {
		if err := idx.Check(ctx); err != nil {
			return err
		}
		state = sqliteindex.CopySound
	}
	if sequence, err = idx.BeginCopy(ctx, sequence); err != nil {
		return err
	}
	err = idx.Copy(ctx, func(file io.Reader, bytes int64) error {
		return journal.WriteIndexCopy(keys, sequence, now, file, bytes, func(name string, data []byte) error {
			return s.Put(ctx, name, data)
		})
	})
	if err != nil {
		return err
	}
	if err := idx.EndCopy(ctx, sequence, state); err != nil {
		return err
	}
	return deleteCopies(ctx, idx, s, stored)
}

// lastSound returns the sequence of the last copy that is sound. Where none is,
// the first one stands for it: an index is least likely to be damaged when it is new.
func lastSound(own map[int64]sqliteindex.CopyState) (sequence int64, ok bool) {
	sequences := slices.Sorted(maps.Keys(own))
	for _, n := range slices.Backward(sequences) {
		if own[n] == sqliteindex.CopySound {
			return n, true
		}
	}
	for _, n := range sequences {
		if own[n] == sqliteindex.CopyWhole {
			return n, true
		}
	}
	return 0, false
}

// deleteCopies deletes those of the index's own copies that are not kept.
func deleteCopies(ctx context.Context, idx *sqliteindex.Index, s store.Store, stored map[int64][]string) error {
	own, err := idx.Copies(ctx)
	if err != nil {
		return err
	}
	sound, _ := lastSound(own)
	kept := 0
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(own))) {
		if kept < keptCopies || n == sound {
			if own[n] >= sqliteindex.CopyWhole {
				kept++
			}
			continue
		}
		var failed error
		for _, name := range stored[n] {
			failed = errors.Join(failed, s.Delete(ctx, name))
		}
		if failed == nil {
			failed = idx.ForgetCopy(ctx, n)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// copies returns the names of the parts that the store has of each copy, by its
// sequence. Of one that was not written or not deleted to the end, that is not all.
func copies(ctx context.Context, s store.Store) (map[int64][]string, error) {
	parts := map[int64][]string{}
	for o, err := range s.List(ctx, store.IndexPrefix) {
		if err != nil {
			return nil, err
		}
		sequence, _, _ := strings.Cut(strings.TrimPrefix(o.Name, store.IndexPrefix), "-")
		if n, err := strconv.ParseInt(sequence, 16, 64); err == nil && n < math.MaxInt64 {
			parts[n] = append(parts[n], o.Name)
		}
	}
	return parts, nil
}

// A Rebuilt says what RebuildIndex has made an index of.
type Rebuilt struct {
	Sequence int64
	Written  time.Time // when the copy was
	Damaged  []error   // why copies that are newer were not taken
}

// RebuildIndex makes the index file at path, which must not exist, of the newest
// copy in the store that is whole and an undamaged database. backup.ErrNotFound
// where there is none, fs.ErrExist where the file exists.
func RebuildIndex(ctx context.Context, s store.Store, trust journal.Trust, path string) (r Rebuilt, err error) {
	// Before anything is touched: the log beside an index that is there belongs to it.
	if _, err := os.Lstat(path); err == nil {
		return r, fmt.Errorf("%s: %w", path, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	parts, err := copies(ctx, s)
	if err != nil {
		return r, err
	}
	for _, sequence := range slices.Backward(slices.Sorted(maps.Keys(parts))) {
		r.Written, err = fetchCopy(ctx, s, trust, sequence, path)
		r.Sequence = sequence
		if err == nil {
			err = checkCopy(ctx, path)
		}
		if err == nil || !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrNotFound) {
			return r, err
		}
		r.Damaged = append(r.Damaged, fmt.Errorf("the copy of %s: %w", time.UnixMilli(sequence).Format(time.DateTime), err))
	}
	if len(r.Damaged) > 0 {
		return r, errors.Join(r.Damaged...)
	}
	return r, fmt.Errorf("%v has no copy of an index: %w", s, backup.ErrNotFound)
}

// checkCopy looks at an index file whether it is a database without damage, and
// removes it where it is not. Pages that do not agree with their digests are no
// damage here: all else that the copy knows is worth having.
func checkCopy(ctx context.Context, path string) error {
	err := inspectCopy(ctx, path)
	if err == nil {
		return nil
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if removed := os.Remove(name); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	return err
}

func inspectCopy(ctx context.Context, path string) error {
	idx, err := sqliteindex.OpenReadOnly(ctx, path)
	if err == nil {
		err = errors.Join(idx.Check(ctx), idx.Close())
	}
	if errors.Is(err, sqliteindex.ErrDamaged) { // which advises to do what is being done
		return fmt.Errorf("the database in it is damaged: %w", backup.ErrCorrupt)
	}
	return err
}

// fetchCopy writes one copy to path, durably: whole or not at all.
func fetchCopy(ctx context.Context, s store.Store, trust journal.Trust, sequence int64, path string) (written time.Time, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return written, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".bctl-index-*") // mode 0600
	if err != nil {
		return written, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var bytes int64
	for part, parts := 0, 1; part < parts; part++ {
		data, err := s.Get(ctx, store.IndexName(sequence, part), pack.MaxBytes)
		if err != nil {
			return written, err
		}
		h, write, err := journal.OpenIndexPart(data, sequence, part, trust)
		if err != nil {
			return written, err
		}
		if err := write(f); err != nil {
			return written, err
		}
		parts, bytes, written = h.Parts, h.Bytes, h.Written
	}
	info, err := f.Stat()
	if err != nil {
		return written, err
	}
	if info.Size() != bytes {
		return written, fmt.Errorf("%d bytes of %d: %w", info.Size(), bytes, backup.ErrCorrupt)
	}
	if err := f.Sync(); err != nil {
		return written, err
	}
	// A log of the file that was here would be replayed into this one.
	for _, name := range []string{path + "-wal", path + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return written, err
		}
	}
	return written, os.Link(f.Name(), path)
}
