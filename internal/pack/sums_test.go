package pack

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

func prove(data []byte, lengths []uint32, sums Sums) ([]uint32, error) {
	return Prove(data, testRepository, testID, lengths, sums)
}

// A flip of any bit of a pack is found without a key. If it is in a frame, that frame is named, and
// no other.
func TestProveFindsEachFlip(t *testing.T) {
	data, _, lengths := manyFrames(t, newKeys(t), 5)
	data = bytes.Clone(data)
	sums, err := SumsOf(data, lengths)
	if err != nil || !sums.Fit(len(lengths)) {
		t.Fatalf("%d bytes, %v", len(sums), err)
	}
	if damaged, err := prove(data, lengths, sums); damaged != nil || err != nil {
		t.Fatalf("of a sound pack: %d, %v", damaged, err)
	}
	trailer, err := parseTrailer(data)
	if err != nil {
		t.Fatal(err)
	}
	var owner []int // of each byte of the frames
	for n, length := range lengths {
		for range length {
			owner = append(owner, n)
		}
	}
	for at := range data {
		data[at] ^= 1 << (at % 8)
		damaged, err := prove(data, lengths, sums)
		switch frame := at - int(trailer.headerBytes); {
		case frame >= 0 && frame < len(owner):
			if want := []uint32{uint32(owner[frame])}; err != nil || !slices.Equal(damaged, want) {
				t.Fatalf("byte %d, in frame %d: %d, %v", at, want, damaged, err)
			}
		case !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid):
			t.Fatalf("byte %d, outside of the frames: %d, %v", at, damaged, err)
		}
		data[at] ^= 1 << (at % 8)
	}
}

// The checksums of a thinned pack follow from those of the whole one.
func TestProveThinned(t *testing.T) {
	k := newKeys(t)
	rapid.Check(t, func(rt *rapid.T) {
		frames := rapid.IntRange(2, 20).Draw(rt, "frames")
		data, _, lengths := manyFrames(t, k, frames)
		kept := rapid.SliceOfN(rapid.Bool(), frames, frames).Draw(rt, "keep")
		kept[0] = true
		keep := func(n int) bool { return kept[n] }
		whole, err := SumsOf(data, lengths)
		if err != nil {
			rt.Fatal(err)
		}
		thinned := thin(rt, data, lengths, keep)
		for n := range lengths {
			if !kept[n] {
				lengths[n] = 0
			}
		}
		again, err := SumsOf(thinned, lengths)
		if err != nil || !bytes.Equal(again, whole.Keep(keep)) {
			rt.Fatalf("%x, not %x: %v", again, whole.Keep(keep), err)
		}
		if damaged, err := prove(thinned, lengths, again); damaged != nil || err != nil {
			rt.Fatalf("%d, %v", damaged, err)
		}
	})
}

// What is not the pack that was sealed is no proof, and what the index may say wrongly panics
// nowhere.
func TestProveRefuses(t *testing.T) {
	data, _, lengths := manyFrames(t, newKeys(t), 5)
	sums, err := SumsOf(data, lengths)
	if err != nil {
		t.Fatal(err)
	}
	removed := slices.Clone(lengths)
	removed[2] = 0
	for name, of := range map[string]struct {
		data    []byte
		lengths []uint32
		sums    Sums
	}{
		"truncated":         {data[:len(data)-1], lengths, sums},
		"empty":             {nil, lengths, sums},
		"fewer frames":      {data, lengths[:4], sums},
		"no frame":          {data, nil, sums},
		"a removed frame":   {data, removed, sums},
		"long frame":        {data, append([]uint32{1 << 31}, lengths[1:]...), sums},
		"short sums":        {data, lengths, sums[:8]},
		"sums of one frame": {data, lengths, sums[:16]},
	} {
		if damaged, err := prove(of.data, of.lengths, of.sums); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %d, %v", name, damaged, err)
		}
	}
	if _, err := Prove(data, testRepository, backup.NewPackID(), lengths, sums); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("as another pack: %v", err)
	}
	if damaged, err := prove(data, lengths, nil); damaged != nil || err != nil {
		t.Errorf("without checksums: %d, %v", damaged, err)
	}
}

func FuzzProve(f *testing.F) {
	data, _, lengths := manyFrames(f, newKeys(f), 3)
	f.Add(bytes.Clone(data), int(lengths[0]), int(lengths[1]), int(lengths[2]))
	f.Fuzz(func(t *testing.T, data []byte, first, second, third int) {
		lengths := []uint32{uint32(first), uint32(second), uint32(third)}
		sums, err := SumsOf(data, lengths)
		if err != nil {
			if _, err := Prove(data, testRepository, testID, lengths, make(Sums, 4*SumBytes)); err == nil {
				t.Error("proven, although it has no checksums")
			}
			return
		}
		if damaged, _ := Prove(data, testRepository, testID, lengths, sums); damaged != nil {
			t.Errorf("frames %d do not have their own checksums", damaged)
		}
	})
}
