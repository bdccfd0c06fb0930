package walk

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

var errUnmounted = errors.New("the file system that was mounted here is not mounted; its last good copy is kept " +
	"(bctl backup --allow-shrink takes what is there instead)")

// unmounted reports whether a file system began at this directory in the last
// snapshot, and does not now: what is not there is not deleted (I13).
func (w *visit) unmounted(old *backup.Entry) bool {
	job := &w.slice.task.Job
	return old != nil && len(w.marks) > 0 && old.Flags&backup.Boundary != 0 && w.self.Flags&backup.Boundary == 0 &&
		!job.AllowShrink && !job.Selection.OneFileSystem // which leaves out what is mounted, and takes what is below
}

// keepsMounts reports whether what was mounted, and is not there, is kept.
func (w *visit) keepsMounts() bool {
	job := &w.slice.task.Job
	return !job.AllowShrink && !job.Selection.OneFileSystem && !w.excluded
}

// addLostDirectories adds to old.mounts the removed directories at which a file
// system began: their own pages say so.
func (w *visit) addLostDirectories(ctx context.Context, old *oldState) error {
	if !w.keepsMounts() {
		return nil
	}
	for _, name := range old.removed {
		path := backup.Join(w.path, name)
		if w.slice.match.Excluded(path, true) {
			continue
		}
		err := w.eachOld(ctx, path, []backup.PageKey{0}, func(p *backup.Page) error {
			if p.Self != nil && p.Self.Flags&backup.Boundary != 0 {
				old.mounts = append(old.mounts, backup.Entry{Name: name, Kind: backup.Directory, Inode: p.Self.Inode, Flags: backup.Boundary})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lostMounts returns the old entries at which a file was mounted that is not
// there now. Directories are looked at where they are visited (unmounted), or
// where they are gone (addLostDirectories).
func (w *visit) lostMounts(old []backup.Entry) (lost []backup.Entry) {
	if !w.keepsMounts() {
		return nil
	}
	for i := range old {
		e := &old[i]
		if e.Kind == backup.Directory || e.Flags&backup.Boundary == 0 || w.slice.match.Excluded(backup.Join(w.path, e.Name), false) {
			continue
		}
		at, is := w.find(e.Name)
		if !is || w.entries[at].Kind != backup.Directory && w.entries[at].Flags&backup.Boundary == 0 {
			lost = append(lost, *e)
		}
	}
	return lost
}

// find returns where an entry is, or would be.
func (w *visit) find(name string) (at int, is bool) {
	return slices.BinarySearchFunc(w.entries, name, func(e backup.Entry, name string) int { return strings.Compare(e.Name, name) })
}

// keepMounts puts what was mounted, and is not there, among the entries as the
// last snapshot has it (I13). It reports whether there was any.
func (w *visit) keepMounts(ctx context.Context, old *oldState) (kept bool, err error) {
	if w.unmounted(old.self) {
		return false, nil
	}
	for _, e := range old.mounts {
		at, is := w.find(e.Name)
		if is { // what the mount had covered
			w.counts.Files--
			w.counts.AddBytes(-w.entries[at].Size)
			w.total--
			w.entries = slices.Delete(w.entries, at, at+1)
		}
		if e.Kind == backup.Directory {
			path := backup.Join(w.path, e.Name)
			if err := w.slice.carry(ctx, path, path, errUnmounted, "open"); err != nil {
				return false, err
			}
			w.carried = append(w.carried, e.Name)
		} else {
			e.Flags |= backup.Unreadable
			w.counts.Files++
			w.counts.AddBytes(e.Size)
			w.counts.Carried++
			w.failed = append(w.failed, e.Name)
			w.problem(e.Name, "open", errUnmounted)
		}
		w.total++
		w.entries = slices.Insert(w.entries, at, e)
	}
	slices.Sort(w.failed)
	return len(old.mounts) > 0, nil
}
