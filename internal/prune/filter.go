package prune

import (
	"github.com/bctl/bctl/internal/backup"
)

// A filter is a Bloom filter of chunks. has is never false for a chunk that was added. It is true
// for about one in 2,000 of the others, if there are no more chunks than it was made for.
type filter struct {
	bits []uint64 // the number of bits is a power of 2
	mask uint64
}

const (
	filterBits   = 16 // per chunk, at least
	filterHashes = 11
)

// newFilter returns a filter for n chunks.
func newFilter(n int64) *filter {
	bits := uint64(1 << 10)
	for bits < uint64(n)*filterBits {
		bits <<= 1
	}
	return &filter{bits: make([]uint64, bits/64), mask: bits - 1}
}

// filterBytes returns the size of a filter for n chunks.
func filterBytes(n int64) int64 {
	bytes := int64(1 << 7)
	for bytes*8 < n*filterBits {
		bytes <<= 1
	}
	return bytes
}

func (f *filter) add(id *backup.ChunkID) {
	at, step := id.Probes()
	for range filterHashes {
		f.bits[at&f.mask>>6] |= 1 << (at & 63)
		at += step
	}
}

func (f *filter) has(id *backup.ChunkID) bool {
	at, step := id.Probes()
	for range filterHashes {
		if f.bits[at&f.mask>>6]&(1<<(at&63)) == 0 {
			return false
		}
		at += step
	}
	return true
}
