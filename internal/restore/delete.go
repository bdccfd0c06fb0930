package restore

import (
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// remember protects a name from deletion.
func (d *directory) remember(name string) {
	if !d.r.o.Delete {
		return
	}
	if d.names == nil {
		d.names, d.folded = make(map[uint64]struct{}), make(map[uint64]struct{})
	}
	if d.r.remembered.Add(1) > maxRememberedNames {
		d.forgetful = true // names would be incomplete
	}
	d.names[hashOf(name)] = struct{}{}
	d.folded[hashOf(foldCase(name))] = struct{}{}
}

// deleteOthers removes the names that the snapshot does not have. It keeps names that are not
// selected, and everything in a directory that could not be read when the snapshot was taken; that
// was reported.
func (d *directory) deleteOthers() {
	if d.stale || d.keptEmpty() {
		return
	}
	if d.attributesUnknown || d.partial || d.forgetful {
		d.r.problem(d.path, "delete", errors.New("the names of this directory are not all known; nothing in it was deleted"))
		return
	}
	at, err := d.open()
	if err != nil {
		d.r.problem(d.path, "open directory", err)
		return
	}
	defer at.Release()
	if marker := d.r.marker(); marker != nil {
		if marked, err := at.HasName(marker); marked || err != nil {
			if err != nil {
				d.r.problem(d.path, "delete", err)
			}
			return
		}
	}
	keeps := d.keepsUnknown()
	err = at.Names(func(name string) error {
		_, ok := d.names[hashOf(name)]
		switch {
		case ok || d.isMark(name):
		case !d.r.root.IsOwn(name):
			if d.deleteOne(at, name, keeps == nil) {
				return keeps
			}
		case !d.r.o.DryRun:
			// An interrupted restore has left it; no observer has seen it as a file.
			return at.Remove(name)
		}
		return nil
	})
	if err != nil {
		d.r.problem(d.path, "delete", err)
	}
}

var errMayBeMarked = errors.New("it is empty in the snapshot, perhaps because it then had a marker file; nothing in it was deleted")

// keepsUnknown returns the reason why names that the snapshot does not have stay in the directory;
// nil if they are deleted.
func (d *directory) keepsUnknown() error {
	// The snapshot may have an empty mount point because nothing was mounted there at the time.
	if d.foreign || d.mounted && len(d.names) == 0 {
		return target.ErrMounted
	}
	if len(d.names) == 0 && d.r.marker() != nil {
		return errMayBeMarked
	}
	return nil
}

// deleteOne removes a name that the snapshot does not have, if remove is true. It reports whether
// Delete applies to this name.
func (d *directory) deleteOne(at *target.Dir, name string, remove bool) bool {
	path := backup.Join(d.path, name)
	same, err := d.isInOtherCase(at, name)
	if same {
		return false // checkCase has reported it
	}
	var have backup.Entry
	if err == nil {
		have, err = at.Stat(name)
	}
	if err != nil {
		d.r.problem(path, "delete", err)
		return false
	}
	if !d.wanted && !d.r.o.Include.Matches(path, have.Kind == backup.Directory) || d.r.stays(path, &have) {
		return false
	}
	if remove {
		d.r.removeAll(at, name)
	}
	return true
}

// removeAll removes a name with everything below it, except what is excluded. In a dry run, it
// reports what would be removed. It is false if anything is left.
func (r *restorer) removeAll(at *target.Dir, name string) (gone bool) {
	return at.RemoveAll(name, &target.Removal{
		DryRun:  r.o.DryRun,
		Keep:    r.keeps,
		Marker:  r.marker(),
		Removed: func(path string, e *backup.Entry) { r.change(Delete, path, e) },
		Failed:  func(path string, err error) { r.problem(path, "delete", err) },
	})
}

// keeps reports whether an entry stays. In addition to stays, it keeps the files of the repository
// and unfinished instant restores, and reports them as problems.
func (r *restorer) keeps(path string, e *backup.Entry) bool {
	if r.stays(path, e) {
		return true
	}
	err := r.o.protected(e)
	if _, name := backup.Split(path); err == nil && e.Kind == backup.Directory && name == InstantName {
		err = errUnfinished
	}
	if err != nil {
		r.problem(path, "delete", err)
	}
	return err != nil
}

// stays reports whether Delete leaves a name alone.
func (r *restorer) stays(path string, e *backup.Entry) bool {
	return r.excluded(path, e.Kind == backup.Directory) || r.leftOut(path, e)
}

// leftOut reports whether the backup would have left out the existing entry. The snapshot then
// lacks the name whether it existed or not.
func (r *restorer) leftOut(path string, e *backup.Entry) bool {
	m := r.o.LeftOut
	return m != nil && (m.Matches(backup.Join(r.o.Path, path), e.Kind == backup.Directory) ||
		e.Kind == backup.File && m.TooLarge(e.Size) || m.LeavesOutMounted(*e))
}

// keptEmpty reports whether the directory is empty in the snapshot because the backup left out what
// was mounted there.
func (d *directory) keptEmpty() bool {
	return d.r.o.LeftOut != nil && d.r.o.LeftOut.OneFileSystem() && d.self.Flags&backup.Boundary != 0
}

// marker returns a function that reports whether a name in a directory is one for which the backup
// keeps the directory empty; nil if there are no such names.
func (r *restorer) marker() func(name string) bool {
	if r.o.LeftOut == nil || !r.o.LeftOut.HasMarkers() {
		return nil
	}
	return r.o.LeftOut.IsMarker
}

// clear removes a directory that is in the way of a file: an empty one, or with Delete any.
func (f *file) clear(at *target.Dir) error {
	if f.r.o.Delete && !f.dir.foreign {
		if !f.r.removeAll(at, f.e.Name) {
			return errors.New("a directory is in the way, and not all of it can be deleted")
		}
		return nil
	}
	empty, err := at.IsEmpty(f.e.Name)
	switch {
	case err != nil:
		return err
	case !empty && f.dir.foreign:
		return fmt.Errorf("a directory is in the way: %w", target.ErrMounted)
	case !empty:
		return errors.New("a directory is in the way (--delete removes it)")
	case f.r.o.DryRun:
		return nil
	}
	return at.Remove(f.e.Name)
}
