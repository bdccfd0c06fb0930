package walk

import (
	"bytes"
	"context"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

const (
	rangeMarks = 8192 // fetched by one query
	maxRanges  = 4    // held in memory
)

// marks provides the fingerprints of the last snapshot's pages. It fetches those of whole subtrees
// at a time, in the order of the walk, and holds a bounded number of them.
type marks struct {
	index index.Walking
	shard backup.ShardID
	base  backup.SnapshotNumber
	to    []byte // end of the task's directories

	mu     sync.Mutex
	ranges []*markRange // the newest last
}

// A markRange has the marks of all directories whose path keys are in [from, to).
type markRange struct {
	from, to []byte // to nil: no end
	marks    []index.PageMark
	first    map[backup.DirectoryID]int32 // index of a directory's first mark
}

func newMarks(idx index.Walking, shard backup.ShardID, base backup.SnapshotNumber, directories []string) *marks {
	m := &marks{index: idx, shard: shard, base: base}
	if n := len(directories); n > 0 {
		m.to = backup.PathKeyEnd(directories[n-1])
	}
	return m
}

// of returns the marks of a directory's pages, which the caller must not change. It returns none if
// the last snapshot does not have the directory.
func (m *marks) of(ctx context.Context, path string) ([]index.PageMark, error) {
	if m.base == 0 {
		return nil, nil
	}
	key := backup.PathKey(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.ranges {
		if bytes.Compare(r.from, key) <= 0 && (r.to == nil || bytes.Compare(key, r.to) < 0) {
			return r.of(path), nil
		}
	}
	r, err := m.load(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(m.ranges) == maxRanges {
		copy(m.ranges, m.ranges[1:])
		m.ranges = m.ranges[:maxRanges-1]
	}
	m.ranges = append(m.ranges, r)
	return r.of(path), nil
}

func (m *marks) load(ctx context.Context, from []byte) (*markRange, error) {
	to := m.to
	if to != nil && bytes.Compare(from, to) >= 0 {
		to = nil
	}
	found, next, err := m.index.Marks(ctx, m.shard, m.base, from, to, rangeMarks)
	if err != nil {
		return nil, err
	}
	r := &markRange{from: from, to: next, marks: found, first: make(map[backup.DirectoryID]int32, len(found))}
	if next == nil {
		r.to = to
	}
	for i := range found {
		if i == 0 || found[i].Directory != found[i-1].Directory {
			r.first[found[i].Directory] = int32(i)
		}
	}
	return r, nil
}

func (r *markRange) of(path string) []index.PageMark {
	id := listing.DirectoryID(path)
	first, ok := r.first[id]
	if !ok {
		return nil
	}
	end := int(first)
	for end < len(r.marks) && r.marks[end].Directory == id {
		end++
	}
	return r.marks[first:end]
}
