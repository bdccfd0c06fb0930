package restore

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// maxGroups bounds the hardlinked files whose further names are waited for.
// Those beyond it become files of their own, and that is reported.
const maxGroups = 1 << 18

// inode is what the names of one file have in common in a snapshot.
type inode struct {
	device, inode uint64
	kind          backup.Kind
	size          int64
}

// A group is one file with several names. It is forgotten when all of them have been seen.
type group struct {
	dir, name string // the first one's, relative to the target
	seen      uint32
	state     groupState
	waiting   []*file // names that came before the first was finished
}

type groupState uint8

const (
	pending groupState = iota
	restored
	lost // the first name could not be restored
)

type linkGroups struct {
	mu     sync.Mutex
	groups map[inode]*group
}

// join takes a file whose inode has several names. It is true when the file
// waits for the first of them, and is settled without its caller.
func (l *linkGroups) join(f *file) bool {
	if f.e.Nlink < 2 {
		return false
	}
	key := inode{f.e.Device, f.e.Inode, f.e.Kind, f.e.Size}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.groups == nil {
		l.groups = make(map[inode]*group)
	}
	g := l.groups[key]
	if g == nil {
		if len(l.groups) >= maxGroups {
			f.report("link", errors.New("too many hardlinked files at once; this name becomes a copy"))
			return false
		}
		f.group = &group{dir: f.dir.path, name: f.e.Name, seen: 1}
		l.groups[key] = f.group
		return false
	}
	f.group, f.further = g, true
	if g.seen++; g.seen >= f.e.Nlink {
		delete(l.groups, key)
	}
	if g.state == pending {
		g.waiting = append(g.waiting, f)
		return true
	}
	return false
}

// resolve makes the names that have waited for the first one.
func (l *linkGroups) resolve(first *file, ok bool) {
	g := first.group
	l.mu.Lock()
	g.state = lost
	if ok {
		g.state = restored
	}
	waiting := g.waiting
	g.waiting = nil
	l.mu.Unlock()
	for _, f := range waiting {
		f.link()
	}
}

// link makes the file a further name of its group's first, and settles it.
func (f *file) link() {
	f.action = Link
	var err error
	switch {
	case f.group.state == lost:
		err = errors.New("the first name of this file could not be restored")
	case !f.r.o.DryRun:
		err = f.linkTo(f.group.dir, f.group.name)
	}
	if err != nil {
		f.fail("link", err)
	}
	f.arrive()
}

func (f *file) linkTo(dir, name string) error {
	at, err := f.dir.open()
	if err != nil {
		return err
	}
	defer at.Release()
	from, err := f.r.root.Dir(dir)
	if err != nil {
		return err
	}
	defer from.Release()
	place := target.Place{Keep: f.r.o.Overwrite == Never}
	if f.dir.made.Existed {
		have, err := at.Stat(f.e.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case f.r.o.Overwrite == Never:
			f.action = Keep
			return nil
		default:
			first, err := from.Stat(name)
			if err != nil {
				return err
			}
			if first.Inode == have.Inode && first.Device == have.Device {
				f.action = Keep
				return nil
			}
			if have.Kind == backup.Directory {
				if err := f.clear(at); err != nil {
					return err
				}
			}
			place.Temporary = true
		}
	}
	return at.Link(from, name, f.e.Name, place)
}
