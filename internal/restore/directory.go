package restore

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

const (
	// maxListedNames bounds the names of subdirectories that are remembered
	// until their own pages come. Those beyond it are not missed if they don't.
	maxListedNames = 1 << 17
	// maxRememberedNames bounds the names that Delete remembers, of the
	// directories that the planner is in; each takes about 16 bytes.
	maxRememberedNames = 1 << 22
)

// A directory is one directory of the snapshot, from its first page until
// everything in it is done. The planner owns it, but for pending.
type directory struct {
	r      *restorer
	parent *directory
	path   string // relative to what is restored, and so to the target
	name   string
	self   backup.Entry

	wanted            bool // selected with all that is in it
	attributesUnknown bool // self is not set
	partial           bool // a page of it could not be read
	tried, ready      bool // to make it; it is there
	made              target.Made
	keep              bool // it was there and must stay as it is

	pending  atomic.Int64 // the planner, entries and subdirectories that are not done
	children map[string]struct{}
	unlisted bool // children is not complete
	names    map[uint64]struct{}
}

// enter makes the directory, and those that it is in, or finds it. It is false where that fails.
func (r *restorer) enter(d *directory) bool {
	if d.tried {
		return d.ready
	}
	d.tried = true
	if d.parent != nil && !r.enter(d.parent) {
		return false
	}
	var err error
	if r.o.DryRun {
		err = d.look()
	} else {
		err = d.make()
	}
	if err != nil {
		r.problem(d.path, "make directory", err)
		return false
	}
	d.ready = true
	d.keep = d.made.Existed && r.o.Overwrite == Never
	r.directories.Add(1)
	return true
}

func (d *directory) make() (err error) {
	if d.parent == nil {
		d.made, err = d.r.root.MakeUsable()
		return err
	}
	in, err := d.parent.open()
	if err != nil {
		return err
	}
	defer in.Release()
	d.made, err = in.Mkdir(d.name)
	if errors.Is(err, fs.ErrExist) && d.r.o.Overwrite != Never {
		if err := in.Remove(d.name); err != nil {
			return err
		}
		d.made, err = in.Mkdir(d.name)
	}
	return err
}

// look is make for a dry run.
func (d *directory) look() error {
	if d.r.root == nil || d.parent != nil && !d.parent.made.Existed {
		return nil
	}
	if d.parent == nil {
		d.made.Existed = true
		return nil
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
	case have.Kind != backup.Directory && d.r.o.Overwrite == Never:
		return fmt.Errorf("a %v is in the way: %w", have.Kind, fs.ErrExist)
	}
	d.made.Existed = have.Kind == backup.Directory
	return nil
}

// open opens it at the target; the caller releases it.
func (d *directory) open() (*target.Dir, error) { return d.r.root.Dir(d.path) }

// list remembers a subdirectory until its page comes. It returns by how much the set has grown.
func (d *directory) list(name string, listed int) int {
	if listed >= maxListedNames {
		d.unlisted = true
		return 0
	}
	if d.children == nil {
		d.children = make(map[string]struct{})
	}
	if _, ok := d.children[name]; ok {
		return 0
	}
	d.children[name] = struct{}{}
	return 1
}

func (d *directory) expects(name string) bool {
	_, ok := d.children[name]
	return ok || d.unlisted || d.partial
}

// saw forgets a subdirectory whose page has come. It returns by how much the set has shrunk.
func (d *directory) saw(name string) int {
	if _, ok := d.children[name]; !ok {
		return 0
	}
	delete(d.children, name)
	return 1
}

var nameSeed = maphash.MakeSeed()

// remember keeps a name from deletion.
func (d *directory) remember(name string) {
	if !d.r.o.Delete {
		return
	}
	if d.names == nil {
		d.names = make(map[uint64]struct{})
	}
	if d.r.remembered.Add(1) > maxRememberedNames {
		d.partial = true // too many to tell what is not among them
	}
	d.names[maphash.String(nameSeed, name)] = struct{}{}
}

// done says that something in the directory, or the planner, has no more to
// do there. The last one finishes it, and tells its parent.
func (d *directory) done() {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if d.ready {
			d.finish()
		}
	}
}

func (d *directory) finish() {
	if d.r.o.Delete && d.made.Existed {
		d.deleteOthers()
	}
	d.r.remembered.Add(-int64(len(d.names)))
	d.names = nil
	if d.r.o.DryRun || d.keep || d.attributesUnknown {
		return
	}
	at, err := d.open()
	if err != nil {
		d.r.problem(d.path, "open directory", err)
		return
	}
	defer at.Release()
	at.FinishDirectory(&d.self, d.made.Existed, func(op string, err error) { d.r.problem(d.path, op, err) })
}

// deleteOthers removes what the snapshot does not have. What is not selected is left alone.
func (d *directory) deleteOthers() {
	if d.attributesUnknown || d.partial {
		d.r.problem(d.path, "delete", errors.New("not all names of this directory are known; nothing in it was deleted"))
		return
	}
	at, err := d.open()
	if err != nil {
		d.r.problem(d.path, "open directory", err)
		return
	}
	defer at.Release()
	err = at.Names(func(name string) error {
		if _, ok := d.names[maphash.String(nameSeed, name)]; !ok {
			d.deleteOne(at, name)
		}
		return nil
	})
	if err != nil {
		d.r.problem(d.path, "delete", err)
	}
}

func (d *directory) deleteOne(at *target.Dir, name string) {
	path := backup.Join(d.path, name)
	have, err := at.Stat(name)
	if err != nil {
		d.r.problem(path, "delete", err)
		return
	}
	directory := have.Kind == backup.Directory
	selected := d.wanted || d.r.o.Include.Excluded(path, directory)
	if !selected || d.r.excluded(path, directory) {
		return
	}
	if d.r.o.DryRun {
		d.r.change(Delete, path, &have)
		return
	}
	err = at.RemoveAll(name, func(path string) { d.r.change(Delete, path, &backup.Entry{}) })
	if err != nil {
		d.r.problem(path, "delete", err)
	}
}
