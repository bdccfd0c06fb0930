package pack

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Of two damaged copies, every part that is sound in one of them comes back, and nothing else
// counts as sound.
func TestMend(t *testing.T) {
	data, _, frameBytes := manyFrames(t, newKeys(t), 5)
	sums, err := SumsOf(data, frameBytes)
	if err != nil {
		t.Fatal(err)
	}
	mend := func(copies ...[]byte) ([]byte, []uint32, error) {
		return Mend(copies, int64(len(data)), testRepository, testID, frameBytes, sums)
	}
	flipped := func(at int) []byte {
		other := bytes.Clone(data)
		other[at] ^= 1
		return other
	}
	tr, err := wholeTrailer(data)
	if err != nil {
		t.Fatal(err)
	}
	frameOf := func(at int) int {
		offset := tr.headerBytes
		for n, length := range frameBytes {
			if int64(at) >= offset && int64(at) < offset+int64(length) {
				return n
			}
			offset += int64(length)
		}
		return -1
	}
	for a := range data {
		b := (a + len(data)/2) % len(data)
		mended, damaged, err := mend(flipped(a), flipped(b))
		same := frameOf(a) >= 0 && frameOf(a) == frameOf(b)
		if err != nil || !same && (damaged != nil || !bytes.Equal(mended, data)) || same && !slices.Equal(damaged, []uint32{uint32(frameOf(a))}) {
			t.Fatalf("flipped at %d and %d of %d: %v, %v", a, b, len(data), damaged, err)
		}
		// Damaged at the same place in both: a frame is lost, and more than a frame is all.
		_, damaged, err = mend(flipped(a), flipped(a))
		if n := frameOf(a); n >= 0 && (err != nil || !slices.Equal(damaged, []uint32{uint32(n)})) || n < 0 && !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
			t.Fatalf("flipped at %d in both: %v, %v", a, damaged, err)
		}
		// A copy that has lost its end helps as far as it goes.
		mended, damaged, err = mend(data[:a], flipped(a/2))
		if a > int(tr.headerBytes) && frameOf(a/2) >= 0 && frameOf(a) > frameOf(a/2) && (err != nil || damaged != nil || !bytes.Equal(mended, data)) {
			t.Fatalf("cut at %d, and flipped at %d: %v, %v", a, a/2, damaged, err)
		}
	}
	if _, _, err := mend(nil, data[1:]); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("no copy has a trailer: %v", err)
	}
	if _, _, err := Mend([][]byte{data}, int64(len(data)), testRepository, testID, frameBytes, nil); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("without checksums: %v", err)
	}
}
