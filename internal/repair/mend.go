package repair

import (
	"bytes"
	"cmp"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
)

// Mend puts an object of packs together of the sound parts of two copies, the store's and another,
// which are both damaged, or which differ. It needs no key: the checksums of the packs show what is
// sound. known is false if they are not known of all packs, or were adopted: those may be of bytes
// that were damaged already. data is nil if the store's copy, nil if there is none, is as good.
func Mend(packs []index.PackToProve, repository backup.RepositoryID, present, other []byte) (data []byte, known bool) {
	data = bytes.Clone(other)
	if len(present) > len(other) {
		data = bytes.Clone(present)
	}
	lost, before := 0, 0
	for i := range packs {
		p := &packs[i]
		id := cmp.Or(p.Sealed, p.Pack)
		if p.Adopted || !pack.Sums(p.Sums).Fit(len(p.FrameBytes)) || p.Offset < 0 || p.Bytes < 0 || p.Bytes > pack.MaxBytes || p.Offset > pack.MaxBytes-p.Bytes {
			return nil, false
		}
		whole := len(p.FrameBytes) + 1 // more than all frames
		before += damagedIn(cut(present, p.Offset, p.Bytes), p, repository, id, whole)
		mended, damaged, err := pack.Mend([][]byte{cut(present, p.Offset, p.Bytes), cut(other, p.Offset, p.Bytes)}, p.Bytes, repository, id, p.FrameBytes, p.Sums)
		if err != nil {
			lost += whole
			continue
		}
		lost += len(damaged)
		if short := p.Offset + p.Bytes - int64(len(data)); short > 0 {
			data = append(data, make([]byte, short)...)
		}
		copy(data[p.Offset:], mended)
	}
	if lost >= before {
		return nil, len(packs) > 0
	}
	return data, len(packs) > 0
}

// damagedIn returns how many frames of a pack are damaged in a copy; whole, if another part is.
func damagedIn(data []byte, p *index.PackToProve, repository backup.RepositoryID, id backup.PackID, whole int) int {
	damaged, err := pack.Prove(data, repository, id, p.FrameBytes, p.Sums)
	if err != nil {
		return whole
	}
	return len(damaged)
}

// cut returns the part of data from offset on, as far as it is there.
func cut(data []byte, offset, length int64) []byte {
	size := int64(len(data))
	return data[min(offset, size):min(offset+length, size)]
}
