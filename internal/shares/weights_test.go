package shares

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func (f *fake) LocateReadable(_ context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	places := make([]index.Location, len(ids))
	for n, id := range ids {
		if l := f.place(id); l != nil {
			places[n] = index.Location{PackPlace: f.packs[l.Pack].PackPlace, Frame: l.Frame, Start: l.Start, Length: l.Length}
		}
	}
	return places, nil
}

// place returns the first place of a chunk.
func (f *fake) place(id backup.ChunkID) *index.ChunkLocation {
	for n := range f.locations {
		if l := &f.locations[n]; l.Chunk == id && !f.packs[l.Pack].Gone {
			return l
		}
	}
	return nil
}

// weight returns what a chunk takes and, with lists, what it names.
func (f *fake) weight(id backup.ChunkID, lists bool) int64 {
	l := f.place(id)
	if l == nil {
		return Unknown
	}
	sealed, plain := 0.0, 0.0
	for _, b := range f.frames[l.Pack].Bytes {
		sealed += float64(b)
	}
	for _, other := range f.locations {
		if other.Pack == l.Pack && other.Frame == l.Frame {
			plain += float64(other.Length)
		}
	}
	sum := int64(math.Round(float64(f.packs[l.Pack].Bytes) * float64(f.frames[l.Pack].Bytes[l.Frame]) / sealed * float64(l.Length) / plain))
	for n := range f.lists {
		if !lists || f.lists[n].List != id {
			continue
		}
		for _, below := range f.lists[n].Chunks {
			part := f.weight(below, f.lists[n].Nested)
			if part == Unknown {
				return Unknown
			}
			sum += part
		}
	}
	return sum
}

func TestWeights(t *testing.T) {
	known := 0
	for seed := range uint64(60) {
		f := newFake(t, rand.New(rand.NewPCG(seed, 5)))
		w, err := ReadWeights(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		wanted := map[backup.ChunkID]struct{}{}
		for n := range f.lists {
			if n%3 > 0 {
				wanted[f.lists[n].List] = struct{}{}
			}
		}
		// Also one of which the index does not know what it names.
		absent := backup.ChunkID{1, 2, 3}
		wanted[absent] = struct{}{}
		if err := w.AddLists(t.Context(), wanted); err != nil {
			t.Fatal(err)
		}
		if got := w.List(absent); got != Unknown {
			t.Errorf("seed %d: a list that is not known has %d bytes", seed, got)
		}
		var ids []backup.ChunkID
		for n := range f.lists {
			id := f.lists[n].List
			if _, ok := wanted[id]; ok {
				if got, want := w.List(id), f.weight(id, true); !near(got, want) {
					t.Errorf("seed %d: list %d has %d bytes, want %d", seed, n, got, want)
				} else if want != Unknown && len(f.lists[n].Chunks) > 0 {
					known++
				}
			}
			ids = append(append(ids, id), f.lists[n].Chunks...)
		}
		got, err := w.Of(t.Context(), ids)
		if err != nil || len(got) != len(ids) {
			t.Fatalf("seed %d: %d weights of %d chunks, %v", seed, len(got), len(ids), err)
		}
		for n, id := range ids {
			if want := f.weight(id, false); !near(got[n], want) {
				t.Errorf("seed %d: chunk %d has %d bytes, want %d", seed, n, got[n], want)
			}
		}
	}
	if known < 20 {
		t.Errorf("only %d lists whose weight is known: the test shows little", known)
	}
}

// near allows for numbers that are rounded otherwise because they were added up in another order.
func near(got, want int64) bool {
	return got == want || got != Unknown && want != Unknown && max(got-want, want-got) <= 10
}
