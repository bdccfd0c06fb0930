package indextest

import (
	"errors"
	"reflect"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// batchesOf begins a snapshot with one open batch of one page for each of paths.
func (f *fixture) batchesOf(paths ...string) (backup.Snapshot, []backup.ReadBatch) {
	f.Helper()
	s := f.walk(func(r *backup.SliceWalked) {
		for _, path := range paths {
			r.Batches = append(r.Batches, backup.PagesToRead{Pages: []backup.PageVersion{pageOf(path, "content")}})
		}
	})
	return s, f.claimBatches(s)
}

func (f *fixture) locate(numbers ...int) []index.Location {
	f.Helper()
	locations, err := f.x.Locate(f.ctx, chunkIDs(numbers))
	f.must(err)
	return locations
}

func (f *fixture) locateAll(numbers ...int) []index.Location {
	f.Helper()
	locations, err := f.x.LocateReadable(f.ctx, chunkIDs(numbers))
	f.must(err)
	return locations
}

func chunkIDs(numbers []int) []backup.ChunkID {
	ids := make([]backup.ChunkID, len(numbers))
	for i, n := range numbers {
		ids[i] = chunkID(n)
	}
	return ids
}

// at returns the location of chunk i of a pack.
func at(p *backup.PackStored, i int) index.Location {
	c := p.Chunks[i]
	return index.Location{
		PackPlace: index.PackPlace{Pack: p.Pack, Snapshot: p.Snapshot, Object: p.Pack, Bytes: p.StoredBytes},
		Frame:     c.Frame, Start: c.Offset, Length: c.Length,
	}
}

func (f *fixture) wantLocations(got []index.Location, want ...index.Location) {
	f.Helper()
	if !reflect.DeepEqual(got, want) {
		f.Fatalf("locations %+v, want %+v", got, want)
	}
}

func testLocate(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	nowhere := index.Location{}
	first, second := packOf(s, 1, 2, 3), packOf(s, 3, 4)
	second.FrameBytes = make([]uint32, index.MaxChunks)
	second.Chunks[1].Frame, second.Chunks[1].Offset, second.Chunks[1].Length = index.MaxChunks-1, 1<<31-1, 1<<31-1
	f.accept(index.Result{Pack: first})
	f.accept(index.Result{Pack: second}, index.Result{Pack: first}) // again
	// The result has the order of the ids. One id occurs twice, and some have no place. The first
	// place of a chunk is kept.
	f.wantLocations(f.locate(4, 9, 3, 1, 4), at(second, 1), nowhere, at(first, 2), at(first, 0), at(second, 1))
	f.wantLocations(f.locate())

	many := make([]int, 5000)
	for i := range many {
		many[i] = i
	}
	all := packOf(s, many...)
	f.accept(index.Result{Pack: all})
	for i, l := range f.locate(many...) {
		want := at(all, i)
		if i >= 1 && i <= 3 {
			want = at(first, i-1)
		} else if i == 4 {
			want = at(second, 1)
		}
		if l != want {
			t.Fatalf("chunk %d is at %+v, want %+v", i, l, want)
		}
	}
}

// Dedup does not find chunks in a condemned pack, and restore does. A new place replaces one in
// such a pack.
func testCondemnedChunks(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	first := packOf(s, 1, 2)
	f.accept(index.Result{Pack: first})
	f.condemn(first.Pack)
	f.wantLocations(f.locate(1, 2), index.Location{}, index.Location{})
	f.wantLocations(f.locateAll(1, 2), at(first, 0), at(first, 1))

	second := packOf(s, 2, 3)
	f.accept(index.Result{Pack: second})
	f.wantLocations(f.locate(1, 2, 3), index.Location{}, at(second, 0), at(second, 1))
	f.wantLocations(f.locateAll(1, 2), at(first, 0), at(second, 0))
	// Registered again, the condemned pack stays condemned.
	f.accept(index.Result{Pack: first})
	f.wantLocations(f.locate(1), index.Location{})
}

// A batch is refused while a pack that it relies on is not registered, and once one is condemned.
// After that it can be claimed again at once (I1, I6).
func testBatchesRelyOnPacks(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b")
	known, missing := packOf(s, 1), packOf(s, 2)
	result := index.Result{Batch: storedOf(batches[0], known.Pack, missing.Pack)}
	f.accept(index.Result{Pack: known})
	f.wants(f.apply(result)[0].Err, index.ErrPackUnknown)
	f.wantLeased(f.now, 0, 2)

	f.condemn(known.Pack)
	outcomes := f.apply(index.Result{Pack: missing}, result, index.Result{Batch: storedOf(batches[1], missing.Pack)})
	f.wants(outcomes[1].Err, index.ErrCondemned)
	if outcomes[0].Err != nil || outcomes[2].Err != nil || outcomes[2].Complete || !outcomes[1].Announced {
		t.Fatalf("%+v, want only the batch of the condemned pack refused", outcomes)
	}
	if got := f.snapshot(s.ID); got.BatchesSettled != 1 {
		t.Fatalf("snapshot %+v, want one batch settled", got)
	}
	// Its lease would still run, but was ended.
	again := f.claimBatch(s)
	if again.ID != batches[0].ID || again.Attempt != 2 {
		t.Fatalf("claimed %+v, want batch %d again", again, batches[0].ID)
	}
	anew := packOf(s, 1)
	if o := f.accept(index.Result{Pack: anew}, index.Result{Batch: storedOf(again, anew.Pack, missing.Pack)}); !o[1].Complete {
		t.Fatalf("%+v, want the snapshot complete", o)
	}
}

// A batch relies on a pack of another snapshot, which ended before the pack could be registered. It
// waits for the pack, until the committer gives up; then it can be claimed again at once.
func testPackThatNeverComes(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	cancelled := f.begin()
	f.fail(cancelled.ID, "cancelled")
	s, batches := f.batchesOf("a")
	lost := packOf(cancelled, 1)
	if o := f.apply(index.Result{Pack: lost}); !o[0].Late {
		t.Fatalf("%+v, want the pack late", o)
	}
	result := index.Result{Batch: storedOf(batches[0], lost.Pack)}
	for range 2 {
		if o := f.apply(result)[0]; !errors.Is(o.Err, index.ErrPackUnknown) || o.Announced {
			t.Fatalf("%+v, want the batch refused", o)
		}
	}
	f.wantLeased(f.now, 0, 1)
	result.GiveUp = true
	if o := f.apply(result)[0]; !errors.Is(o.Err, index.ErrPackUnknown) || !o.Announced {
		t.Fatalf("%+v, want the batch given up", o)
	}
	again := f.claimBatch(s)
	if again.ID != batches[0].ID || again.Attempt != 2 {
		t.Fatalf("claimed %+v, want batch %d again", again, batches[0].ID)
	}
	if o := f.apply(result)[0]; errors.Is(o.Err, index.ErrPackUnknown) && o.Announced {
		t.Fatalf("%+v: the first attempt takes the second one away", o)
	}
	anew := packOf(s, 1)
	if o := f.accept(index.Result{Pack: anew}, index.Result{Batch: storedOf(again, anew.Pack), GiveUp: true}); !o[1].Complete {
		t.Fatalf("%+v, want the snapshot complete", o)
	}
}

// Garbage collection condemns packs while batches that rely on them are applied. In any order, no
// accepted batch relies on a pack that was condemned before.
func testCondemnWhileApplying(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	for range 10 {
		s, batches := f.batchesOf("a")
		p := packOf(s, 1)
		f.accept(index.Result{Pack: p})
		other := f.db.Open()
		var group errgroup.Group
		group.Go(func() error { return Condemn(f.ctx, other, p.Pack) })
		var outcome index.Outcome
		group.Go(func() error {
			outcomes, err := f.x.Apply(f.ctx, []index.Result{{Batch: storedOf(batches[0], p.Pack)}})
			if err == nil {
				outcome = outcomes[0]
			}
			return err
		})
		f.must(group.Wait())
		f.must(other.Close())
		if outcome.Err != nil {
			f.wants(outcome.Err, index.ErrCondemned)
		}
		if accepted := f.snapshot(s.ID).BatchesSettled == 1; accepted != (outcome.Err == nil) {
			t.Fatalf("outcome %+v, accepted %t", outcome, accepted)
		}
		f.fail(s.ID, "")
	}
}
