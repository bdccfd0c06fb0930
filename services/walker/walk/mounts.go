package walk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

var errUnmounted = errors.New("the file system that was mounted here is not mounted; its last good copy is kept " +
	"(bctl backup --allow-shrink takes what is there instead)")

// mountPoints are directories that were seen to be mount points. The entries found in a tree are
// trusted only while they still are. Its methods may be called concurrently, with any lock held: no
// other lock is taken under its own.
type mountPoints struct {
	mu    sync.Mutex
	paths []string
}

func (m *mountPoints) add(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.paths, path) {
		m.paths = append(m.paths, path)
	}
}

// above returns the mount points at and above the paths, sorted.
func (m *mountPoints) above(paths ...string) (mounts []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.paths) == 0 {
		return nil
	}
	for _, path := range paths {
		mounts = append(mounts, source.MountsAbove(m.paths, path)...)
	}
	slices.Sort(mounts)
	return slices.Compact(mounts)
}

func (m *mountPoints) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.paths)
}

// keepsMounts reports whether content that was mounted, and now is not, is kept. A backup of one
// file system leaves out mounted content, and takes what is below.
func (s *slice) keepsMounts() bool {
	return !s.task.Job.AllowShrink && !s.match.OneFileSystem()
}

// unmounted reports whether this directory was a mount point in the last snapshot and now is not:
// missing content is then not treated as deleted (I13).
func (w *visit) unmounted(old *backup.Entry) bool {
	return old != nil && len(w.marks) > 0 && old.Flags&backup.Boundary != 0 && w.self.Flags&backup.Boundary == 0 && w.slice.keepsMounts()
}

// addLostDirectories adds to old.mounts the removed directories that were mount points, as their
// own pages record.
func (w *visit) addLostDirectories(ctx context.Context, old *oldState) error {
	if !w.slice.keepsMounts() || w.excluded {
		return nil
	}
	var removed []backup.PageName
	for _, name := range old.removed {
		if path := backup.Join(w.path, name); !w.slice.match.Matches(path, true) {
			removed = append(removed, backup.PageName{Path: path})
		}
	}
	return w.eachOld(ctx, removed, func(path string, p *backup.Page) error {
		if p.Self != nil && p.Self.Flags&backup.Boundary != 0 {
			_, name := backup.Split(path)
			old.mounts = append(old.mounts, backup.Entry{Name: name, Kind: backup.Directory, Inode: p.Self.Inode, Flags: backup.Boundary})
		}
		return nil
	})
}

// lostMounts returns the old entries on which a file was mounted that now is not. Directories are
// checked when they are visited (unmounted), or when they are gone (addLostDirectories).
func (w *visit) lostMounts(old []backup.Entry) (lost []backup.Entry) {
	for i := range old {
		e := &old[i]
		if !w.keepsMountedFile(e) {
			continue
		}
		at, is := w.find(e.Name)
		if !is || w.entries[at].Kind != backup.Directory && w.entries[at].Flags&backup.Boundary == 0 {
			lost = append(lost, *e)
		}
	}
	return lost
}

// keepsMountedFile reports whether an old entry is a file that was mounted, and is kept if it is
// not mounted now.
func (w *visit) keepsMountedFile(e *backup.Entry) bool {
	return e.Kind != backup.Directory && e.Flags&backup.Boundary != 0 && w.slice.keepsMounts() && !w.excluded &&
		!w.slice.match.Matches(backup.Join(w.path, e.Name), false)
}

// find returns the index of an entry, or the index where it would be inserted.
func (w *visit) find(name string) (at int, is bool) {
	return slices.BinarySearchFunc(w.entries, name, func(e backup.Entry, name string) int { return strings.Compare(e.Name, name) })
}

// keepMounts inserts the last snapshot's version of content that was mounted and now is not (I13).
// It reports whether there was any.
func (w *visit) keepMounts(ctx context.Context, old *oldState) (kept bool, err error) {
	if w.unmounted(old.self) {
		return false, nil
	}
	for _, e := range old.mounts {
		at, is := w.find(e.Name)
		if is {
			w.uncount(w.entries[at].Size)
			w.entries = slices.Delete(w.entries, at, at+1)
		}
		if err := w.keepMount(ctx, &e); err != nil {
			return false, err
		}
		w.entries = slices.Insert(w.entries, at, e)
	}
	slices.Sort(w.failed)
	return len(old.mounts) > 0, nil
}

// uncount removes a file of this size from the counts: a mount had covered it.
func (w *visit) uncount(size int64) {
	w.counts.Files--
	w.counts.AddBytes(-size)
	w.total--
}

// keepMount carries forward the content that was mounted at e, counts it and reports it. The caller
// inserts e into the entries, and sorts w.failed.
func (w *visit) keepMount(ctx context.Context, e *backup.Entry) error {
	w.total++
	if e.Kind == backup.Directory {
		path := backup.Join(w.path, e.Name)
		w.carried = append(w.carried, e.Name)
		return w.slice.carry(ctx, path, path, errUnmounted, "open")
	}
	e.Flags |= backup.Unreadable
	w.counts.Files++
	w.counts.AddBytes(e.Size)
	w.counts.Carried++
	w.failed = append(w.failed, e.Name)
	w.problem(e.Name, "open", errUnmounted)
	return nil
}
