package check

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
)

// An idSet is a set of chunks. It has 64 bits of each id, which depend on all of it. One in 2^64
// pairs of ids is taken for equal.
type idSet struct {
	slots []uint64 // 0: empty
	n     int
}

// slotBytes is the memory for one chunk: the set is at most four fifths full.
const slotBytes = 10

func newIDSet(n int64) *idSet { return &idSet{slots: make([]uint64, max(n, 16)*5/4+1)} }

func keyOf(id *backup.ChunkID) uint64 {
	return max(binary.LittleEndian.Uint64(id[:8])*0x9e3779b97f4a7c15+binary.LittleEndian.Uint64(id[8:]), 1)
}

// slot returns the slot of a key, or the empty slot in which to put it.
func (s *idSet) slot(key uint64) int {
	at, _ := bits.Mul64(key, uint64(len(s.slots)))
	for i := int(at); ; i++ {
		if i == len(s.slots) {
			i = 0
		}
		if s.slots[i] == key || s.slots[i] == 0 {
			return i
		}
	}
}

func (s *idSet) add(id *backup.ChunkID) {
	if s.n >= len(s.slots)/5*4 {
		old := s.slots
		s.slots, s.n = make([]uint64, 2*len(old)), 0
		for _, key := range old {
			if key != 0 {
				s.put(key)
			}
		}
	}
	s.put(keyOf(id))
}

func (s *idSet) put(key uint64) {
	if i := s.slot(key); s.slots[i] == 0 {
		s.slots[i] = key
		s.n++
	}
}

func (s *idSet) has(id *backup.ChunkID) bool { return s.slots[s.slot(keyOf(id))] != 0 }

// A markedSet is an idSet that is complete, and whose elements can be marked concurrently.
type markedSet struct {
	*idSet
	marks []atomic.Uint32
}

func newMarkedSet(s *idSet) *markedSet {
	return &markedSet{s, make([]atomic.Uint32, len(s.slots)/32+1)}
}

// mark marks an element. It reports whether the set has it.
func (s *markedSet) mark(id *backup.ChunkID) bool {
	i := s.slot(keyOf(id))
	if s.slots[i] == 0 {
		return false
	}
	if bit := uint32(1) << (i % 32); s.marks[i/32].Load()&bit == 0 {
		s.marks[i/32].Or(bit)
	}
	return true
}

func (s *markedSet) marked(id *backup.ChunkID) bool {
	i := s.slot(keyOf(id))
	return s.slots[i] != 0 && s.marks[i/32].Load()&(1<<(i%32)) != 0
}
