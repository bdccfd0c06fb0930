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
	r := renames{gone: slices.Clone(gone), byInode: make(map[uint64]int, len(gone)), byName: make(map[string]int, len(gone))}
	for i := range gone {
		r.byInode[gone[i].Inode] = i
		for name, ok := gone[i].Name, true; ok; name, ok = withoutEnding(name) {
			if _, taken := r.byName[name]; !taken {
				r.byName[name] = i
			}
		}
	}
	var rest []*backup.Entry
	for i := range entries {
		e := &entries[i]
		if earlier, _ := e.Flags.Earlier(); e.Flags&backup.Wanted == 0 || earlier != backup.NoneEarlier {
			continue
		}
		if was, ok := r.find(e); ok {
			e.Flags = e.Flags.WithEarlier(backup.OtherName, was)
			continue
		}
		rest = append(rest, e)
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
	gone    []Gone // an empty name: it was found
	byInode map[uint64]int
	byName  map[string]int // and by the name without its endings
}

// find returns the class of the gone file that has become e.
func (r *renames) find(e *backup.Entry) (backup.Class, bool) {
	if i, ok := r.byInode[e.Inode]; ok && e.Inode != 0 && r.gone[i].Name != "" {
		return r.take(i), true
	}
	for name, ok := e.Name, true; ok; name, ok = withoutEnding(name) {
		if i, known := r.byName[name]; known && r.gone[i].Name != "" {
			return r.take(i), true
		}
	}
	return backup.Unclassified, false
}

func (r *renames) take(i int) backup.Class {
	r.gone[i].Name = ""
	return r.gone[i].Class
}

// withoutEnding returns the name without what follows its last dot, unless nothing would be left.
func withoutEnding(name string) (string, bool) {
	i := strings.LastIndexByte(name, '.')
	if i <= 0 {
		return "", false
	}
	return name[:i], true
}
