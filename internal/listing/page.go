package listing

import (
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// Where a directory is cut into pages. A page ends before a name whose hash
// says so, once it has minPageEntries; that is a property of the name, so that
// adding one file changes one page, or cuts one in two. The limits on entries
// and bytes cut a page that has met no such name; the next such name brings
// the cuts back in step.
const (
	minPageEntries = 256
	maxPageEntries = 4096
	maxPageBytes   = 128 << 10 // of estimated encoding; one entry may come on top
	boundaryMask   = 1<<10 - 1
)

// Sort puts entries in the order that listings have: by name, bytewise.
func Sort(entries []backup.Entry) {
	slices.SortFunc(entries, func(a, b backup.Entry) int { return strings.Compare(a.Name, b.Name) })
}

// Cut returns how many of the sorted entries make the next page: all of them
// where there are few. When more may follow (the caller has not the whole
// directory in hand) and the page does not end within entries, it returns 0.
func Cut(entries []backup.Entry, more bool) int {
	bytes := 0
	for i := range entries {
		e := &entries[i]
		if i >= maxPageEntries || bytes >= maxPageBytes {
			return i
		}
		if i >= minPageEntries && nameHash(e.Name)&boundaryMask == 0 {
			return i
		}
		bytes += estimate(e)
	}
	if more {
		return 0
	}
	return len(entries)
}

// Key returns the key of a page that is not the first and begins with name.
func Key(name string) backup.PageKey {
	h := nameHash(name) >> 11 // 53 bits, away from those that decide the cuts
	return backup.PageKey(h + 1)
}

// estimate is about what the entry takes in a listing before compression.
func estimate(e *backup.Entry) int {
	n := 64 + len(e.Name) + len(e.Target)
	for i := range e.Xattrs {
		n += len(e.Xattrs[i].Name) + len(e.Xattrs[i].Value) + 4
	}
	return n
}

// nameHash is 64-bit FNV-1a with a final mix, for FNV's low bits are weak. It
// is part of the format: it decides where pages begin.
func nameHash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}
