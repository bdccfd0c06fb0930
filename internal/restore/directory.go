package restore

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/restore/target"
)

const (
	// maxListedNames bounds the names of subdirectories that are remembered until their pages come.
	// If one beyond the limit is missing, that is still noticed, but its name is not known.
	maxListedNames = 1 << 17
	// maxRememberedNames bounds the names that Delete remembers for the directories that the
	// planner is in; each takes about 32 bytes.
	maxRememberedNames = 1 << 22
)

// A directory is one directory of the snapshot, from its first page until everything in it is
// finished. The planner owns it, except for pending.
type directory struct {
	r      *restorer
	parent *directory
	path   string // relative to what is restored, and so to the target
	name   string
	self   backup.Entry

	volume            int         // number of the shard's file system that it is on
	flaw              string      // how it differs from what the file server had
	stale             bool        // it is as an earlier snapshot had it
	wanted            bool        // selected with everything in it
	attributesUnknown bool        // self is not set
	partial           bool        // not all of its pages are known
	split             bool        // another part of the restore begins below it
	above             bool        // it is above the part
	tried, ready      bool        // creation was tried; it exists
	made              target.Made // what Mkdir found at the target
	lent              uint32      // rights that self.Mode has while the target has its mark
	keep              bool        // it existed and must stay as it is
	mounted           bool        // a file system is mounted here, unlike at its parent
	foreign           bool        // it is on a file system on which Delete deletes nothing

	chain    browse.Chain
	pending  atomic.Int64 // unfinished: the planner, entries and subdirectories
	expected nameSet      // subdirectories whose pages have not come yet
	children map[string]struct{}
	unlisted bool // children is incomplete

	names     map[uint64]struct{} // hashes of the names that Delete leaves alone
	folded    map[uint64]struct{} // hashes of the names without their case
	forgetful bool                // names is incomplete

	letterCase letterCase
}

// A nameSet is a digest of a set of names that suffices to determine whether the set is empty.
type nameSet struct {
	count int
	sum   uint64 // of hashes
}

func (s *nameSet) add(name string)    { s.count++; s.sum += maphash.String(nameSeed, name) }
func (s *nameSet) remove(name string) { s.count--; s.sum -= maphash.String(nameSeed, name) }

// makeDirectory creates or finds the directory and its ancestors. It is false if that fails.
func (r *restorer) makeDirectory(d *directory) bool {
	if d.tried {
		return d.ready
	}
	d.tried = true
	if d.parent != nil && !r.makeDirectory(d.parent) {
		return false
	}
	var err error
	if r.o.DryRun {
		err = d.look()
	} else {
		err = d.make()
	}
	d.keep = d.made.Existed && r.o.Overwrite == Never
	if err != nil {
		r.problem(d.path, "make directory", err)
		r.putBackUnused(d)
		return false
	}
	d.ready = true
	d.findMount()
	switch {
	case !d.made.Existed:
		r.directories.Add(1)
	case r.o.Part == nil || r.o.Part.shared() && !d.split:
		r.keptDirectories.Add(1)
	}
	if !d.finishedElsewhere() {
		r.flaw(d.path, d.flaw)
	}
	if r.o.Part.shared() && d.split {
		d.made.Existed = true // other processes may make entries in it
		return true
	}
	r.track(d)
	return true
}

func (d *directory) make() (err error) {
	if d.parent == nil {
		return d.useTarget()
	}
	in, err := d.parent.open()
	if err != nil {
		return err
	}
	defer in.Release()
	if err := d.checkProtected(in); err != nil {
		return err
	}
	isNew := !d.parent.made.Existed
	d.made, err = in.Mkdir(d.name, isNew)
	there := errors.Is(err, fs.ErrExist)
	switch {
	case there && isNew:
		return d.parent.taken(d.name, err)
	case there || d.made.Existed:
		if err := d.parent.checkCase(in, d.name); err != nil {
			return err
		}
	}
	if there && d.r.o.Overwrite != Never {
		if have, statErr := in.Stat(d.name); statErr == nil && d.r.o.outranks(&have, &d.self) {
			return d.inTheWay(&have)
		}
		if err := in.Remove(d.name); err != nil {
			return err
		}
		d.replaced()
		d.made, err = in.Mkdir(d.name, true)
	}
	return err
}

// inTheWay returns the error that an entry stays that is not a directory.
func (d *directory) inTheWay(have *backup.Entry) error {
	return fmt.Errorf("a %v is in the way: %w", have.Kind, fs.ErrExist)
}

// checkProtected returns an error if the existing entry of the directory's name belongs to the
// repository.
func (d *directory) checkProtected(in *target.Dir) error {
	if len(d.r.o.ProtectedInodes) == 0 || !d.parent.made.Existed {
		return nil
	}
	have, err := in.Stat(d.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.r.o.protected(&have)
}

// findMount determines whether the directory is on a file system that the snapshot does not have
// there. Delete must not run on it: the snapshot holds only what was below the mount, or nothing,
// so Delete would empty that file system.
func (d *directory) findMount() {
	if !d.r.o.Delete || !d.made.Existed || d.parent == nil {
		return
	}
	d.foreign = true // unless the checks below prove otherwise
	in, err := d.parent.open()
	if err != nil {
		return
	}
	defer in.Release()
	at, err := d.open()
	if err != nil {
		return
	}
	defer at.Release()
	if d.mounted, err = in.IsMounted(at); err == nil {
		d.foreign = d.parent.foreign || d.mounted && d.self.Flags&backup.Boundary == 0
	}
}

// look is make for a dry run.
func (d *directory) look() error {
	if d.r.root == nil || d.parent != nil && !d.parent.made.Existed {
		return nil
	}
	if d.parent == nil {
		at, err := d.open()
		if err != nil {
			return err
		}
		defer at.Release()
		now, err := at.Stat(".")
		d.made = target.Made{Existed: true, Before: &now}
		return err
	}
	in, err := d.parent.open()
	if err != nil {
		return err
	}
	defer in.Release()
	have, err := in.Stat(d.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case d.r.o.protected(&have) != nil:
		return errProtected
	case have.Kind != backup.Directory && d.r.o.outranks(&have, &d.self):
		return d.inTheWay(&have)
	}
	if err := d.parent.checkCase(in, d.name); err != nil {
		return err
	}
	if have.Kind != backup.Directory {
		d.replaced()
		return nil
	}
	d.made = target.Made{Existed: true, Before: &have}
	return nil
}

// replaced reports that the directory takes the place of something else.
func (d *directory) replaced() {
	d.r.obs.Change(Change{Action: Replace, Path: d.path, Kind: backup.Directory})
}

// open opens the directory at the target. The caller releases it.
func (d *directory) open() (*target.Dir, error) { return d.r.root.Dir(d.path) }

// list remembers a subdirectory until its page comes. It returns the number of names added to the
// set.
func (d *directory) list(name string, listed int) int {
	if _, ok := d.children[name]; ok {
		return 0
	}
	d.expected.add(name)
	if listed >= maxListedNames {
		d.unlisted = true
		return 0
	}
	if d.children == nil {
		d.children = make(map[string]struct{})
	}
	d.children[name] = struct{}{}
	return 1
}

func (d *directory) expects(name string) bool {
	_, ok := d.children[name]
	return ok || d.unlisted || d.partial
}

// saw forgets a subdirectory whose page has come. It returns the number of names removed from the
// set.
func (d *directory) saw(name string) int {
	d.expected.remove(name)
	if _, ok := d.children[name]; !ok {
		return 0
	}
	delete(d.children, name)
	return 1
}

// done reports that an entry of the directory, or the planner, has finished with it. The last call
// finishes the directory and reports that to its parent.
func (d *directory) done() {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if d.ready {
			d.deleteAndConclude()
		}
	}
}

// deleteAndConclude ends the work on a directory in which nothing changes any more.
func (d *directory) deleteAndConclude() {
	if d.r.o.Delete && d.made.Existed {
		d.deleteOthers()
	}
	d.r.remembered.Add(-int64(len(d.names)))
	d.names, d.folded = nil, nil
	if d.parent != nil || d.r.o.DryRun {
		d.conclude() // finishTarget concludes the target
	}
}
