package listing

import (
	"cmp"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A Gone is a file of the earlier snapshot whose name its directory no longer has.
type Gone struct {
	Name  string
	Inode uint64
	Class backup.Class
}

// Rename tells Wanted files without an earlier one of the same name (TakeOver) what the earlier
// snapshot has in their place. A file has another name if a gone one has its inode, or a name that
// differs only in what follows a dot: "a.doc" and "a.doc.locked", "a.doc" and "a.lock". What is
// left of both takes each other's place in any order: only how many there are of each class
// matters. There, a gone file without a class stands for nothing. Rename returns the gone files
// that are still left.
func Rename(entries []backup.Entry, gone []Gone) []Gone {
	r := renames{gone: slices.Clone(gone)}
	rest := r.byInode(entries)
	if len(rest) > 0 {
		rest = r.byName(rest)
	}
	left := slices.DeleteFunc(r.gone, func(g Gone) bool { return g.Name == "" })
	slices.SortStableFunc(left, func(a, b Gone) int { return cmp.Compare(order(a.Class), order(b.Class)) })
	for i := range rest {
		if i == len(left) || left[i].Class == backup.Unclassified {
			return left[min(i, len(left)):]
		}
		rest[i].Flags = rest[i].Flags.WithEarlier(backup.SameName, left[i].Class)
	}
	return left[min(len(rest), len(left)):]
}

// order sorts what is unclassified behind what has a class.
func order(c backup.Class) backup.Class { return c - 1 }

type renames struct {
	gone []Gone // an empty name: it was found
}

// byInode finds gone files that have become entries with their inodes. It returns the other new
// entries.
func (r *renames) byInode(entries []backup.Entry) (rest []*backup.Entry) {
	inodes := make(map[uint64]int, len(r.gone))
	for i := range r.gone {
		inodes[r.gone[i].Inode] = i
	}
	for i := range entries {
		e := &entries[i]
		if earlier, _ := e.Flags.Earlier(); e.Flags&backup.Wanted == 0 || earlier != backup.NoneEarlier {
			continue
		}
		if i, ok := inodes[e.Inode]; !ok || e.Inode == 0 || !r.take(i, e) {
			rest = append(rest, e)
		}
	}
	return rest
}

// byName does the same by names without some of their endings.
func (r *renames) byName(entries []*backup.Entry) (rest []*backup.Entry) {
	names := make(map[string]int, len(r.gone))
	for i := range r.gone {
		for name, ok := r.gone[i].Name, r.gone[i].Name != ""; ok; name, ok = withoutEnding(name) {
			if _, taken := names[name]; !taken {
				names[name] = i
			}
		}
	}
	find := func(e *backup.Entry) bool {
		for name, ok := e.Name, true; ok; name, ok = withoutEnding(name) {
			if i, known := names[name]; known && r.take(i, e) {
				return true
			}
		}
		return false
	}
	for _, e := range entries {
		if !find(e) {
			rest = append(rest, e)
		}
	}
	return rest
}

// take lets an entry take the place of a gone file. It reports false if another has taken it.
func (r *renames) take(i int, e *backup.Entry) bool {
	if r.gone[i].Name == "" {
		return false
	}
	e.Flags = e.Flags.WithEarlier(backup.OtherName, r.gone[i].Class)
	r.gone[i].Name = ""
	return true
}

// withoutEnding returns the name without what follows its last dot, unless nothing would be left.
func withoutEnding(name string) (string, bool) {
	i := strings.LastIndexByte(name, '.')
	if i <= 0 {
		return "", false
	}
	return name[:i], true
}
