package restore

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/restore/target"
)

// maxGroups bounds the hardlinked files that wait for further names. Names of files beyond it
// become files of their own, and each is reported.
const maxGroups = 1 << 18

// A group is one file with several names. It is forgotten when all of them have been seen.
type group struct {
	dir, name string      // of the first name, relative to the target
	born      backup.Time // zero: of none of the names that were seen
	seen      uint32
	keys      []hardlink.Key
	state     groupState
	kept      bool    // the first name was kept at the target
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
	groups map[hardlink.Key]*group // by each of the keys of a group
	number int                     // of groups
}

// join adds a file whose inode has several names to its group. It is true if the file waits for the
// first name; the group then settles the file, not the caller.
func (p *planner) join(f *file) bool {
	if !hardlink.HasOthers(&f.e) || f.staysAnyway() {
		return false
	}
	return p.r.links.join(p.keyer.Keys(uint64(f.dir.volume), &f.e), f)
}

// staysAnyway reports whether an existing entry of this name stays as it is because of Overwrite.
// Such an entry is not a name of the snapshot's file.
func (f *file) staysAnyway() bool {
	if f.r.o.Overwrite != Never && f.r.o.Overwrite != IfNewer || !f.dir.made.Existed {
		return false
	}
	at, err := f.dir.open()
	if err != nil {
		return true // decide reports it
	}
	defer at.Release()
	have, err := at.Stat(f.e.Name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // decide reports it
	}
	return f.r.o.outranks(&have, &f.e)
}

func (l *linkGroups) join(keys []hardlink.Key, f *file) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.groups == nil {
		l.groups = make(map[hardlink.Key]*group)
	}
	var g *group
	for _, key := range keys {
		if found := l.groups[key]; found != nil && found.mayHave(&f.e) {
			g = found
			break
		}
	}
	if g == nil {
		if l.number >= maxGroups {
			f.report("link", errors.New("too many files with hard links at a time; this name becomes a copy"))
			return false
		}
		f.group = &group{dir: f.dir.path, name: f.e.Name, born: f.e.Btime, seen: 1}
		l.number++
		l.learn(f.group, keys)
		return false
	}
	f.group, f.further = g, true
	if g.born.IsZero() {
		g.born = f.e.Btime
	}
	l.learn(g, keys)
	if g.seen++; g.seen >= f.e.Nlink {
		l.forget(g)
	}
	if g.state == pending {
		g.waiting = append(g.waiting, f)
		return true
	}
	return false
}

// mayHave reports whether an entry that has a key of the group may be a name of its file: their
// birth times are equal, or one of them is unknown.
func (g *group) mayHave(e *backup.Entry) bool {
	return g.born.IsZero() || e.Btime.IsZero() || g.born == e.Btime
}

// maxGroupKeys bounds the keys of one group. Its names may have been backed up in many forms.
const maxGroupKeys = 16

// learn registers the group under keys, except those under which a group is registered already.
func (l *linkGroups) learn(g *group, keys []hardlink.Key) {
	for _, key := range keys {
		if l.groups[key] == nil && len(g.keys) < maxGroupKeys {
			l.groups[key] = g
			g.keys = append(g.keys, key)
		}
	}
}

// forget removes a group of which all names were seen.
func (l *linkGroups) forget(g *group) {
	for _, key := range g.keys {
		delete(l.groups, key)
	}
	g.keys = nil
	l.number--
}

// resolve creates the names that have waited for the first one.
func (l *linkGroups) resolve(first *file, ok bool) {
	g := first.group
	l.mu.Lock()
	g.state, g.kept = lost, first.action.stays()
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

// link makes the file a further name of its group's first name, and settles it.
func (f *file) link() {
	f.action = Link
	err := errors.New("the first name of this file could not be restored")
	if f.group.state != lost {
		err = f.linkToFirst()
	}
	if err != nil {
		f.fail("link", err)
	}
	f.arrive()
}

func (f *file) linkToFirst() error {
	how := target.CreateOptions{Keep: f.r.o.Overwrite == Never || f.r.o.Overwrite == IfNewer}
	if f.dir.made.Existed {
		if err := f.meetLink(&how); err != nil || f.action == Keep {
			return err
		}
	}
	if f.r.o.DryRun {
		return nil
	}
	at, err := f.dir.open()
	if err != nil {
		return err
	}
	defer at.Release()
	from, err := f.r.root.Dir(f.group.dir)
	if err != nil {
		return err
	}
	defer from.Release()
	return at.Link(from, f.group.name, f.e.Name, how)
}

// meetLink decides what to do with an existing entry of the file's name.
func (f *file) meetLink(how *target.CreateOptions) error {
	at, err := f.dir.open()
	if err != nil {
		return err
	}
	defer at.Release()
	have, err := at.Stat(f.e.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if err := f.dir.checkCase(at, f.e.Name); err != nil {
		return err
	}
	is, err := f.isFirst(&have)
	switch {
	case err != nil:
		return err
	case is || f.r.o.outranks(&have, &f.e):
		f.action, f.theirs = Keep, !is
		return nil
	case f.r.o.protected(&have) != nil:
		return errProtected
	case have.Kind == backup.Directory:
		if err := f.clear(at); err != nil {
			return err
		}
	}
	how.Temporary, how.Keep = true, f.r.o.Overwrite == Never
	return nil
}

// isFirst reports whether the existing entry already is a name of the group's first file.
func (f *file) isFirst(have *backup.Entry) (bool, error) {
	if f.r.o.DryRun && !f.group.kept {
		return false, nil // by then it would be another file, or it does not exist yet
	}
	from, err := f.r.root.Dir(f.group.dir)
	if err != nil {
		return false, err
	}
	defer from.Release()
	first, err := from.Stat(f.group.name)
	return first.Inode == have.Inode && first.Device == have.Device, err
}

// inodes are the inodes at the target that have several names and of which one name was kept. Any
// other name of such an inode belongs to another file of the snapshot, unless it is a further name
// of the same group.
type inodes struct {
	mu   sync.Mutex
	seen map[[2]uint64]struct{} // by device and inode
}

// take is true on the first call for an inode. It is false for every inode beyond maxGroups.
func (s *inodes) take(have *backup.Entry) bool {
	key := [2]uint64{have.Device, have.Inode}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[[2]uint64]struct{})
	}
	if _, ok := s.seen[key]; ok || len(s.seen) >= maxGroups {
		return false
	}
	s.seen[key] = struct{}{}
	return true
}
