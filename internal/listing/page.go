package listing

import "github.com/bctl/bctl/internal/backup"

// The division of a directory into pages. After minPageEntries or half of maxPageBytes, a page ends
// before the next name whose hash marks a cut; if there is none before the page is full, it ends
// before the name with the lowest hash. Both depend only on the names, so that adding one file
// changes one page, or cuts one page in two. In rare cases a cut moves into the minimum size of a
// page and displaces the next cut; such changes stay local.
const (
	minPageEntries = 256
	maxPageEntries = 4096
	maxPageBytes   = 128 << 10 // of estimated encoding; one entry may exceed it
	boundaryMask   = 1<<10 - 1
)

// Cut returns how many of the sorted entries make up the next page: all of them if there are few.
// If more may follow (the caller has only part of the directory) and the page does not end within
// entries, Cut returns 0. It depends only on names and symlink targets.
func Cut(entries []backup.Entry, more bool) int {
	bytes, least, leastHash := 0, 0, uint64(0)
	for i := range entries {
		e := &entries[i]
		if i >= maxPageEntries || bytes >= maxPageBytes {
			if least == 0 {
				return i // the previous entry is as large as half a page
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

// Key returns the key of a page, other than the first, that begins with name.
func Key(name string) backup.PageKey {
	h := nameHash(name) >> 11 // 53 bits, disjoint from those that decide the cuts
	return backup.PageKey(h + 1)
}

// Keys assigns keys to the pages of one directory, in order. The zero Keys is for a directory in
// which only the first page has a key, 0.
type Keys struct{ taken map[backup.PageKey]struct{} }

// Next returns the key of the next page, which begins with name. Users can choose file names with
// equal hashes; the later page then gets the next free key.
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

// estimate returns approximately the length of the entry in a listing before compression, without
// the data that a walk does not have when it cuts.
func estimate(e *backup.Entry) int { return 64 + len(e.Name) + len(e.Target) }

// nameHash is 64-bit FNV-1a with a final mix, because FNV's low bits are weak. It is part of the
// format: it decides where pages begin.
func nameHash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}
