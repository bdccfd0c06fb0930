package listing

import "github.com/bctl/bctl/internal/backup"

// Where a directory is cut into pages. A page has minPageEntries or half of
// maxPageBytes, and then ends before the next name whose hash says so; where
// none comes before the page is full, before the one of the least hash. Both
// are properties of the names, so that adding one file changes one page, or
// cuts one in two; that a cut moves into the least size of a page, and takes
// the next cut with it, is rare, and stays near.
const (
	minPageEntries = 256
	maxPageEntries = 4096
	maxPageBytes   = 128 << 10 // of estimated encoding; one entry may come on top
	boundaryMask   = 1<<10 - 1
)

// Cut returns how many of the sorted entries make the next page: all of them
// where there are few. When more may follow (the caller has not the whole
// directory in hand) and the page does not end within entries, it returns 0.
// It goes by names and symlink targets alone.
func Cut(entries []backup.Entry, more bool) int {
	bytes, least, leastHash := 0, 0, uint64(0)
	for i := range entries {
		e := &entries[i]
		if i >= maxPageEntries || bytes >= maxPageBytes {
			if least == 0 {
				return i // the entry before is as large as half a page
			}
			return least
		}
		if i >= minPageEntries || bytes >= maxPageBytes/2 {
			h := nameHash(e.Name)
			if h&boundaryMask == 0 {
				return i
			}
			if least == 0 || h < leastHash {
				least, leastHash = i, h
			}
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

// Keys gives the pages of one directory their keys, in their order. The zero
// Keys is for a directory of which only the first page has one: 0.
type Keys struct{ taken map[backup.PageKey]struct{} }

// Next returns the key of the next page, which begins with name. Whoever names
// files can make two names of one hash: the later page has the next free key.
func (k *Keys) Next(name string) backup.PageKey {
	if k.taken == nil {
		k.taken = map[backup.PageKey]struct{}{}
	}
	key := Key(name)
	for {
		if _, taken := k.taken[key]; !taken {
			k.taken[key] = struct{}{}
			return key
		}
		key++
	}
}

// estimate is about what the entry takes in a listing before compression,
// without what a walk does not know when it cuts.
func estimate(e *backup.Entry) int { return 64 + len(e.Name) + len(e.Target) }

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
