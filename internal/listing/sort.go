package listing

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"github.com/bctl/bctl/internal/backup"
)

// Sort sorts entries in place, bytewise by name, which is the order of listings. It keeps only the
// first entry of each name: a file system may return a name twice if the directory changes while it
// is listed.
func Sort(entries []backup.Entry) []backup.Entry {
	sorted := true
	for i := 1; i < len(entries) && sorted; i++ {
		sorted = entries[i-1].Name < entries[i].Name
	}
	if sorted {
		return entries
	}
	scratch := sortKeys.Get().(*[]sortKey)
	keys := appendKeys((*scratch)[:0], entries)
	twice := false
	slices.SortFunc(keys, func(a, b sortKey) int {
		if a.head != b.head {
			return cmp.Compare(a.head, b.head)
		}
		if c := strings.Compare(entries[a.at].Name, entries[b.at].Name); c != 0 {
			return c
		}
		twice = twice || a.at != b.at
		return cmp.Compare(a.at, b.at)
	})
	arrange(entries, keys)
	if cap(keys) <= keepKeys {
		*scratch = keys
		sortKeys.Put(scratch)
	}
	if twice {
		entries = slices.CompactFunc(entries, func(a, b backup.Entry) bool { return a.Name == b.Name })
	}
	return entries
}

// A sortKey represents an entry, which is expensive to move and to access. The eight bytes of its
// name after the prefix common to all names usually decide the order.
type sortKey struct {
	head uint64
	at   int
}

const keepKeys = 16 << 10

var sortKeys = sync.Pool{New: func() any { return new([]sortKey) }}

func appendKeys(keys []sortKey, entries []backup.Entry) []sortKey {
	common := entries[0].Name
	for i := range entries {
		common = common[:sharedPrefix(common, entries[i].Name)]
	}
	for i := range entries {
		var head [8]byte
		copy(head[:], entries[i].Name[len(common):])
		keys = append(keys, sortKey{binary.BigEndian.Uint64(head[:]), i})
	}
	return keys
}

// arrange moves each entry once, to its sorted position: the i-th key has the present index of the
// entry that belongs at i.
func arrange(entries []backup.Entry, keys []sortKey) {
	for i := range keys {
		if keys[i].at == i {
			continue
		}
		first, to := entries[i], i
		for from := keys[to].at; from != i; from = keys[to].at {
			entries[to], keys[to].at = entries[from], to
			to = from
		}
		entries[to], keys[to].at = first, to
	}
}
