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
	windowMarks = 8192 // fetched by one query
	maxWindows  = 4    // held in memory
)

// marks provides the fingerprints of the last snapshot's pages. It fetches those of whole subtrees
// at a time, in the order of the walk, and holds a bounded number of them.
type marks struct {
	index index.Walking
	shard backup.ShardID
	base  backup.SnapshotNumber
	to    []byte // end of the task's directories

	mu      sync.Mutex
	windows []*window // the newest last
}

// A window has the marks of all directories whose path keys are in [from, to).
type window struct {
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
	for _, w := range m.windows {
		if bytes.Compare(w.from, key) <= 0 && (w.to == nil || bytes.Compare(key, w.to) < 0) {
			return w.of(path), nil
		}
	}
	w, err := m.load(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(m.windows) == maxWindows {
		copy(m.windows, m.windows[1:])
		m.windows = m.windows[:maxWindows-1]
	}
	m.windows = append(m.windows, w)
	return w.of(path), nil
}

func (m *marks) load(ctx context.Context, from []byte) (*window, error) {
	to := m.to
	if to != nil && bytes.Compare(from, to) >= 0 {
		to = nil
	}
	found, next, err := m.index.Marks(ctx, m.shard, m.base, from, to, windowMarks)
	if err != nil {
		return nil, err
	}
	w := &window{from: from, to: next, marks: found, first: make(map[backup.DirectoryID]int32, len(found))}
	if next == nil {
		w.to = to
	}
	for i := range found {
		if i == 0 || found[i].Directory != found[i-1].Directory {
			w.first[found[i].Directory] = int32(i)
		}
	}
	return w, nil
}

func (w *window) of(path string) []index.PageMark {
	id := listing.DirectoryID(path)
	first, ok := w.first[id]
	if !ok {
		return nil
	}
	end := int(first)
	for end < len(w.marks) && w.marks[end].Directory == id {
		end++
	}
	return w.marks[first:end]
}
