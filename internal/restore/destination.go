package restore

import (
	"errors"
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
	made, before, err := d.r.root.MakeUsable()
	d.made, d.before = made, &before
	if err := d.r.o.protected(&before); err != nil {
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
	at, err := d.open()
	if err != nil {
		r.problem("", "open directory", err)
		return
	}
	defer at.Release()
	ours := r.root.Ours()
	switch {
	case complete && !d.attributesUnknown && (ours || r.o.TargetAttributes && !d.keep):
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
	marked, extra := r.root.Marked(), uint32(0)
	if marked {
		extra = 0o300 &^ d.self.Mode
		d.self.Mode |= extra
	}
	failed := false
	d.setAttributes(at, func(op string, err error) {
		failed = failed || !errors.Is(err, target.ErrOwner)
		r.attribute("", op, err)
	})
	if marked && !failed {
		if err := r.root.Unmark(); err != nil {
			r.problem("", "remove mark", err)
		}
	}
	if extra != 0 {
		r.lock(at, extra)
	}
	if marked && !failed {
		if err := at.SetTime(d.self.Mtime); err != nil {
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

// putBack gives a target that was there the mode and the time that it had
// before something was made in it.
func (r *restorer) putBack(d *directory, at *target.Dir) {
	now, err := at.Stat(".")
	if err != nil {
		r.attribute("", "stat", err)
		return
	}
	if now.Mode != d.before.Mode {
		if err := at.SetMode(d.before.Mode); err != nil {
			r.attribute("", "chmod", err)
		}
	}
	// Only its owner may set a directory's time.
	if euid := os.Geteuid(); now.Mtime != d.before.Mtime && (euid == 0 || uint32(euid) == now.UID) {
		if err := at.SetTime(d.before.Mtime); err != nil {
			r.attribute("", "set time", err)
		}
	}
}
