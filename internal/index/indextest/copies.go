package indextest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// The possible fates of a pack.
const (
	lives     = "lives"
	condemned = "condemned"
	gone      = "gone"
)

var fates = []string{lives, condemned, gone}

// befall applies a fate to a registered pack.
func (f *fixture) befall(p *backup.PackStored, fate string) {
	f.Helper()
	switch fate {
	case condemned:
		f.condemn(p.Pack)
	case gone: // as garbage collection will do
		f.exec("DELETE FROM packs WHERE pack = $1", uuid.UUID(p.Pack).String())
	}
}

// condemn condemns packs, as the pruner does.
func (f *fixture) condemn(packs ...backup.PackID) {
	f.Helper()
	f.must(Condemn(f.ctx, f.x, packs...))
}

// Condemn condemns packs of an index, as the pruner does. It ignores unknown packs.
func Condemn(ctx context.Context, x index.Index, packs ...backup.PackID) error {
	t, leads, err := x.Lead(ctx, "pruner", "test", time.Minute)
	if err == nil && !leads {
		err = errors.New("another pruner leads")
	}
	if err != nil {
		return err
	}
	var rows []int64
	for p, err := range x.Packs(ctx) {
		if err != nil {
			return err
		}
		if slices.Contains(packs, p.Pack) {
			rows = append(rows, p.Row)
		}
	}
	return errors.Join(x.Condemn(ctx, t, rows), x.Resign(ctx, t))
}

// refusal returns the error for a batch that relies on a pack with this fate.
func refusal(fate string) error {
	return map[string]error{lives: nil, condemned: index.ErrCondemned, gone: index.ErrPackUnknown}[fate]
}

// Two readers store the same chunk, in two packs. For all fates of the two packs, the chunk is
// found in a live pack if there is one. A batch is never refused for a place that was found, and
// restore still finds a chunk that is only in a condemned pack (I1, I6).
func testChunkCopies(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	names := make([]string, 2*len(fates)*len(fates)*3)
	for i := range names {
		names[i] = fmt.Sprintf("%03d", i)
	}
	s, batches := f.batchesOf(names...)
	rely := func(p *backup.PackStored, fate string) {
		t.Helper()
		o := f.apply(index.Result{Batch: storedOf(batches[0], p.Pack)})[0]
		f.wants(o.Err, refusal(fate))
		if o.Err == nil {
			batches = batches[1:]
		}
	}
	shared := 0
	for _, together := range []bool{true, false} {
		for _, fate := range fates {
			for _, fateOfOther := range fates {
				shared += 10
				first, other := packOf(s, shared-1, shared), packOf(s, shared, shared+1)
				if together {
					f.accept(index.Result{Pack: first}, index.Result{Pack: other})
				} else {
					f.accept(index.Result{Pack: first})
					f.accept(index.Result{Pack: other})
				}
				place, copied := at(first, 1), at(other, 0)
				if f.locate(shared)[0].Pack == other.Pack { // in one call, either may be the first
					first, other, place, copied = other, first, copied, place
				}
				f.wantLocations(f.locate(shared), place)
				f.befall(first, fate)
				f.befall(other, fateOfOther)

				name := fmt.Sprintf("together: %t; the first %s, the other %s", together, fate, fateOfOther)
				want, all := expect(fate, fateOfOther, place, copied)
				if got := f.locate(shared)[0]; got != want {
					t.Fatalf("%s: it is at %+v, want %+v", name, got, want)
				}
				if got := f.locateAll(shared)[0]; got != all {
					t.Fatalf("%s: restore finds it at %+v, want %+v", name, got, all)
				}
				rely(first, fate)
				rely(other, fateOfOther)

				// A new place replaces one in a condemned pack, and otherwise is one more copy.
				third := packOf(s, shared)
				f.accept(index.Result{Pack: third})
				got := f.locate(shared)
				f.wantLocations(f.locateAll(shared), got...)
				switch anew := at(third, 0); {
				case fate == lives:
					f.wantLocations(got, place)
				case fate == condemned || fateOfOther != lives:
					f.wantLocations(got, anew)
				case got[0] != copied && got[0] != anew:
					t.Fatalf("%s: stored anew it is at %+v, want %+v or %+v", name, got[0], copied, anew)
				}
				rely(third, lives)
				// In the end only the last pack is live.
				f.condemn(first.Pack, other.Pack)
				f.wantLocations(f.locate(shared), at(third, 0))
				f.wantLocations(f.locateAll(shared), at(third, 0))
			}
		}
	}
}

// expect returns where dedup and restore find a chunk with two places.
func expect(fate, fateOfOther string, place, copied index.Location) (found, all index.Location) {
	switch {
	case fate == lives:
		return place, place
	case fateOfOther == lives:
		return copied, copied
	case fate == condemned:
		return index.Location{}, place
	case fateOfOther == condemned:
		return index.Location{}, copied
	}
	return index.Location{}, index.Location{}
}

// Many places of many chunks: none is lost, for any order of the packs and any distribution of the
// chunks.
func testManyCopies(t *testing.T, fresh func(testing.TB) Database) {
	const chunks, packs = 200, 6 // more than one statement stores
	f := newFixture(t, fresh)
	s := f.begin()
	var list []*backup.PackStored
	var results []index.Result
	for i := range packs {
		var numbers []int
		for n := range chunks {
			if n%(i+1) == 0 {
				numbers = append(numbers, n, n) // twice in one pack is one place
			}
		}
		slices.Reverse(numbers)
		list = append(list, packOf(s, numbers...))
		results = append(results, index.Result{Pack: list[i]})
	}
	f.accept(results[0])
	f.accept(results[1:4]...)
	f.accept(results...) // these packs are registered already
	places := 0
	for i := range packs {
		places += (chunks + i) / (i + 1)
	}
	f.wantRows("chunks", chunks)
	f.wantRows("chunk_copies", places-chunks)
	for i, p := range list {
		for n, l := range f.locate(numbersTo(chunks)...) {
			has := func(p *backup.PackStored) bool {
				return slices.ContainsFunc(p.Chunks, func(c backup.ChunkPlace) bool { return c.ID == chunkID(n) })
			}
			living := slices.ContainsFunc(list[i:], has)
			if living != (l != index.Location{}) {
				t.Fatalf("chunk %d, with %d packs condemned: %+v", n, i, l)
			}
			if living && !slices.ContainsFunc(list[i:], func(p *backup.PackStored) bool { return p.Pack == l.Pack && has(p) }) {
				t.Fatalf("chunk %d is said to be in a pack that does not have it", n)
			}
			f.wantCopies(n, slices.DeleteFunc(slices.Clone(list[i:]), func(p *backup.PackStored) bool { return !has(p) }),
				slices.DeleteFunc(slices.Clone(list[:i]), func(p *backup.PackStored) bool { return !has(p) }))
		}
		f.befall(p, condemned)
	}
}

// wantCopies checks that all places of a chunk are found: those in condemned packs last, and only
// by LocateReadableCopies.
func (f *fixture) wantCopies(chunk int, living, condemned []*backup.PackStored) {
	f.Helper()
	ids := []backup.ChunkID{chunkID(chunk), chunkID(1 << 20), chunkID(chunk)} // one that does not exist, and one twice
	found, err := f.x.LocateCopies(f.ctx, ids)
	f.must(err)
	all, err := f.x.LocateReadableCopies(f.ctx, ids)
	f.must(err)
	if len(found) != 3 || len(all) != 3 || len(found[1])+len(all[1]) > 0 || !slices.Equal(found[0], found[2]) || !slices.Equal(all[0], all[2]) {
		f.Fatalf("places %+v and %+v", found, all)
	}
	if len(found[0]) != len(living) || len(all[0]) != len(living)+len(condemned) || !slices.Equal(found[0], all[0][:len(living)]) {
		f.Fatalf("chunk %d: %d places and %d in all, want %d and %d more", chunk, len(found[0]), len(all[0]), len(living), len(condemned))
	}
	for i, at := range all[0] {
		packs := living
		if i >= len(living) {
			packs = condemned
		}
		if !slices.ContainsFunc(packs, func(p *backup.PackStored) bool { return p.Pack == at.Pack }) {
			f.Fatalf("chunk %d: place %d of %d is in pack %v", chunk, i, len(all[0]), at.Pack)
		}
	}
}

func numbersTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// Packs are parts of objects: a place names the object.
func testPlacesInObjects(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	first, second := packOf(s, 1, 2), packOf(s, 2, 3)
	f.accept(index.Result{Pack: first})
	f.accept(index.Result{Pack: second})
	owner, object := backup.NewSnapshotID(), backup.NewPackID()
	places := map[*backup.PackStored]index.PackPlace{}
	for i, p := range []*backup.PackStored{first, second} {
		offset := int64(i) * 5 << 30
		f.exec("UPDATE packs SET snapshot = $1, object = $2, object_offset = $3, stored_bytes = $4 WHERE pack = $5",
			uuid.UUID(owner).String(), uuid.UUID(object).String(), offset, 6<<30, uuid.UUID(p.Pack).String())
		places[p] = index.PackPlace{Pack: p.Pack, Snapshot: owner, Object: object, Offset: offset, Bytes: 6 << 30}
	}
	place := func(p *backup.PackStored, i int) index.Location {
		l := at(p, i)
		l.PackPlace = places[p]
		return l
	}
	f.wantLocations(f.locate(1, 2, 3), place(first, 0), place(first, 1), place(second, 1))
	f.befall(first, condemned)
	f.wantLocations(f.locate(1, 2, 3), index.Location{}, place(second, 0), place(second, 1))
	f.wantLocations(f.locateAll(1, 2, 3), place(first, 0), place(second, 0), place(second, 1))

	// The lengths of a pack's frames are stored for copying some of them.
	third := packOf(s, 4)
	third.FrameBytes = []uint32{190, 1, 0, 1<<32 - 1}
	f.accept(index.Result{Pack: third})
	var frames []byte
	f.must(f.db.SQL.QueryRowContext(f.ctx, "SELECT frame_bytes FROM packs WHERE pack = $1", uuid.UUID(third.Pack).String()).Scan(&frames))
	var lengths []uint32
	for len(frames) > 0 {
		length, n := binary.Uvarint(frames)
		if n <= 0 {
			t.Fatalf("frame lengths %x", frames)
		}
		lengths, frames = append(lengths, uint32(length)), frames[n:]
	}
	if !slices.Equal(lengths, third.FrameBytes) {
		t.Fatalf("frame lengths %d, want %d", lengths, third.FrameBytes)
	}
}
