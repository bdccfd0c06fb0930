package churn

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A Count is the changes of some files.
type Count struct {
	New, Changed, Renamed, Removed, TypesLost, Opaque int64
}

func (c *Count) add(d Count) {
	c.New += d.New
	c.Changed += d.Changed
	c.Renamed += d.Renamed
	c.Removed += d.Removed
	c.TypesLost += d.TypesLost
	c.Opaque += d.Opaque
}

// files is the number of changes.
func (c *Count) files() int64 { return c.New + c.Changed + c.Renamed + c.Removed }

// maxOwners bounds the owners that are counted; changes of others are counted in directories
// only.
const maxOwners = 1024

// A Tally counts changes by directory and by owner. It keeps a bounded number of directories: if
// there are more, deep ones are counted with the directories above them.
type Tally struct {
	most   int
	depth  int // of the deepest directories that are told apart; -1: all are
	byDir  map[string]*Count
	owners map[uint32]*Count
}

// NewTally returns a Tally of at most so many directories.
func NewTally(directories int) *Tally {
	return &Tally{most: directories, depth: -1, byDir: map[string]*Count{}, owners: map[uint32]*Count{}}
}

// Add counts changes of a file in a directory.
func (t *Tally) Add(directory string, owner uint32, c Count) {
	if t.depth >= 0 {
		directory = upTo(directory, t.depth)
	}
	t.at(directory).add(c)
	for len(t.byDir) > t.most {
		t.fold()
	}
	o := t.owners[owner]
	if o == nil {
		if len(t.owners) >= maxOwners {
			return
		}
		o = &Count{}
		t.owners[owner] = o
	}
	o.add(c)
}

func (t *Tally) at(directory string) *Count {
	c := t.byDir[directory]
	if c == nil {
		c = &Count{}
		t.byDir[strings.Clone(directory)] = c
	}
	return c
}

// fold counts the deepest directories with those above them.
func (t *Tally) fold() {
	deepest := 0
	for d := range t.byDir {
		deepest = max(deepest, depthOf(d))
	}
	t.depth = deepest - 1
	old := t.byDir
	t.byDir = map[string]*Count{}
	for d, c := range old {
		t.at(upTo(d, t.depth)).add(*c)
	}
}

// depthOf is the number of names in a path.
func depthOf(path string) int {
	if path == "" {
		return 0
	}
	return 1 + strings.Count(path, "/")
}

// upTo returns the first names of a path.
func upTo(path string, depth int) string {
	if depth == 0 {
		return ""
	}
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		if depth--; depth == 0 {
			return path[:i]
		}
	}
	return path
}

// A Part is the count of a directory, with those below it that are not told apart, or of an owner.
type Part[K cmp.Ordered] struct {
	Of K
	Count
}

// Directories returns the directories, those with the most opaque files first.
func (t *Tally) Directories() []Part[string] { return parts(t.byDir) }

// Owners returns the owners in the same way.
func (t *Tally) Owners() []Part[uint32] { return parts(t.owners) }

func parts[K cmp.Ordered](of map[K]*Count) []Part[K] {
	list := make([]Part[K], 0, len(of))
	for _, k := range slices.Sorted(maps.Keys(of)) {
		list = append(list, Part[K]{k, *of[k]})
	}
	slices.SortStableFunc(list, func(a, b Part[K]) int {
		return cmp.Or(cmp.Compare(b.Opaque, a.Opaque), cmp.Compare(b.TypesLost, a.TypesLost), cmp.Compare(b.files(), a.files()))
	})
	return list
}

// Opaque reports whether e is a file that is opaque and has changed since a time: without an
// earlier version of it, this is as near as one gets to a file that became opaque.
func Opaque(e *backup.Entry, since backup.Time) bool {
	return e.Kind == backup.File && e.Flags.Class() == backup.Opaque && changed(e).Compare(since) >= 0
}

// changed returns when a file last changed. Programs can set the mtime, and not the ctime.
func changed(e *backup.Entry) backup.Time {
	if e.Ctime.IsZero() {
		return e.Mtime
	}
	return e.Ctime
}
