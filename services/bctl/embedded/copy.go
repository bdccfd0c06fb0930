package embedded

import (
	"cmp"
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

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A repository on one machine has its index in one file, on one disk. So the store gets copies of
// it after backups. The store keeps the newest keptCopies complete copies: the older one is used if
// the newer one is damaged. It also keeps the last sound copy, because damage to the file itself is
// copied, too.
const keptCopies = 2

// A copy takes the longer the larger the index is, and a rebuild adds from the journal what a copy
// lacks. So after a backup there is a copy only if the index is small, if the last copy is old, or
// if the index has grown by a share since.
const (
	copyEvery = 24 * time.Hour
	copyShare = 8 // an eighth
)

// SmallIndex is the size of an index that is copied after each backup. Tests have small indexes.
var SmallIndex = int64(16 << 20)

// checkEvery is the age of the last sound copy at which the index is checked before it is copied. A
// check takes as long as reading the whole index.
const checkEvery = 24 * time.Hour

var errNoRecord = errors.New("the store has no record of snapshot")

// CopyIndex puts a copy of the index into the store, unless the store has one that was written
// after changed, and deletes the copies that are no longer kept. The sequence of a copy is the time
// at which it was written, in milliseconds since 1970. Copies of another index are neither counted
// nor deleted, because this index may be the wrong one. A damaged index is not copied; the error is
// sqliteindex.ErrDamaged.
func CopyIndex(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, changed, now time.Time) error {
	return copyIndex(ctx, idx, s, keys, now, func(n int64, _ int) bool { return n > changed.UnixMilli() })
}

// CopyIndexIfDue is CopyIndex if a copy without the last changes would make a rebuild slow, or
// would lack what only a copy has: what was logged.
func CopyIndexIfDue(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, changed, now time.Time) error {
	bytes, err := idx.Bytes(ctx)
	if err != nil {
		return err
	}
	logged, err := idx.LastLogged(ctx)
	if err != nil {
		return err
	}
	return copyIndex(ctx, idx, s, keys, now, func(n int64, parts int) bool {
		return n > changed.UnixMilli() || n > logged.UnixMilli() && !isCopyDue(bytes, parts, now.Sub(time.UnixMilli(n)))
	})
}

// isCopyDue reports whether an index of which the last copy has so many parts, and such an age, is
// to be copied.
func isCopyDue(bytes int64, parts int, age time.Duration) bool {
	copied := int64(parts) * journal.IndexPartBytes
	return bytes <= SmallIndex || age >= copyEvery || bytes >= copied+copied/copyShare
}

// copyIndex puts a copy of the index into the store, unless one of its own copies suffices, given
// its sequence and its number of parts.
func copyIndex(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, now time.Time, suffices func(n int64, parts int) bool) error {
	stored, err := copies(ctx, s)
	if err != nil {
		return err
	}
	own, err := idx.Copies(ctx)
	if err != nil {
		return err
	}
	for n, parts := range stored {
		if own[n] >= sqliteindex.CopyWhole && n <= now.UnixMilli() && suffices(n, len(parts)) {
			return nil
		}
	}
	// A copy without the records of its snapshots could not be distinguished from one that is too
	// new.
	if missing, err := idx.Unrecorded(ctx, nil, 1); err != nil {
		return err
	} else if len(missing) > 0 {
		return fmt.Errorf("%w %s: %w", errNoRecord, missing[0].ID.Short(), backup.ErrUnavailable)
	}
	state := sqliteindex.CopyWhole
	if sound, ok := lastSound(own); ok && now.Sub(time.UnixMilli(sound)).Abs() >= checkEvery {
		if err := idx.Check(ctx); err != nil {
			return err
		}
		state = sqliteindex.CopySound
	}
	least := now.UnixMilli()
	if len(own) == 0 {
		least = afterOlder(stored, least)
	}
	sequence, err := putCopy(ctx, idx, s, keys, least, now, state)
	if err != nil {
		return err
	}
	own[sequence] = state
	return deleteCopies(ctx, idx, s, stored, own)
}

// afterOlder returns a sequence that is at least least, and greater than those of the copies that
// an earlier version has made, which did not note them in the index. Anyone who can write to the
// store can give copies any sequence, so one that leaves few greater ones does not matter.
func afterOlder(stored map[int64][]string, least int64) int64 {
	for n := range stored {
		if n < math.MaxInt64/2 {
			least = max(least, n+1)
		}
	}
	return least
}

// partsAtOnce is how many parts of a copy are put at a time. The store takes longer to make a part
// durable than it takes to seal the next one.
const partsAtOnce = 3

// putCopy puts a copy of the index into the store, and returns its sequence. It is at least least,
// and greater than those of the copies that the index has made, even if the clock was set back.
// Other copies do not matter: anyone who can write to the store can give them any sequence.
func putCopy(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, least int64, now time.Time, state sqliteindex.CopyState) (int64, error) {
	sequence, err := idx.BeginCopy(ctx, least)
	if err != nil {
		return 0, err
	}
	err = idx.Copy(ctx, func(file io.Reader, bytes int64) error {
		puts, putting := errgroup.WithContext(ctx)
		puts.SetLimit(partsAtOnce)
		err := journal.WriteIndexCopy(keys, sequence, now, file, bytes, func(name string, data []byte) error {
			data = slices.Clone(data) // it is valid until this returns
			puts.Go(func() error { return s.Put(putting, name, data) })
			return context.Cause(putting)
		})
		return cmp.Or(puts.Wait(), err)
	})
	if err != nil {
		return 0, err
	}
	return sequence, idx.EndCopy(ctx, sequence, state)
}

// ReplaceCopies puts a copy of the index into the store, and deletes all other copies of this
// index, the last sound one too. A damaged index replaces nothing. It returns the number of copies
// of another index, which stay.
func ReplaceCopies(ctx context.Context, idx *sqliteindex.Index, s store.Store, keys journal.Keys, now time.Time) (others int, err error) {
	if err := idx.Check(ctx); err != nil {
		return 0, err
	}
	stored, err := copies(ctx, s)
	if err != nil {
		return 0, err
	}
	own, err := idx.Copies(ctx)
	if err != nil {
		return 0, err
	}
	if _, err = putCopy(ctx, idx, s, keys, now.UnixMilli(), now, sqliteindex.CopySound); err != nil {
		return 0, err
	}
	for n, names := range stored {
		if _, is := own[n]; !is {
			others++
			continue
		}
		if err := s.Delete(ctx, names...); err != nil {
			return others, err
		}
	}
	for n := range own {
		if err := idx.ForgetCopy(ctx, n); err != nil {
			return others, err
		}
	}
	return others, nil
}

// lastSound returns the sequence of the last sound copy. If there is none, it returns the first
// copy, because an index is least likely to be damaged when it is new.
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

// KeptCopies returns the sequences of the complete copies that the store must have.
func KeptCopies(ctx context.Context, idx *sqliteindex.Index) (kept []int64, err error) {
	own, err := idx.Copies(ctx)
	stays := keeps(own)
	for n, state := range own {
		if stays[n] && state >= sqliteindex.CopyWhole {
			kept = append(kept, n)
		}
	}
	return kept, err
}

// keeps returns which of the index's own copies are kept, also those that are being written.
func keeps(own map[int64]sqliteindex.CopyState) map[int64]bool {
	sound, _ := lastSound(own)
	stays, kept := map[int64]bool{}, 0
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(own))) {
		if kept < keptCopies || n == sound {
			stays[n] = true
			if own[n] >= sqliteindex.CopyWhole {
				kept++
			}
		}
	}
	return stays
}

// deleteCopies deletes those of the index's own copies that are no longer kept. A later call tries
// again what a bucket has locked: bctl locks no copies, but a bucket may lock all that is put.
func deleteCopies(ctx context.Context, idx *sqliteindex.Index, s store.Store, stored map[int64][]string, own map[int64]sqliteindex.CopyState) (err error) {
	stays := keeps(own)
	for n := range own {
		if stays[n] {
			continue
		}
		var failed error
		locked := false
		for _, name := range stored[n] {
			if err := s.Delete(ctx, name); store.IsLocked(err) {
				locked = true
			} else {
				failed = errors.Join(failed, err)
			}
		}
		if failed == nil && !locked {
			failed = idx.ForgetCopy(ctx, n)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// copies returns the names of the parts that the store has of each copy, by sequence. If writing or
// deleting a copy was interrupted, parts are missing.
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

// A Rebuilt describes the copy from which RebuildIndex rebuilt an index.
type Rebuilt struct {
	Sequence int64
	Written  time.Time // when the copy was written
	Damaged  []error   // why newer copies were not used
}

// RebuildIndex creates the index file at path from the newest copy in the store that is complete
// and an undamaged database. If there is none, the error is backup.ErrNotFound; if the file exists,
// it is fs.ErrExist.
func RebuildIndex(ctx context.Context, s store.Store, trust journal.Trust, path string) (r Rebuilt, err error) {
	// This comes first, because a log next to an existing index belongs to that index.
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
		if err == nil {
			err = endTermOf(ctx, path)
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

// checkCopy checks that an index file is an undamaged database, and removes it otherwise. Pages
// that do not match their digests do not count as damage here, because the rest of the copy is
// still useful.
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
	if errors.Is(err, sqliteindex.ErrDamaged) { // its advice is to do what is being done now
		return fmt.Errorf("the database in it is damaged: %w", backup.ErrCorrupt)
	}
	return err
}

// endTermOf ends the term of the process that led in the index that was copied. Nobody else uses
// the copy. A purge copies the index while it leads.
func endTermOf(ctx context.Context, path string) error {
	idx, err := sqliteindex.Open(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(endTerm(ctx, idx), idx.Close())
}

// fetchCopy writes one copy to path, durably and atomically.
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
	// A log of a former file at this path would be replayed into the new one.
	for _, name := range []string{path + "-wal", path + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return written, err
		}
	}
	return written, os.Link(f.Name(), path)
}
