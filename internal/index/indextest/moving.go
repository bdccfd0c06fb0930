package indextest

import (
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Packs move to a planned object as copies without some of their frames. A result that relies on
// the pack as it was is refused, and chunks in the frames that remain are found at the copy.
func testMove(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b", "c")
	one, other, dead := packOf(s, 1, 2, 3, 4, 5, 6), packOf(s, 1, 2, 9), packOf(s, 7, 8)
	f.accept(index.Result{Pack: one})
	f.accept(index.Result{Pack: other})
	f.accept(index.Result{Pack: dead})
	f.wantFrames(f.packRows(one)[0], 190, 190, 190)
	term := f.lead("pruner", "first", time.Minute, true)
	object := backup.NewPackID()
	plan, err := f.x.Plan(f.ctx, term, s.ID, object)
	f.must(err)
	f.wantPack(&backup.PackStored{Snapshot: s.ID, Pack: object}, true, true, true)

	rows := f.packRows(one, other, dead)
	move := index.Move{Plan: plan, Dead: rows[2:], Copies: []index.PackCopy{
		{Row: rows[0], Pack: object, Bytes: 500, FrameBytes: []uint32{190, 0, 190}, Chunks: chunkIDs([]int{6, 1, 5, 2})},
		{Row: rows[1], Pack: backup.NewPackID(), Offset: 500, Bytes: 300, FrameBytes: []uint32{0, 190}, Chunks: chunkIDs([]int{9, 77})},
	}}
	f.must(f.x.Condemn(f.ctx, term, rows[:2]))
	f.wants(f.x.Move(f.ctx, term, move), backup.ErrInvalid) // the last one is not condemned
	f.must(f.x.Condemn(f.ctx, term, rows))
	unplanned := move
	unplanned.Plan = rows[0]
	f.wants(f.x.Move(f.ctx, term, unplanned), backup.ErrInvalid)
	unplanned.Plan = plan + 1000
	f.wants(f.x.Move(f.ctx, term, unplanned), backup.ErrInvalid)
	stale := term
	stale.Epoch--
	f.wants(f.x.Move(f.ctx, stale, move), index.ErrNotLeading)
	_, err = f.x.Plan(f.ctx, stale, s.ID, backup.NewPackID())
	f.wants(err, index.ErrNotLeading)
	f.wantRows("packs", 4)

	f.must(f.x.Move(f.ctx, term, move))
	f.wants(f.x.Move(f.ctx, term, move), backup.ErrInvalid)
	f.wantRows("packs", 5)
	for _, p := range []*backup.PackStored{one, other, dead} {
		f.wantPack(p, true, true, true)
	}
	places := []index.PackPlace{
		{Pack: object, Sealed: one.Pack, Snapshot: s.ID, Object: object, Bytes: 500},
		{Pack: move.Copies[1].Pack, Sealed: other.Pack, Snapshot: s.ID, Object: object, Offset: 500, Bytes: 300},
	}
	for n, l := range f.locate(1, 2, 3, 4, 5, 6, 7, 8, 9) {
		want := index.Location{}
		switch n + 1 {
		case 1, 2, 5, 6:
			want = at(one, n)
			want.PackPlace = places[0]
		case 9:
			want = at(other, 2)
			want.PackPlace = places[1]
		}
		if l != want {
			t.Errorf("chunk %d is at %+v, want %+v", n+1, l, want)
		}
	}
	row := int64(0)
	for p, err := range f.x.Packs(f.ctx) {
		f.must(err)
		if p.Pack == object {
			row = p.Row
			if want := (index.Pack{Row: row, PackPlace: places[0], Chunks: 4, Running: true}); p != want {
				t.Errorf("pack %+v, want %+v", p, want)
			}
		}
	}
	f.wantFrames(row, 190, 0, 190)
	f.wants(f.apply(index.Result{Batch: storedOf(batches[0], one.Pack)})[0].Err, index.ErrCondemned)
	f.accept(index.Result{Batch: storedOf(batches[1], object)})

	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, rows, byte(digit)))
	}
	f.wantRows("chunks", 5)
	f.wantRows("chunk_copies", 0)
	f.fail(s.ID, "")
	f.wantDropped(rows, 3)

	// A copy can be moved again.
	plan, err = f.x.Plan(f.ctx, term, s.ID, backup.NewPackID())
	f.must(err)
	f.must(f.x.Condemn(f.ctx, term, []int64{row}))
	again := index.PackCopy{Row: row, Pack: backup.NewPackID(), Bytes: 400, FrameBytes: []uint32{0, 0, 190}, Chunks: chunkIDs([]int{5, 6})}
	f.must(f.x.Move(f.ctx, term, index.Move{Plan: plan, Copies: []index.PackCopy{again}}))
	if l := f.locate(5)[0]; l.Pack != again.Pack || l.Sealed != one.Pack || l.Bytes != 400 {
		t.Errorf("chunk 5 is at %+v", l)
	}
}

func (f *fixture) wantFrames(row int64, want ...uint32) {
	f.Helper()
	for frames, err := range f.x.Frames(f.ctx) {
		f.must(err)
		if frames.Row == row && slices.Equal(frames.Bytes, want) {
			return
		}
	}
	f.Fatalf("pack %d does not have frames of %d bytes", row, want)
}

// A pack that is condemned and acquitted keeps its places, although other packs were stored
// meanwhile: a batch that relies on it may have been under way all the time.
func testAcquitted(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a")
	one, other := packOf(s, 1, 2), packOf(s, 1)
	f.accept(index.Result{Pack: one})
	term := f.lead("pruner", "first", time.Minute, true)
	f.must(f.x.Condemn(f.ctx, term, f.packRows(one)))
	f.accept(index.Result{Pack: other})
	if l := f.locate(1)[0]; l != at(other, 0) {
		t.Fatalf("chunk 1 is at %+v, want the pack that is not condemned", l)
	}
	f.must(f.x.Acquit(f.ctx, term, f.packRows(one)))
	f.must(f.x.Condemn(f.ctx, term, f.packRows(other)))
	f.must(f.x.Deleting(f.ctx, term, f.packRows(other)))
	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, f.packRows(other), byte(digit)))
	}
	f.accept(index.Result{Batch: storedOf(batches[0], one.Pack)})
	if l := f.locate(1)[0]; l != at(one, 0) {
		t.Fatalf("chunk 1 is at %+v, want the pack that the batch relies on", l)
	}
}
