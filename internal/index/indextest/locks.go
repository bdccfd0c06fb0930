package indextest

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Locks are noted, and the noted end of a lock never becomes earlier.
func testLocks(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, _ := f.batchesOf("a")
	one, other := packOf(s, 1), packOf(s, 2)
	f.accept(index.Result{Pack: one})
	f.accept(index.Result{Pack: other})
	rows := f.packRows(one, other)
	term := f.lead("pruner", "first", time.Minute, true)
	now := time.Now().UTC().Truncate(time.Second)
	wantPacks := func(first, second time.Time) {
		t.Helper()
		for p, err := range f.x.Packs(f.ctx) {
			f.must(err)
			want := first
			if p.Row == rows[1] {
				want = second
			}
			if !p.LockedUntil.Equal(want) {
				t.Errorf("pack %d is locked until %v, want %v", p.Row, p.LockedUntil, want)
			}
		}
	}
	wantPacks(time.Time{}, time.Time{})
	f.must(f.x.LockPacks(f.ctx, term, rows, now.Add(time.Hour)))
	f.must(f.x.LockPacks(f.ctx, term, rows[1:], now.Add(2*time.Hour)))
	f.must(f.x.LockPacks(f.ctx, term, rows, now.Add(time.Minute)))
	wantPacks(now.Add(time.Hour), now.Add(2*time.Hour))

	record, content := index.RecordLock(s.ID), index.ContentLock(s.ID)
	f.must(f.x.LockObjects(f.ctx, term, []string{"repository", record}, now.Add(time.Hour)))
	f.must(f.x.LockObjects(f.ctx, term, []string{record, content}, now.Add(time.Minute)))
	f.must(f.x.LockObjects(f.ctx, term, nil, now))
	locks, err := f.x.Locks(f.ctx)
	f.must(err)
	for name, want := range map[string]time.Duration{"repository": time.Hour, record: time.Hour, content: time.Minute} {
		if got := locks.Until[name]; !got.Equal(now.Add(want)) {
			t.Errorf("%s is locked until %v, want %v", name, got, now.Add(want))
		}
	}
	if len(locks.Until) != 3 || locks.Catalog != 0 || locks.Now.Sub(now).Abs() > time.Minute {
		t.Errorf("locks %+v", locks)
	}
	stale := term
	stale.Epoch--
	f.wants(f.x.LockPacks(f.ctx, stale, rows, now.Add(9*time.Hour)), index.ErrNotLeading)
	f.wants(f.x.LockObjects(f.ctx, stale, []string{record}, now.Add(9*time.Hour)), index.ErrNotLeading)
	wantPacks(now.Add(time.Hour), now.Add(2*time.Hour))

	// An amended record and its segment are other objects than those that were locked.
	f.must(f.x.Amend(f.ctx, index.Term{}, index.Amendment{ID: s.ID, Sequence: 2}))
	locks, err = f.x.Locks(f.ctx)
	f.must(err)
	if len(locks.Until) != 1 || len(locks.Amendments) != 1 || locks.Amendments[s.ID] != (index.Amendment{ID: s.ID, Sequence: 2}) {
		t.Errorf("locks %+v after an amendment", locks)
	}

	// A pack that waits for the end of its lock does not wait for a pruner.
	f.must(f.x.Condemn(f.ctx, term, rows))
	f.must(f.x.Deleting(f.ctx, term, rows))
	work, err := f.x.PruneWork(f.ctx)
	f.must(err)
	if !work.CondemnedSince.IsZero() {
		t.Errorf("locked packs wait since %v", work.CondemnedSince)
	}
}

// A pack is split: replaced by copies in other objects, and by itself without the chunks of the
// copies.
func testSplit(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b")
	pack := packOf(s, 1, 2, 3, 4, 5, 6)
	f.accept(index.Result{Pack: pack})
	term := f.lead("pruner", "first", time.Minute, true)
	object, further, row := backup.NewPackID(), backup.NewPackID(), f.packRows(pack)[0]
	plan, err := f.x.Plan(f.ctx, term, s.ID, object)
	f.must(err)
	second, err := f.x.Plan(f.ctx, term, s.ID, further)
	f.must(err)
	f.must(f.x.Condemn(f.ctx, term, []int64{row}))
	until := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
	itself := index.PackCopy{
		Row: row, Pack: backup.NewPackID(), Bytes: pack.StoredBytes, FrameBytes: []uint32{190, 190, 190}, Chunks: chunkIDs([]int{3, 4}),
		Stays: true, LockedUntil: until.Add(-time.Minute),
	}
	move := index.Move{Plan: plan, Copies: []index.PackCopy{
		{Row: row, Plan: plan, Pack: object, Bytes: 500, FrameBytes: []uint32{190}, Chunks: chunkIDs([]int{1, 2}), LockedUntil: until}, itself,
		{Row: row, Plan: row, Pack: further, Bytes: 600, FrameBytes: []uint32{0, 0, 190}, Chunks: chunkIDs([]int{5, 6}), LockedUntil: until.Add(time.Hour)},
	}}
	f.wants(f.x.Move(f.ctx, term, move), backup.ErrInvalid) // the second object is not planned
	move.Copies[2].Plan = second
	f.must(f.x.Move(f.ctx, term, move))
	for n, l := range f.locate(1, 2, 3, 4, 5, 6) {
		want := at(pack, n)
		want.PackPlace = index.PackPlace{Pack: object, Sealed: pack.Pack, Snapshot: s.ID, Object: object, Bytes: 500}
		switch n {
		case 4, 5:
			want.PackPlace = index.PackPlace{Pack: further, Sealed: pack.Pack, Snapshot: s.ID, Object: further, Bytes: 600}
		case 2, 3:
			want.PackPlace = index.PackPlace{Pack: itself.Pack, Sealed: pack.Pack, Snapshot: s.ID, Object: pack.Pack, Bytes: pack.StoredBytes}
		}
		if l != want {
			t.Errorf("chunk %d is at %+v, want %+v", n+1, l, want)
		}
	}
	for p, err := range f.x.Packs(f.ctx) {
		f.must(err)
		want := map[backup.PackID]time.Time{object: until, itself.Pack: itself.LockedUntil, further: until.Add(time.Hour)}[p.Pack]
		if !p.LockedUntil.Equal(want) || p.Deleting != (p.Row == row) {
			t.Errorf("pack %+v", p)
		}
	}
	f.wants(f.apply(index.Result{Batch: storedOf(batches[0], pack.Pack)})[0].Err, index.ErrCondemned)
	f.accept(index.Result{Batch: storedOf(batches[1], object, itself.Pack)})
	// The object of the pack that stays is known to the sweep.
	found, err := f.x.Recognize(f.ctx, index.Term{}, []index.StoredObject{{Snapshot: s.ID, ID: pack.Pack}, {Snapshot: s.ID, ID: object}})
	f.must(err)
	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, []int64{row}, byte(digit)))
	}
	f.wantRows("chunks", 6)
	f.fail(s.ID, "")
	f.wantDropped([]int64{row}, 1)
	again, err := f.x.Recognize(f.ctx, index.Term{}, []index.StoredObject{{Snapshot: s.ID, ID: pack.Pack}, {Snapshot: s.ID, ID: object}})
	f.must(err)
	for i := range found {
		if !found[i].Named || !again[i].Named {
			t.Errorf("object %d: %+v, and then %+v", i, found[i], again[i])
		}
	}
}
