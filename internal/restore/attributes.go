package restore

import (
	"os"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/restore/target"
)

// The attributes of directories. A directory gets those of the snapshot when nothing in it changes
// any more. The restore's work in an existing directory changes some of its attributes. If the
// directory keeps its own attributes, or cannot be finished because of an error, these are put
// back.

// getsAttributes reports whether the directory gets the attributes of the snapshot.
func (d *directory) getsAttributes() bool {
	switch {
	case d.attributesUnknown:
		return false
	case d.parent == nil && d.made.Existed:
		return d.r.root.Ours() || d.r.o.TargetAttributes && !d.keep
	}
	return !d.keep
}

// conclude gives the directory its attributes. For the target, finishTarget does so, except in a
// dry run.
func (d *directory) conclude() {
	r, gets := d.r, d.getsAttributes()
	defer r.untrack(d)
	if r.o.Part.shared() && d.split {
		return // the last part finishes it
	}
	if !d.made.Existed && (r.o.DryRun || !gets) || r.o.DryRun && !gets {
		return
	}
	at, err := d.open()
	if err != nil {
		r.problem(d.path, "open directory", err)
		return
	}
	defer at.Release()
	if gets {
		d.setAttributes(at, func(op string, err error) { r.attribute(d.path, op, err) })
	} else {
		r.putBack(d, at)
	}
}

// setAttributes gives the directory the attributes of the snapshot.
func (d *directory) setAttributes(at *target.Dir, report target.Report) {
	others := d.ownXattrs(report) && browse.AllXattrs(&d.self)
	if d.made.Existed && (d.r.o.Part == nil || d.r.o.Part.shared()) && !d.sameAttributes(at, others) {
		d.r.change(Attributes, d.path, &d.self)
		if d.ready { // otherwise it is not counted
			d.r.keptDirectories.Add(-1)
		}
	}
	if !d.r.o.DryRun {
		at.FinishDirectory(&d.self, !others, report)
	}
}

// sameAttributes reports whether the directory had the attributes of the snapshot before this
// restore changed anything.
func (d *directory) sameAttributes(at *target.Dir, others bool) bool {
	e, had := &d.self, d.made.Before
	return e.UID == had.UID && e.GID == had.GID && e.Mode&^d.lent == had.Mode && sameMtime(e, had) && at.HasXattrs(".", e.Xattrs, others)
}

// putBack gives an existing directory the mode and mtime that it had before something was created
// in it.
func (r *restorer) putBack(d *directory, at *target.Dir) {
	had := d.made.Before
	now, err := at.Stat(".")
	if err != nil {
		r.attribute(d.path, "stat", err)
		return
	}
	if now.Mode != had.Mode {
		if err := at.SetMode(had.Mode); err != nil {
			r.attribute(d.path, "chmod", err)
		}
	}
	// Only its owner may set a directory's time.
	if euid := os.Geteuid(); now.Mtime != had.Mtime && (euid == 0 || uint32(euid) == now.UID) {
		if err := at.SetTime(had.Mtime); err != nil {
			r.attribute(d.path, "set time", err)
		}
	}
}

// track remembers an existing directory below the target until it has its attributes.
func (r *restorer) track(d *directory) {
	if d.made.Before == nil || d.parent == nil || r.o.DryRun {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unfinished == nil {
		r.unfinished = make(map[*directory]struct{})
	}
	r.unfinished[d] = struct{}{}
}

func (r *restorer) untrack(d *directory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unfinished, d)
}

// putBackUnfinished puts back all directories that an error or a cancellation kept from being
// finished. It handles a directory's content before the directory.
func (r *restorer) putBackUnfinished() {
	var all []*directory
	for d := range r.unfinished {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *directory) int { return strings.Compare(b.path, a.path) })
	for _, d := range all {
		r.putBackUnused(d)
	}
}

// putBackUnused puts back a directory that will not be finished.
func (r *restorer) putBackUnused(d *directory) {
	if d.made.Before == nil || r.o.DryRun {
		return
	}
	at, err := d.open()
	if err != nil {
		r.attribute(d.path, "open directory", err)
		return
	}
	defer at.Release()
	r.putBack(d, at)
}

// stays reports whether the existing entry stays, except for its attributes.
func (a Action) stays() bool { return a == Keep || a == Attributes }

// sameAttributes reports whether the existing entry has the attributes of the snapshot.
func (f *file) sameAttributes(at *target.Dir, have *backup.Entry) bool {
	e := &f.e
	return e.UID == have.UID && e.GID == have.GID && sameMtime(e, have) && (e.Mode == have.Mode || e.Kind == backup.Symlink) &&
		at.HasXattrs(e.Name, e.Xattrs, f.othersUnwanted())
}
