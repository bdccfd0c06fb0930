package pack

import (
	"bytes"
	"fmt"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// SumBytes is the length of the checksum of one part of a pack: the beginning of its BLAKE3.
const SumBytes = 8

// Sums are the checksums of a data pack, as it was sealed: of each frame that it ever had, in their
// order, and of the sealed table. That of a removed frame is zero. Header and trailer have
// checksums of their own. With Sums, a pack can be proven without its key, also after it was
// thinned. They find damage, and not a forger who can change the index.
type Sums []byte

// Fit reports whether s can be the checksums of a pack of that many frames.
func (s Sums) Fit(frames int) bool { return len(s) == (frames+1)*SumBytes }

// Keep returns the checksums of a copy of the pack that has only the given frames.
func (s Sums) Keep(keep func(frame int) bool) Sums {
	kept := bytes.Clone(s)
	for n := 0; (n+2)*SumBytes <= len(kept); n++ {
		if !keep(n) {
			clear(kept[n*SumBytes:][:SumBytes])
		}
	}
	return kept
}

// SumsOf returns the checksums of a whole data pack. frameBytes are the stored lengths of its
// frames, 0 for those that were removed. It fails with backup.ErrCorrupt if data is not a data pack
// of these frames.
func SumsOf(data []byte, frameBytes []uint32) (Sums, error) {
	sections, err := sectionsOf(data, frameBytes)
	if err != nil {
		return nil, fmt.Errorf("checksums of a pack: %w", err)
	}
	sums := make(Sums, 0, len(sections)*SumBytes)
	for _, section := range sections {
		sums = append(sums, sumOf(section)...)
	}
	return sums, nil
}

// Prove compares a whole data pack with what was known of it when it was sealed. It returns the
// frames that are damaged. If more than frames is damaged, or if it is not the repository's pack
// with this id, the error is backup.ErrCorrupt. Without sums, only header, trailer and lengths are
// compared.
func Prove(data []byte, repository backup.RepositoryID, id backup.PackID, frameBytes []uint32, sums Sums) (damaged []uint32, err error) {
	if err := inspect(data, data, int64(len(data)), repository, id); err != nil {
		return nil, err
	}
	sections, err := sectionsOf(data, frameBytes)
	if err != nil || len(sums) == 0 {
		return nil, err
	}
	if !sums.Fit(len(frameBytes)) {
		return nil, fmt.Errorf("%d bytes of checksums for %d frames: %w", len(sums), len(frameBytes), backup.ErrCorrupt)
	}
	for n, section := range sections {
		if bytes.Equal(sumOf(section), sums[n*SumBytes:][:SumBytes]) {
			continue
		}
		if n == len(frameBytes) {
			return nil, fmt.Errorf("the table does not match its checksum: %w", backup.ErrCorrupt)
		}
		damaged = append(damaged, uint32(n))
	}
	return damaged, nil
}

// sumOf returns the checksum of a section; nil, for a frame that was removed, has zeros.
func sumOf(section []byte) []byte {
	if section == nil {
		return make([]byte, SumBytes)
	}
	sum := blake3.Sum256(section)
	return sum[:SumBytes]
}

// sectionsOf returns the frames of a data pack, nil for those that were removed, and then its
// sealed table.
func sectionsOf(data []byte, frameBytes []uint32) ([][]byte, error) {
	t, err := wholeTrailer(data)
	if err != nil {
		return nil, err
	}
	if len(frameBytes) == 0 || len(frameBytes) > MaxFrames || t.signatureBytes != 0 {
		return nil, fmt.Errorf("%d frames, and a signature of %d bytes: %w", len(frameBytes), t.signatureBytes, backup.ErrCorrupt)
	}
	present := bitmap(data[t.bitmapOffset():][:t.bitmapBytes])
	if !present.fits(len(frameBytes)) {
		return nil, fmt.Errorf("bitmap of %d bytes for %d frames: %w", len(present), len(frameBytes), backup.ErrCorrupt)
	}
	sections := make([][]byte, 0, len(frameBytes)+1)
	offset := t.headerBytes
	for n, length := range frameBytes {
		if present.has(n) != (length > 0) || int64(length) > t.tableOffset()-offset {
			return nil, fmt.Errorf("frame %d of %d bytes: it is not there, or reaches beyond the frames: %w", n, length, backup.ErrCorrupt)
		}
		var section []byte
		if length > 0 {
			section = data[offset:][:length]
		}
		sections = append(sections, section)
		offset += int64(length)
	}
	if offset != t.tableOffset() {
		return nil, fmt.Errorf("frames end at %d, not at %d: %w", offset, t.tableOffset(), backup.ErrCorrupt)
	}
	return append(sections, data[offset:][:t.tableBytes]), nil
}
