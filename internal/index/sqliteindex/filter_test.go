package sqliteindex

import (
	"encoding/binary"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

func chunkID(n uint64) backup.ChunkID {
	sum := blake3.Sum256(binary.LittleEndian.AppendUint64(nil, n))
	return backup.ChunkID(sum[:16])
}

// Chunks that were added are always found; others almost never.
func TestFilter(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	const chunks = 1_000_000
	f := &filter{words: make([]atomic.Uint64, filterBits/64)}
	for i := range uint64(chunks) {
		f.add(chunkID(i))
	}
	wrong := 0
	for i := range uint64(chunks) {
		if !f.mayHave(chunkID(i)) {
			t.Fatalf("chunk %d was added, and is denied", i)
		}
		if f.mayHave(chunkID(chunks + i)) {
			wrong++
		}
	}
	if wrong > chunks/1000 {
		t.Errorf("%d of %d chunks that were not added may be there", wrong, chunks)
	}
}

// An index with more than a few chunks is queried for each chunk.
func TestFilterOfAFullIndex(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	for _, test := range []struct {
		chunks uint64
		filter bool
	}{{0, true}, {fewChunks, true}, {fewChunks + 1, false}} {
		x, err := Open(t.Context(), filepath.Join(t.TempDir(), "index.db"))
		if err != nil {
			t.Fatal(err)
		}
		b := x.backend
		if _, _, err := x.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range test.chunks {
			id := chunkID(i)
			if _, err := b.writer.ExecContext(t.Context(), insertChunk, id[:], 1, 0, 0, 1); err != nil {
				t.Fatal(err)
			}
		}
		if b.filter.Load() != nil {
			t.Error("a process that has stored nothing has a filter")
		}
		if err := b.addToFilter(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		f := b.filter.Load()
		if (f != nil) != test.filter {
			t.Errorf("%d chunks: a filter: %v", test.chunks, f != nil)
		}
		for i := range test.chunks {
			if !f.mayHave(chunkID(i)) {
				t.Fatalf("chunk %d is in the index, and is denied", i)
			}
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
