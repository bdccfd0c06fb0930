package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bctl/bctl/internal/restore/target"
)

// The target itself. One that a restore has made gets the attributes of the
// directory that is restored. One that was there keeps its own: it may be
// anything, such as /tmp.

// openTarget opens or makes the target. whole: a directory is restored, not a
// single file.
func (r *restorer) openTarget(whole bool) (err error) {
	if _, err := os.Stat(r.o.Target); r.o.DryRun && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r.root, err = target.Open(target.Options{Path: r.o.Target, Salt: r.o.Snapshot[:], Mark: whole, Fault: r.o.fault})
	return err
}

// abandonTarget removes a target that this run has made, if nothing was restored to it.
func (r *restorer) abandonTarget() {
	if r.root == nil {
		return
	}
	if err := r.root.Abandon(); err != nil {
		r.attribute("", "remove target", err)
	}
}

// A SyncError says that a file system of the target did not write all that it was
// given. The kernel does not say which files lack something.
type SyncError struct{ Err error }

func (e *SyncError) Error() string {
	return fmt.Sprintf("%v; what was restored there may have other content, or be gone", e.Err)
}

func (e *SyncError) Unwrap() error { return e.Err }

// syncTarget waits until all that was restored is on the disk. It also waits where nothing was to be written: what is
// right at the target may be from a restore that was interrupted.
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

// isMark reports whether a name in the directory is that of the target's mark.
func (d *directory) isMark(name string) bool { return d.parent == nil && target.IsMark(name) }

// makeRoom removes the target's mark where the snapshot has something of its
// name: that of a restore that was interrupted when it was backed up.
func (d *directory) makeRoom(name string) {
	if !d.isMark(name) || d.r.root == nil || d.r.o.DryRun {
		return
	}
	if err := d.r.root.Unmark(); err != nil {
		d.r.problem(d.path, "remove mark", err)
	}
}

// useTarget is make for the target.
func (d *directory) useTarget() error {
	made, now, err := d.r.root.MakeUsable()
	d.made = made
	if err := d.r.o.protected(&now); err != nil {
		return err
	}
	d.r.top = d
	return err
}

// finishTarget sets the attributes of the target at the end of a run. complete:
// no error has ended it.
func (r *restorer) finishTarget(complete bool) {
	d := r.top
	if d == nil {
		return // a dry run, or the target is protected
	}
	r.putBackUnfinished()
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

// finishOurs gives the target the attributes of the snapshot. Its mark stays
// until it has them, but for the lack of rights that its owner needs to remove
// the mark: a restore that is killed in between leaves the owner these.
func (r *restorer) finishOurs(d *directory, at *target.Dir) {
	marked := r.root.Marked()
	if marked {
		d.lent = 0o300 &^ d.self.Mode
		d.self.Mode |= d.lent
	}
	failed := false
	d.setAttributes(at, func(op string, err error) {
		// What the target does not keep, another run will not change.
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
		if err := at.SetTime(d.self.Mtime); err != nil && !errors.Is(err, target.ErrNotTaken) { // that was reported
			r.attribute("", "set time", err)
		}
	}
}

// lock takes rights from the target. It gives none: set-id bits may be left out.
func (r *restorer) lock(at *target.Dir, rights uint32) {
	now, err := at.Stat(".")
	if err == nil {
		err = at.SetMode(now.Mode &^ rights)
	}
	if err != nil {
		r.attribute("", "chmod", err)
	}
}
