package sizes

import (
	"context"
	"iter"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/shares"
)

// stored is an index that has one pack with one chunk.
type stored struct {
	shares.Index
	chunk backup.ChunkID
}

var onePack = backup.PackID{1}

func (s stored) Packs(context.Context) iter.Seq2[index.Pack, error] {
	return one(index.Pack{Row: 1, PackPlace: index.PackPlace{Pack: onePack, Bytes: 60}})
}

func (s stored) Frames(context.Context) iter.Seq2[index.PackFrames, error] {
	return one(index.PackFrames{Row: 1, Bytes: []uint32{50}})
}

func (s stored) Locations(context.Context, []int64) iter.Seq2[index.ChunkLocation, error] {
	return one(index.ChunkLocation{PlaceOf: index.PlaceOf{Chunk: s.chunk, Pack: 1}, Length: 100})
}

func (s stored) ChunkLists(context.Context) iter.Seq2[backup.ChunkList, error] {
	return one(backup.ChunkList{List: s.chunk, Chunks: []backup.ChunkID{s.chunk, s.chunk}})
}

func (s stored) LocateReadable(_ context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	places := make([]index.Location, len(ids))
	for n := range ids {
		if ids[n] == s.chunk {
			places[n] = index.Location{PackPlace: index.PackPlace{Pack: onePack}, Length: 100}
		}
	}
	return places, nil
}

func one[T any](item T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) { yield(item, nil) }
}

// Each file has what its chunks, lists and extended attributes take. What is not known is counted.
func TestStored(t *testing.T) {
	known, lost := backup.ChunkID{1}, backup.ChunkID{2}
	ref := func(id backup.ChunkID) backup.Ref { return backup.Ref{Chunk: id, Length: 100, Span: 100} }
	content := func(name string, depth int, refs ...backup.Ref) backup.Entry {
		return backup.Entry{Name: name, Kind: backup.File, Size: 100 * int64(len(refs)), Content: backup.Content{Depth: depth, Refs: refs}}
	}
	named := content("xattr", 0, ref(known))
	named.XattrChunk = ref(known)
	var r rows
	r.add(t, "", backup.Entry{XattrChunk: ref(known)}, []backup.Entry{
		content("a", 0, ref(known)), content("empty", 0), content("list", 1, ref(known)), content("lost", 0, ref(known), ref(lost)),
		content("lost list", 1, ref(lost)), named, content("z", 0, ref(known), ref(known)),
	}, 100)
	x := stored{chunk: known}
	w, err := shares.ReadWeights(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[backup.ChunkID]struct{}{}
	if err := AddLists(t.Context(), r, backup.SnapshotID{}, "", lists); err != nil || len(lists) != 2 {
		t.Fatalf("%d lists, %v", len(lists), err)
	}
	if err := w.AddLists(t.Context(), lists); err != nil {
		t.Fatal(err)
	}
	result, _, err := sum(t.Context(), r, "", Options{By: File, Most: 100, Weights: w}, backup.PageSet{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Sum{}
	for _, row := range result.Rows {
		got[row.Text] = row.Sum
	}
	// The chunk is all of its frame, and the frame is all of its pack.
	for name, want := range map[string]Sum{
		"a": {Stored: 60, Bytes: 100}, "empty": {}, "list": {Stored: 180, Bytes: 100}, "lost": {Unweighed: 1, Bytes: 200},
		"lost list": {Unweighed: 1, Bytes: 100}, "xattr": {Stored: 120, Bytes: 100}, "z": {Stored: 120, Bytes: 200},
	} {
		want.Files = 1
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	if result.Total.Stored != 60+60+180+120+120 || result.Total.Unweighed != 2 {
		t.Errorf("total: %+v", result.Total)
	}
}
