package prune

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A set has each chunk that was added, and no other one, until it is full.
func TestSet(t *testing.T) {
	const chunks = 200_000
	random := rand.NewChaCha8([32]byte{1})
	next := func() (id backup.ChunkID) {
		random.Read(id[:])
		return id
	}
	s := newSet(chunks)
	var added []backup.ChunkID
	for i := range chunks {
		id := next()
		if i%1000 == 0 {
			clear(id[8:]) // its fingerprint would be 0
		}
		s.add(&id)
		s.add(&id)
		added = append(added, id)
	}
	if s.full || s.used > chunks || s.used < chunks-1 {
		t.Errorf("%d slots of %d are used, full %t", s.used, s.size, s.full)
	}
	for i := range added {
		if !s.has(&added[i]) {
			t.Fatalf("it lacks chunk %d", i)
		}
	}
	for range chunks {
		if id := next(); s.has(&id) {
			t.Fatalf("it has %s, which was not added", id)
		}
	}
	for range chunks {
		id := next()
		s.add(&id)
	}
	if id := next(); !s.full || !s.has(&id) {
		t.Error("it has more chunks than it was made for, and lacks one")
	}
	for i := range added {
		if !s.has(&added[i]) {
			t.Fatalf("full, it lacks chunk %d", i)
		}
	}
}

// Chunks that look alike fill a set before a lookup takes long.
func TestSetOfSimilarChunks(t *testing.T) {
	s := newSet(2 * maxProbes)
	var id backup.ChunkID
	for i := range maxProbes + 1 {
		if s.full {
			t.Fatalf("it is full after %d chunks", i)
		}
		binary.BigEndian.PutUint64(id[8:], uint64(i))
		s.add(&id)
	}
	if other := (backup.ChunkID{0xff}); !s.full || !s.has(&id) || !s.has(&other) {
		t.Errorf("full %t, with %d chunks", s.full, s.used)
	}
}
