package shares

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// A fake is an index with content at random.
type fake struct {
	pages     map[backup.ShardID][][]byte
	refs      map[backup.ShardID][]backup.ChunkID // of the pages
	lists     []backup.ChunkList
	packs     []index.Pack
	frames    []index.PackFrames
	locations []index.ChunkLocation
	reads     int // of references
}

func (f *fake) Needed(context.Context, []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error) {
	needed := map[backup.ShardID][]backup.SnapshotNumber{}
	for shard := range f.pages {
		needed[shard] = []backup.SnapshotNumber{1}
	}
	return needed, nil
}

func (f *fake) References(_ context.Context, shard backup.ShardID, _ backup.SnapshotNumber, _ []backup.SnapshotNumber) iter.Seq2[[]byte, error] {
	f.reads++
	return each(f.pages[shard])
}

func (f *fake) ChunkLists(context.Context) iter.Seq2[backup.ChunkList, error] { return each(f.lists) }
func (f *fake) Packs(context.Context) iter.Seq2[index.Pack, error]            { return each(f.packs) }
func (f *fake) Frames(context.Context) iter.Seq2[index.PackFrames, error]     { return each(f.frames) }
func (f *fake) Locations(context.Context, []int64) iter.Seq2[index.ChunkLocation, error] {
	return each(f.locations)
}

func each[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for i := range list {
			if !yield(list[i], nil) {
				return
			}
		}
	}
}

// newFake makes chunks: ids 0 to 19 are lists of others, 20 to 29 are lists of these. Some chunks
// have several places, some have none, and one pack is gone.
func newFake(t *testing.T, random *rand.Rand) *fake {
	t.Helper()
	f := &fake{pages: map[backup.ShardID][][]byte{}, refs: map[backup.ShardID][]backup.ChunkID{}}
	ids := make([]backup.ChunkID, 300)
	for i := range ids {
		ids[i] = backup.ChunkID{byte(random.Uint32()), byte(random.Uint32()), byte(i), byte(i >> 8)}
	}
	for row := range int64(12) {
		f.addPack(random, ids, row)
	}
	for i := range 30 {
		list := backup.ChunkList{List: ids[i], Nested: i >= 20}
		below := ids[30:]
		if list.Nested {
			below = ids[:20]
		}
		for range random.IntN(6) {
			list.Chunks = append(list.Chunks, below[random.IntN(len(below))])
		}
		f.lists = append(f.lists, list)
	}
	slices.Reverse(f.lists) // also lists before those that name them
	for shard := range backup.ShardID(5) {
		f.pages[shard] = nil
		for range random.IntN(8) {
			f.addPage(t, random, ids, shard)
		}
	}
	return f
}

func (f *fake) addPack(random *rand.Rand, ids []backup.ChunkID, row int64) {
	pack, frames := index.Pack{Row: row, PackPlace: index.PackPlace{Pack: backup.PackID{byte(row + 1)}}, Gone: row == 7}, index.PackFrames{Row: row}
	for n := range 1 + random.IntN(5) {
		sealed := uint32(1 + random.IntN(10_000))
		frames.Bytes = append(frames.Bytes, sealed)
		pack.Bytes += int64(sealed)
		for range random.IntN(12) {
			id := ids[random.IntN(len(ids))]
			f.locations = append(f.locations, index.ChunkLocation{PlaceOf: index.PlaceOf{Chunk: id, Pack: row, Frame: uint32(n)}, Length: uint32(id[1])*100 + 1})
		}
	}
	pack.Bytes += int64(random.IntN(500))
	f.packs, f.frames = append(f.packs, pack), append(f.frames, frames)
}

func (f *fake) addPage(t *testing.T, random *rand.Rand, ids []backup.ChunkID, shard backup.ShardID) {
	page := backup.Page{Self: &backup.Entry{Kind: backup.Directory}}
	for n := range 1 + random.IntN(8) {
		at, depth := 30+random.IntN(170), 0
		if n%3 == 2 {
			at = random.IntN(30)
			depth = 1 + at/20
		}
		ref := backup.Ref{Chunk: ids[at], Length: 10, Span: 10}
		f.refs[shard] = append(f.refs[shard], ids[at])
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprint(n), Kind: backup.File, Size: 10, Content: backup.Content{Depth: depth, Refs: []backup.Ref{ref}}})
	}
	data, err := listing.Encode(nil, &page)
	if err != nil {
		t.Fatal(err)
	}
	f.pages[shard] = append(f.pages[shard], data)
}

// needs returns the chunks that each group needs.
func (f *fake) needs(groups map[backup.ShardID]int, n int) []map[backup.ChunkID]bool {
	needs := make([]map[backup.ChunkID]bool, n)
	for group := range needs {
		needs[group] = map[backup.ChunkID]bool{}
	}
	var visit func(group int, id backup.ChunkID)
	visit = func(group int, id backup.ChunkID) {
		needs[group][id] = true
		for _, list := range f.lists {
			for _, below := range list.Chunks {
				if list.List == id {
					visit(group, below)
				}
			}
		}
	}
	for shard, ids := range f.refs {
		for _, id := range ids {
			visit(groups[shard], id)
		}
	}
	return needs
}

// naive computes the result chunk by chunk.
func (f *fake) naive(groups map[backup.ShardID]int, n int) Result {
	r := Result{Groups: make([]Usage, n)}
	needs := f.needs(groups, n)
	counted := map[backup.ChunkID]bool{}
	for _, l := range f.locations {
		pack, bytes := f.packs[l.Pack], f.frames[l.Pack].Bytes
		sealed, plain := 0.0, 0.0
		for _, b := range bytes {
			sealed += float64(b)
		}
		for _, other := range f.locations {
			if other.Pack == l.Pack && other.Frame == l.Frame {
				plain += float64(other.Length)
			}
		}
		stored := float64(pack.Bytes) * float64(bytes[l.Frame]) / sealed * float64(l.Length) / plain
		if pack.Gone {
			stored = 0
		}
		var of []*Usage
		for group := range needs {
			if needs[group][l.Chunk] {
				of = append(of, &r.Groups[group])
			}
		}
		for _, u := range of {
			u.Stored += stored
			u.Share += stored / float64(len(of))
			if len(of) == 1 {
				u.Unique += stored
			}
			if !counted[l.Chunk] {
				u.Data += float64(l.Length)
			}
		}
		counted[l.Chunk] = true
	}
	for _, pack := range f.packs {
		if !pack.Gone {
			r.Stored += pack.Bytes
		}
	}
	r.Unused = float64(r.Stored)
	for _, u := range r.Groups {
		r.Unused -= u.Share
	}
	return r
}

// TestDivide compares the division of random repositories with a naive one, in one part and in
// many.
func TestDivide(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	parts := false
	for range 40 {
		f := newFake(t, random)
		for _, groups := range []map[backup.ShardID]int{{0: 0, 1: 1, 2: 2, 3: 3, 4: 4}, {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}} {
			n := groups[4] + 1
			want := f.naive(groups, n)
			for _, memory := range []int64{DefaultMemory, 40 * needBytes} {
				f.reads = 0
				got, err := Divide(t.Context(), f, groups, memory)
				if err != nil {
					t.Fatal(err)
				}
				parts = parts || f.reads > len(f.pages)
				wantResult(t, &got, &want)
			}
		}
	}
	if !parts {
		t.Error("nothing was divided into parts")
	}
}

func wantResult(t *testing.T, got, want *Result) {
	t.Helper()
	same := func(a, b float64) bool { return math.Abs(a-b) < 1e-3 }
	ok := got.Stored == want.Stored && same(got.Unused, want.Unused) && len(got.Groups) == len(want.Groups)
	for i := range want.Groups {
		g, w := &got.Groups[i], &want.Groups[i]
		ok = ok && same(g.Data, w.Data) && same(g.Stored, w.Stored) && same(g.Unique, w.Unique) && same(g.Share, w.Share)
	}
	if !ok {
		t.Fatalf("got %+v, want %+v", *got, *want)
	}
}
