package restore

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A chunk that is in several packs is read from one that still has it, if the others are lost or
// damaged.
func TestOtherPlaces(t *testing.T) {
	for _, damage := range []string{"flipped", "truncated", "missing"} {
		t.Run(damage, func(t *testing.T) {
			f := newFixture(t)
			var names []string
			var places []map[backup.ChunkID]index.Location
			for range 3 { // the last one is good
				f.at = map[backup.ChunkID]index.Location{}
				f.pages = nil
				names = append(names, store.PackName(f.snapshot, f.id))
				long := f.file("long", "")
				long.Content = f.list(1, f.chunk([]byte("first, "), 0), f.chunk([]byte("second"), 0))
				long.Size = 13
				f.directory("", f.file("a", strings.Repeat("a", 1000)), f.file("same", strings.Repeat("a", 1000)), long)
				f.newPack()
				places = append(places, f.at)
			}
			f.at = places[0]
			for id := range f.at {
				f.copies[id] = []index.Location{places[1][id], places[2][id]}
			}
			for _, name := range names[:2] {
				data, err := f.store.Get(context.Background(), name, 1<<20)
				check(t, err)
				check(t, f.store.Delete(context.Background(), name))
				switch damage {
				case "flipped":
					for i := 200; i < len(data)-200; i++ {
						data[i] ^= 1
					}
					check(t, f.store.Put(context.Background(), name, data))
				case "truncated":
					check(t, f.store.Put(context.Background(), name, data[:len(data)/2]))
				}
			}
			target := t.TempDir()
			_, obs := f.restore(Options{Target: target})
			obs.wantProblems(t)
			wantFile(t, filepath.Join(target, "a"), strings.Repeat("a", 1000))
			wantFile(t, filepath.Join(target, "same"), strings.Repeat("a", 1000))
			wantFile(t, filepath.Join(target, "long"), "first, second")
		})
	}
}

// A pack that is moved after its place was looked up is read where it is now. The copy lacks a
// frame, and has another id in the index.
func TestMovedPack(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("a", strings.Repeat("a", 1000)), f.file("b", "b"))
	f.chunk([]byte("not needed"), 0)
	frames, old := f.pack.FrameBytes(), store.PackName(f.snapshot, f.id)
	f.newPack()
	data, err := f.store.Get(t.Context(), old, 1<<20)
	check(t, err)
	moved := index.PackPlace{Pack: backup.NewPackID(), Sealed: f.at[f.hasher.Sum([]byte("b")).ID()].Pack, Snapshot: f.snapshot, Object: backup.NewPackID(), Offset: int64(len(data))}
	object, err := pack.Thin(data, data, frames, func(n int) bool { return n < len(frames)-1 })
	check(t, err)
	moved.Bytes = int64(len(object) - len(data))
	check(t, f.store.Put(t.Context(), store.PackName(moved.Snapshot, moved.Object), object))
	check(t, f.store.Delete(t.Context(), old))
	for id, at := range f.at {
		at.PackPlace = moved
		f.copies[id] = []index.Location{at}
	}
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	wantFile(t, filepath.Join(target, "a"), strings.Repeat("a", 1000))
	wantFile(t, filepath.Join(target, "b"), "b")
}
