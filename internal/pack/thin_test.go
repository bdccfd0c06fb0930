package pack

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// manyFrames returns a pack, its plaintexts, and the lengths of its frames.
func manyFrames(t testing.TB, k keys, frames int) (data []byte, raw [][]byte, lengths []uint32) {
	w, c := k.writer(t, KindData), newCompressor(t, "zstd-1")
	for i := range frames {
		raw = append(raw, text(100+i*7, byte(i)))
		add(t, w, frame(c, raw[i]))
	}
	return finish(t, w), raw, slices.Clone(w.FrameBytes())
}

// Any set of frames is kept, in any number of steps. The frames that are present decode to the same
// plaintext, the table lists all frames, and the bytes depend only on the frames that are kept.
func TestThin(t *testing.T) {
	k := newKeys(t)
	hasher := chunk.NewHasher(testKey)
	testtarget.FewerChecks(t, "30")
	rapid.Check(t, func(rt *rapid.T) {
		frames := rapid.SampledFrom([]int{1, 2, 7, 8, 9, 16, 17, 40}).Draw(rt, "frames")
		data, raw, lengths := manyFrames(t, k, frames)
		one := rapid.SliceOfN(rapid.Bool(), frames, frames).Draw(rt, "keep")
		two := rapid.SliceOfN(rapid.Bool(), frames, frames).Draw(rt, "keep of these")
		first := thin(rt, data, lengths, func(i int) bool { return one[i] })
		second := thin(rt, first, lengths, func(i int) bool { return two[i] })
		if at := thin(rt, data, lengths, func(i int) bool { return one[i] && two[i] }); !bytes.Equal(at, second) {
			rt.Fatal("to thin twice is not to thin once")
		}
		if again := thin(rt, second, lengths, func(int) bool { return true }); !bytes.Equal(again, second) {
			rt.Fatal("to keep all changes the pack")
		}
		r, err := OpenBytes(second, testRepository, testID, k.opener)
		if err != nil {
			rt.Fatal(err)
		}
		if whole := k.open(t, data); !slices.Equal(r.Chunks(), whole.Chunks()) {
			rt.Fatal("a thinned pack has another table")
		}
		for i, f := range r.Frames() {
			if f.Removed == (one[i] && two[i]) {
				rt.Fatalf("frame %d is removed: %v", i, f.Removed)
			}
			if f.Removed {
				continue
			}
			got, err := r.DecodeFrame(nil, uint32(i), second[f.Offset:][:f.SealedLength], hasher)
			if err != nil || !bytes.Equal(got, raw[i]) {
				rt.Fatalf("frame %d: %v", i, err)
			}
		}
	})
}

func thin(t *rapid.T, data []byte, lengths []uint32, keep func(int) bool) []byte {
	out, err := Thin([]byte("before"), data, lengths, keep)
	if err != nil {
		t.Fatal(err)
	}
	if string(out[:6]) != "before" {
		t.Fatal("what was in dst is lost")
	}
	return out[6:]
}

func TestThinThatKeepsAllChangesNothing(t *testing.T) {
	data, _, lengths := manyFrames(t, newKeys(t), 9)
	if got, err := Thin(nil, data, lengths, func(int) bool { return true }); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes became %d, %v", len(data), len(got), err)
	}
}

// An object of several packs, thinned or not, is read by place. A place that does not match a pack
// is refused.
func TestPacksInARow(t *testing.T) {
	k := newKeys(t)
	testtarget.FewerChecks(t, "30")
	rapid.Check(t, func(rt *rapid.T) {
		var row []byte
		var places []Place
		var raws [][][]byte
		for range rapid.IntRange(1, 4).Draw(rt, "packs") {
			frames := rapid.IntRange(1, 5).Draw(rt, "frames")
			data, raw, lengths := manyFrames(t, k, frames)
			kept := rapid.SliceOfN(rapid.Bool(), frames, frames).Draw(rt, "keep")
			data = thin(rt, data, lengths, func(i int) bool { return kept[i] })
			places = append(places, Place{"packs/x", int64(len(row)), int64(len(data))})
			row, raws = append(row, data...), append(raws, raw)
		}
		store := &object{data: row}
		for n, at := range places {
			r, err := Open(context.Background(), store, at, testRepository, testID, k.opener)
			if err != nil {
				rt.Fatalf("pack %d of %v: %v", n, places, err)
			}
			for i, f := range r.Frames() {
				if f.Removed {
					continue
				}
				got, err := r.DecodeFrame(nil, uint32(i), row[at.Offset+f.Offset:][:f.SealedLength], nil)
				if err != nil || !bytes.Equal(got, raws[n][i]) {
					rt.Fatalf("pack %d, frame %d: %v", n, i, err)
				}
			}
		}
		wrong := places[rapid.IntRange(0, len(places)-1).Draw(rt, "place")]
		wrong.Offset += rapid.Int64Range(-3, 3).Draw(rt, "offset")
		wrong.Bytes += rapid.Int64Range(-3, 3).Draw(rt, "bytes")
		if slices.Contains(places, wrong) {
			return
		}
		if _, err := Open(context.Background(), store, wrong, testRepository, testID, k.opener); err == nil {
			rt.Fatalf("there is no pack at %+v of %v", wrong, places)
		}
	})
}

// The last pack of an object with several packs is not accepted as the whole object.
func TestRowIsNotOnePack(t *testing.T) {
	k := newKeys(t)
	for _, frames := range []int{2, 300} {
		one, _, _ := manyFrames(t, k, 2)
		other, _, _ := manyFrames(t, k, frames)
		row := slices.Concat(one, other)
		for _, at := range []Place{{Object: "packs/x"}, {Object: "packs/x", Bytes: int64(len(row))}, {Object: "packs/x", Offset: int64(len(one))}} {
			_, err := Open(context.Background(), &object{data: row}, at, testRepository, testID, k.opener)
			if at.Offset > 0 && at.Bytes == 0 && frames > 2 {
				continue // this place extends to the object's end
			}
			if !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("%d frames, %+v: %v", frames, at, err)
			}
		}
		if _, err := OpenBytes(row, testRepository, testID, k.opener); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%d frames, all bytes: %v", frames, err)
		}
	}
}

func TestThinRefuses(t *testing.T) {
	k := newKeys(t)
	data, _, lengths := manyFrames(t, k, 9)
	half, err := Thin(nil, data, lengths, func(i int) bool { return i%2 == 0 })
	if err != nil {
		t.Fatal(err)
	}
	signed := k.writer(t, KindSegment)
	add(t, signed, Frame{RawLength: 4, Body: []byte("rows")})
	segment := k.finishSigned(t, signed)
	edited := func(change func([]uint32) []uint32) []uint32 { return change(slices.Clone(lengths)) }
	for name, test := range map[string]struct {
		data    []byte
		lengths []uint32
		want    error
	}{
		"a segment":             {segment, []uint32{20}, backup.ErrInvalid},
		"no frames":             {data, nil, backup.ErrInvalid},
		"too many frames":       {data, make([]uint32, MaxFrames+1), backup.ErrInvalid},
		"fewer, thinned":        {half, lengths[:8], backup.ErrInvalid},
		"more, thinned":         {half, make([]uint32, 17), backup.ErrInvalid},
		"fewer":                 {data, lengths[:8], backup.ErrCorrupt},
		"more":                  {data, append(slices.Clone(lengths), 20), backup.ErrCorrupt},
		"longer":                {data, edited(func(n []uint32) []uint32 { n[3]++; return n }), backup.ErrCorrupt},
		"shorter":               {half, edited(func(n []uint32) []uint32 { n[4]--; return n }), backup.ErrCorrupt},
		"longest":               {data, edited(func(n []uint32) []uint32 { n[0] = 1<<32 - 1; return n }), backup.ErrCorrupt},
		"cut short":             {data[:len(data)-1], lengths, backup.ErrCorrupt},
		"a byte more":           {append(slices.Clone(data), 0), lengths, backup.ErrCorrupt},
		"nothing":               {nil, lengths, backup.ErrCorrupt},
		"damaged header":        {append([]byte{'B'}, data[1:]...), lengths, backup.ErrCorrupt},
		"two packs in a row":    {slices.Concat(data, data), lengths, backup.ErrCorrupt},
		"a bitmap that is full": {withBitmap(0xff, 0x01)(slices.Clone(data)), lengths, backup.ErrInvalid},
	} {
		dst := []byte("before")
		got, err := Thin(dst, test.data, test.lengths, func(int) bool { return false })
		if !errors.Is(err, test.want) || string(got) != "before" {
			t.Errorf("%s: %v, and %d bytes", name, err, len(got))
		}
	}
}

// ReadThin gives the same bytes as Thin, also of a pack within an object, and refuses another pack.
func TestReadThin(t *testing.T) {
	k := newKeys(t)
	for _, frames := range []int{1, 9, 700} {
		data, _, lengths := manyFrames(t, k, frames)
		store := &object{data: slices.Concat([]byte("before"), data, []byte("after"))}
		at := Place{Object: "packs/x", Offset: 6, Bytes: int64(len(data))}
		keep := func(i int) bool { return i%3 == 0 }
		want, err := Thin([]byte("dst"), data, lengths, keep)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadThin(t.Context(), []byte("dst"), store, at, testID, lengths, keep)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d frames: %d bytes, want %d, %v", frames, len(got), len(want), err)
		}
		for name, wrong := range map[string]struct {
			at Place
			id backup.PackID
		}{"another pack": {at, backup.PackID{1}}, "another place": {Place{"packs/x", 5, at.Bytes}, testID}, "a shorter pack": {Place{"packs/x", 7, at.Bytes - 1}, testID}} {
			if got, err := ReadThin(t.Context(), []byte("dst"), store, wrong.at, wrong.id, lengths, keep); !errors.Is(err, backup.ErrCorrupt) || string(got) != "dst" {
				t.Errorf("%d frames, %s: %d bytes, %v", frames, name, len(got), err)
			}
		}
	}
}
