package walk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// maxFailed is how many failed entries of one directory are reported one by one; with more, the
// directory counts as unreadable.
const maxFailed = 10_000

var (
	errTooManyFailed = errors.New("too many entries that cannot be looked at")
	errPathTooLong   = fmt.Errorf("a subdirectory's path would have more than %d bytes", backup.MaxPathBytes)
)

// list reads the directory, without excluded entries. If the directory is too large for memory,
// sorted runs are left in w.spilled, and the last entries in memory.
func (w *visit) list(ctx context.Context) error {
	w.entries = w.entries[:0]
	w.flagRacy(&w.self)
	if w.slice.match.OneFileSystem() && (w.self.Flags&backup.Boundary != 0 || w.self.Device != w.slice.tree.RootDevice()) {
		return nil // a mount point is kept, empty
	}
	if w.self.Flags&backup.Boundary != 0 {
		w.slice.mounts.add(w.path)
	}
	for !w.excluded {
		from := len(w.entries)
		entries, stats, err := w.dir.Read(ctx, w.entries, w.notStated)
		w.entries = entries
		w.counts.StatCalls += int64(stats)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.blame(ctx); err != nil {
			return err
		}
		if len(w.failed) > maxFailed {
			return errTooManyFailed
		}
		if w.path == "" && w.slice.snapshotDir != "" {
			w.dropSnapshotDir(from)
		}
		if !w.slice.match.Empty() {
			w.selectFrom(from)
		}
		if w.isLarge() {
			if err := w.spill(); err != nil {
				return err
			}
		}
	}
	w.dropAll()
	return nil
}

// notStated records an entry that vanished or could not be read with stat. An entry that is
// excluded in any case may have failed for just that reason, and is ignored.
func (w *visit) notStated(name, op string, err error) {
	path := backup.Join(w.path, name)
	if m := w.slice.match; m.HasPatterns() && m.Matches(path, false) && m.Matches(path, true) {
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		w.counts.Vanished++
		return
	}
	w.problem(name, op, err)
	w.failed = append(w.failed, name)
	if source.IsTransient(err) || source.MayBeAway(err) && !source.IsTransient(w.blamed) {
		w.blamed = err
	}
}

// blame returns nil if the entries that could not be read with stat are the cause themselves, and
// not the file server as a whole or this machine.
func (w *visit) blame(ctx context.Context) error {
	err := w.blamed
	w.blamed = nil
	switch {
	case err == nil:
		return nil
	case source.IsTransient(err):
		return err
	case source.MayBeAway(err):
		return source.CheckTree(ctx, w.slice.tree, nil)
	}
	return nil
}

// dropSnapshotDir leaves out the directory of the source snapshots.
func (w *visit) dropSnapshotDir(from int) {
	kept := slices.DeleteFunc(w.entries[from:], func(e backup.Entry) bool {
		return e.Kind == backup.Directory && e.Name == w.slice.snapshotDir
	})
	w.entries = w.entries[:from+len(kept)]
}

// selectFrom removes excluded entries from index from on, in place, and records whether one of them
// excludes all.
func (w *visit) selectFrom(from int) {
	m := w.slice.match
	read := w.entries[from:]
	w.excluded = m.HasMarkers() && m.AnyMarker(read)
	kept := slices.DeleteFunc(read, func(e backup.Entry) bool {
		// Patterns come first, so that those that match only what is excluded anyway count as
		// matches.
		return m.HasPatterns() && m.Matches(backup.Join(w.path, e.Name), e.Kind == backup.Directory) ||
			e.Kind == backup.File && m.TooLarge(e.Size) || m.LeavesOutMounted(e)
	})
	w.entries = w.entries[:from+len(kept)]
}

// dropAll makes the directory an empty one without failures.
func (w *visit) dropAll() {
	clear(w.entries)
	w.entries, w.failed, w.carried, w.problems = w.entries[:0], nil, nil, nil
	w.counts.Files, w.counts.Bytes = 0, 0
	if w.spilled != nil {
		w.spilled.close()
		w.spilled = nil
	}
}

// complete turns the listing into what the snapshot will have: sorted, with the last good copy of
// entries that could not be read with stat.
func (w *visit) complete(ctx context.Context) error {
	if len(w.failed) > 0 {
		if err := w.carryForward(ctx); err != nil {
			return err
		}
	}
	if w.spilled != nil {
		return w.spill()
	}
	w.sortAndCount()
	return nil
}

// sortAndCount sorts the entries in memory, flags racy ones and counts them.
func (w *visit) sortAndCount() {
	w.entries = listing.Sort(w.entries)
	w.total += len(w.entries)
	for i := range w.entries {
		e := &w.entries[i]
		if e.Kind == backup.Directory {
			continue
		}
		w.flagRacy(e)
		w.counts.Files++
		w.counts.AddBytes(e.Size)
	}
}

func (w *visit) flagRacy(e *backup.Entry) {
	if listing.IsRacy(w.slice.task.Job.Compare, e, w.slice.racyFrom) {
		e.Flags |= backup.Racy
	}
}
