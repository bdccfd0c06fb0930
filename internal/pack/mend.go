package pack

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// Mend puts a data pack together of the sound parts of several damaged copies of it, without a key:
// checksums show which parts are sound. A copy may lack its end. It returns the pack, and the
// frames that are damaged in all copies. It fails with backup.ErrCorrupt if another part is damaged
// in all of them, or if there are no checksums.
func Mend(copies [][]byte, packBytes int64, repository backup.RepositoryID, id backup.PackID, frameBytes []uint32, sums Sums) (data []byte, damaged []uint32, err error) {
	if !sums.Fit(len(frameBytes)) || packBytes > MaxBytes {
		return nil, nil, fmt.Errorf("%d bytes of checksums for %d frames of a pack of %d bytes: %w", len(sums), len(frameBytes), packBytes, backup.ErrCorrupt)
	}
	err = fmt.Errorf("the trailer of the pack is damaged in all copies: %w", backup.ErrCorrupt)
	for _, base := range copies {
		if int64(len(base)) != packBytes {
			continue
		}
		t, wrong := wholeTrailer(base)
		if wrong != nil {
			continue
		}
		m := mending{data: bytes.Clone(base), copies: copies}
		m.part(0, t.headerBytes, func() bool { return inspect(m.data, m.data, packBytes, repository, id) == nil })
		offset := t.headerBytes
		for n := range len(frameBytes) + 1 {
			length := t.tableBytes
			if n < len(frameBytes) {
				length = int64(frameBytes[n])
			}
			if length == 0 {
				continue
			}
			if length > packBytes-offset {
				break // Prove finds it
			}
			m.part(offset, length, func() bool { return bytes.Equal(sumOf(m.data[offset:][:length]), sums[n*SumBytes:][:SumBytes]) })
			offset += length
		}
		if damaged, err = Prove(m.data, repository, id, frameBytes, sums); err == nil {
			return m.data, damaged, nil
		}
	}
	return nil, nil, err
}

// A mending is a pack, and copies of it.
type mending struct {
	data   []byte
	copies [][]byte
}

// part replaces a damaged part by that of the first copy in which the part is sound.
func (m *mending) part(offset, length int64, sound func() bool) {
	if sound() {
		return
	}
	at := m.data[offset:][:length]
	before := slices.Clone(at)
	for _, other := range m.copies {
		if int64(len(other)) >= offset+length {
			copy(at, other[offset:])
			if sound() {
				return
			}
		}
	}
	copy(at, before)
}
