package pack

import (
	"errors"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Inspect finds a flipped bit in the header and in the trailer, other lengths, and another pack. It
// needs no key, and makes as many requests as it says.
func TestInspect(t *testing.T) {
	keys := newKeys(t)
	for _, size := range []int{100, 300_000} {
		w := keys.writer(t, KindData)
		add(t, w, frame(newCompressor(t, "none"), random(size, 1)))
		data := slices.Clone(finish(t, w))
		at := Place{Object: "packs/a/b", Bytes: int64(len(data))}
		look := func(data []byte, at Place, id backup.PackID) error {
			o := &object{data: data}
			err := Inspect(t.Context(), o, at, testRepository, id)
			if requests, _ := InspectCost(at.Bytes); err == nil && len(o.requests) != requests {
				t.Errorf("%q, announced %d", o.requests, requests)
			}
			return err
		}
		if err := look(data, at, testID); err != nil {
			t.Fatal(err)
		}
		behind := at
		behind.Offset = 3
		if err := look(append([]byte{1, 2, 3}, data...), behind, testID); err != nil {
			t.Errorf("behind another pack: %v", err)
		}
		for _, flip := range []int{0, 9, 12, 30, 50, len(data) - 1, len(data) - 30} {
			data := slices.Clone(data)
			data[flip] ^= 1
			if err := look(data, at, testID); !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("byte %d of %d flipped: %v", flip, len(data), err)
			}
		}
		if err := look(data, at, backup.NewPackID()); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("another pack: %v", err)
		}
		if err := look(append([]byte{1, 2, 3}, data...), at, testID); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("at another offset: %v", err)
		}
		short := at
		short.Bytes -= 10
		if err := look(data, short, testID); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("another length: %v", err)
		}
	}
}
