package sqliteindex

import (
	"context"
	"database/sql"
	"encoding/binary"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

const (
	// filterBits make 4 MiB: of two million chunks one in a thousand is looked
	// up in vain, and beyond thirty million most are, as without a filter.
	filterBits = 1 << 25
	// filterProbes of each chunk.
	filterProbes = 4
	// fewChunks is how many the index may have to begin with: reading more
	// into the filter could cost more than it saves.
	fewChunks = 1 << 10
)

// A filter (after Bloom) tells which chunks are surely not in an index that had few when
// it was opened: the first backup of a tree asks for each of its chunks, and has none. What
// another process adds meanwhile the filter does not know; such a chunk is stored twice.
type filter struct {
	words []atomic.Uint64
}

// newFilter returns a filter of the chunks that are in the index, nil if they are not few.
func newFilter(ctx context.Context, db *sql.DB) (*filter, error) {
	rows, err := db.QueryContext(ctx, "SELECT id FROM chunks LIMIT ?", fewChunks+1)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	f := &filter{words: make([]atomic.Uint64, filterBits/64)}
	count := 0
	for rows.Next() {
		var id sql.RawBytes
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		f.add(backup.ChunkID(id))
		count++
	}
	if count > fewChunks {
		f = nil
	}
	return f, rows.Err()
}

// add has the filter know a chunk. A nil filter knows all.
func (f *filter) add(id backup.ChunkID) {
	if f == nil {
		return
	}
	at, step := positions(id)
	for range filterProbes {
		f.words[at%filterBits/64].Or(1 << (at % 64))
		at += step
	}
}

// mayHave returns false where the chunk was surely never added.
func (f *filter) mayHave(id backup.ChunkID) bool {
	if f == nil {
		return true
	}
	at, step := positions(id)
	for range filterProbes {
		if f.words[at%filterBits/64].Load()&(1<<(at%64)) == 0 {
			return false
		}
		at += step
	}
	return true
}

// positions returns where in the filter a chunk begins, and how far apart its bits are. A chunk's id is a hash already.
func positions(id backup.ChunkID) (at, step uint64) {
	return binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:]) | 1
}

// addToFilter has the filter know chunks that this process is about to store. It makes the filter the first time: a
// process that stores none, such as a reader beside a committer, has no filter, for it would never learn.
func (b *backend) addToFilter(ctx context.Context, rows []entindex.ChunkRow) error {
	b.filtering.Lock()
	defer b.filtering.Unlock()
	if !b.filtered {
		f, err := newFilter(ctx, b.readers)
		if err != nil {
			return b.Wrap(err)
		}
		b.filter.Store(f)
		b.filtered = true
	}
	f := b.filter.Load()
	for i := range rows {
		f.add(rows[i].ID)
	}
	return nil
}
