package sqliteindex

import (
	"context"
	"database/sql"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

const (
	// filterBits make 4 MiB. With two million chunks, one in a thousand lookups of an absent chunk
	// is unnecessary. Beyond thirty million most are, as without a filter.
	filterBits = 1 << 25
	// filterProbes is the number of bits per chunk.
	filterProbes = 4
	// fewChunks is how many chunks the index may have when the filter is built. Reading more into
	// the filter could cost more than it saves.
	fewChunks = 1 << 10
)

// A filter (after Bloom) identifies chunks that are surely not in an index that had few when it was
// opened: the first backup of a tree looks up each of its chunks and finds none. The filter does
// not know what another process adds in the meantime; such a chunk is stored twice.
type filter struct {
	words []atomic.Uint64
}

// newFilter returns a filter of the chunks in the index, nil if there are too many.
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

// add adds a chunk to the filter. A nil filter contains all chunks.
func (f *filter) add(id backup.ChunkID) {
	if f == nil {
		return
	}
	at, step := id.Probes()
	for range filterProbes {
		f.words[at%filterBits/64].Or(1 << (at % 64))
		at += step
	}
}

// mayHave returns false if the chunk was surely never added.
func (f *filter) mayHave(id backup.ChunkID) bool {
	if f == nil {
		return true
	}
	at, step := id.Probes()
	for range filterProbes {
		if f.words[at%filterBits/64].Load()&(1<<(at%64)) == 0 {
			return false
		}
		at += step
	}
	return true
}

// addToFilter adds chunks that this process is about to store. The first call builds the filter. A
// process that stores no chunks, such as a reader beside a committer, has no filter, because it
// would never learn of new chunks.
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
