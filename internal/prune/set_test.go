package prune

import (
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
			clear(id[:8]) // its fingerprint would be 0
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

// Chunks whose ids differ in one byte only are told apart, wherever it is.
func TestSetOfSimilarChunks(t *testing.T) {
	for at := range len(backup.ChunkID{}) {
		s := newSet(256)
		for digit := range 128 {
			id := backup.ChunkID{}
			id[at] = byte(2 * digit)
			s.add(&id)
		}
		for digit := range 256 {
			id := backup.ChunkID{}
			id[at] = byte(digit)
			if added := digit%2 == 0; s.has(&id) != added {
				t.Errorf("byte %d, %s: %t", at, id, !added)
			}
		}
	}
}
