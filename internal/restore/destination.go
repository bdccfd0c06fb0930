package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bctl/bctl/internal/restore/target"
)

// The target itself. A target that the restore created gets the attributes of the directory that is
// restored. An existing one keeps its own, because it may be anything, such as /tmp.

// openTarget opens or creates the target. whole reports whether a directory is restored and not a
// single file.
func (r *restorer) openTarget(whole bool) (err error) {
	if _, err := os.Stat(r.o.Target); r.o.DryRun && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	o := target.Options{Path: r.o.Target, Salt: r.o.Snapshot[:], Mark: whole, Fault: r.o.fault}
	if r.o.Part != nil {
		o.Joined, o.Mark = &r.o.Part.Target, r.o.Part.Last
	}
	r.root, err = target.Open(o)
	return err
}

// abandonTarget removes the target if this run created it and restored nothing to it.
func (r *restorer) abandonTarget() {
	if r.root == nil {
		return
	}
	if err := r.root.Abandon(); err != nil {
		r.attribute("", "remove target", err)
	}
}

// A SyncError reports that a file system of the target did not write all data that it was given.
// The kernel does not report which files lack data.
type SyncError struct{ Err error }

func (e *SyncError) Error() string {
	return fmt.Sprintf("%v; what was restored there may have other content, or be gone", e.Err)
}

func (e *SyncError) Unwrap() error { return e.Err }

// syncTarget waits until everything that was restored is on disk. It also waits if nothing had to
// be written, because files that were kept may come from a restore that was interrupted.
func (r *restorer) syncTarget() error {
	if r.top == nil {
		return nil // a dry run, or the target is protected
	}
	if err := r.root.Sync(); err != nil {
		return &SyncError{err}
	}
	return nil
}

func (r *restorer) closeTarget() {
	if r.root != nil {
		r.root.Close()
	}
}

// isMark reports whether name in the directory is the name of the target's mark.
func (d *directory) isMark(name string) bool { return d.parent == nil && target.IsMark(name) }

// makeRoom removes the target's mark if the snapshot has an entry of the same name. The snapshot
// has one if it was taken of the target of an interrupted restore.
func (d *directory) makeRoom(name string) {
	if !d.isMark(name) || d.r.root == nil || d.r.o.DryRun {
		return
	}
	if err := d.r.root.Unmark(); err != nil {
		d.r.problem(d.path, "remove mark", err)
	}
}

// useTarget does for the target what make does for other directories.
func (d *directory) useTarget() error {
	made, now, err := d.r.root.MakeUsable()
	d.made = made
	if err := d.r.o.protected(&now); err != nil {
		return err
	}
	d.r.top = d
	return err
}

// finishTarget sets the attributes of the target at the end of a run. complete reports that no
// error ended the run.
func (r *restorer) finishTarget(complete bool) {
	d := r.top
	if d == nil {
		return // a dry run, or the target is protected
	}
	r.putBackUnfinished()
	if r.o.Part.shared() {
		return
	}
	if r.o.Part != nil && complete {
		d.unclaim()
	}
	at, err := d.open()
	if err != nil {
		r.problem("", "open directory", err)
		return
	}
	defer at.Release()
	ours := r.root.Ours()
	switch {
	case complete && d.getsAttributes():
		r.finishOurs(d, at)
	case complete && ours:
		if err := r.root.Unmark(); err != nil {
			r.problem("", "remove mark", err)
		}
	case !ours:
		r.putBack(d, at)
	}
}

// finishOurs gives the target the attributes of the snapshot. The mark stays until the target has
// all of them, except that the owner keeps the rights to remove the mark if the snapshot's mode
// lacks them. A restore that is killed in between leaves these rights to the owner.
func (r *restorer) finishOurs(d *directory, at *target.Dir) {
	marked := r.root.Marked()
	if marked {
		d.lent = 0o300 &^ d.self.Mode
		d.self.Mode |= d.lent
	}
	failed := false
	d.setAttributes(at, func(op string, err error) {
		// An attribute that the target does not support would fail in another run, too.
		failed = failed || !errors.Is(err, target.ErrOwner) && !errors.Is(err, target.ErrNotTaken)
		r.attribute("", op, err)
	})
	if marked && !failed {
		if err := r.root.Unmark(); err != nil {
			r.problem("", "remove mark", err)
		}
	}
	if d.lent != 0 {
		r.lock(at, d.lent)
	}
	if marked && !failed {
		// ErrNotTaken was reported before.
		if err := at.SetTime(d.self.Mtime); err != nil && !errors.Is(err, target.ErrNotTaken) {
			r.attribute("", "set time", err)
		}
	}
}

// lock removes rights from the target's mode. It adds none, because set-id bits may be left out.
func (r *restorer) lock(at *target.Dir, rights uint32) {
	now, err := at.Stat(".")
	if err == nil {
		err = at.SetMode(now.Mode &^ rights)
	}
	if err != nil {
		r.attribute("", "chmod", err)
	}
}
