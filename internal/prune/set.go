package prune

import (
	"encoding/binary"
	"math/bits"

	"github.com/bctl/bctl/internal/backup"
)

// A set holds chunks in a hash table of fingerprints. has is never false for a chunk that was
// added. It is true for about one in 100 billion of the others, so that a set can be used as if it
// were exact: an error keeps a pack until a later pass. Once the set is full, has is true for all
// chunks. It is full when more chunks were added than it was made for, or too many that look alike:
// somebody may have chosen their ids.
type set struct {
	slots []byte // of slotBytes each; 0: free
	size  uint64 // number of slots
	used  uint64
	full  bool
}

const (
	slotBytes = 5
	slotMask  = 1<<(8*slotBytes) - 1
	// slotPadding lets each slot be read as 8 bytes.
	slotPadding = 8 - slotBytes
	minSlots    = 1 << 10
	maxProbes   = 1 << 14
	golden      = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
)

// setSlots returns the slots of a set for n chunks. A fifth of them stays free, because lookups in
// a table that is nearly full take long.
func setSlots(n int64) uint64 { return uint64(n) + uint64(n)/4 + minSlots }

// newSet returns a set for n chunks.
func newSet(n int64) *set {
	size := setSlots(n)
	return &set{slots: make([]byte, size*slotBytes+slotPadding), size: size}
}

// setBytes returns the size of a set for n chunks.
func setBytes(n int64) int64 { return int64(setSlots(n)) * slotBytes }

// find returns the chunk's fingerprint, and the offset of the slot that has it; if there is none,
// of the free slot at which it belongs. ok is false if there are too many slots in between. Slots
// are in the order of the ids, so that chunks that are looked up in this order are near each other.
func (s *set) find(id *backup.ChunkID) (fingerprint, at uint64, found, ok bool) {
	fingerprint = max(binary.BigEndian.Uint64(id[8:])*golden>>(64-8*slotBytes), 1)
	slot, _ := bits.Mul64(binary.BigEndian.Uint64(id[:8]), s.size)
	for range maxProbes {
		at = slot * slotBytes
		switch binary.LittleEndian.Uint64(s.slots[at:]) & slotMask {
		case fingerprint:
			return fingerprint, at, true, true
		case 0:
			return fingerprint, at, false, true
		}
		if slot++; slot == s.size {
			slot = 0
		}
	}
	return 0, 0, false, false
}

func (s *set) add(id *backup.ChunkID) {
	if s.full {
		return
	}
	fingerprint, at, found, ok := s.find(id)
	if found {
		return
	}
	if !ok || s.used >= s.size-s.size/10 {
		s.full = true
		return
	}
	s.used++
	for i := range uint64(slotBytes) {
		s.slots[at+i] = byte(fingerprint >> (8 * i))
	}
}

func (s *set) has(id *backup.ChunkID) bool {
	if s.full {
		return true
	}
	_, _, found, ok := s.find(id)
	return found || !ok
}
