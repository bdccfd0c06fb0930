package indextest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Prunes that freed something are listed, and the last one.
func testPrunes(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term, ok, err := f.x.Lead(f.ctx, "pruner", "one", time.Minute)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	all := []index.Prune{
		{Took: time.Second, Packs: 3, Bytes: 1 << 40, Freed: 5, Copied: 6, Snapshots: 7},
		{Took: time.Microsecond, State: "1 2 3", Kept: 1 << 50, Unused: 5},
		{},
		{Snapshots: 1},
		{Freed: 1},
		{},
	}
	for n, p := range all {
		f.must(f.x.NotePrune(f.ctx, term, p))
		found, err := f.x.Prunes(f.ctx)
		f.must(err)
		var want []index.Prune
		for m, other := range all[:n+1] {
			if m == n || other.Packs+other.Snapshots > 0 || other.Freed > 0 {
				want = append(want, other)
			}
		}
		now, err := f.x.Clock(f.ctx)
		f.must(err)
		for m := range found {
			if age := now.Sub(found[m].Ended); age < 0 || age > time.Minute {
				t.Errorf("it ended %v ago", age)
			}
			found[m].Ended = time.Time{}
		}
		if !slices.Equal(found, want) {
			t.Errorf("%+v, want %+v", found, want)
		}
	}
	f.must(f.x.Resign(f.ctx, term))
	if err := f.x.NotePrune(f.ctx, term, index.Prune{}); !errors.Is(err, index.ErrNotLeading) {
		t.Errorf("noted by one who does not lead: %v", err)
	}
}

// Each event by which something may become free changes the state of the work for pruners, and no
// other event does.
func testPruneWork(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	last := index.PruneState{}
	look := func(event string, changes bool) index.PruneWork {
		t.Helper()
		w, err := f.x.PruneWork(f.ctx)
		f.must(err)
		if (w.State != last) != changes {
			t.Fatalf("%s: state %+v, before %+v", event, w.State, last)
		}
		last = w.State
		return w
	}
	look("nothing", false)
	s, _ := f.batchesOf("a")
	look("a snapshot began", false)
	pack, other := packOf(s, 1), packOf(s, 2)
	f.accept(index.Result{Pack: pack}, index.Result{Pack: other})
	look("packs were stored", false)
	f.fail(s.ID, "")
	look("a snapshot failed", true)
	first := f.commitPages()
	look("a snapshot was committed", true)
	f.must(f.x.Recorded(f.ctx, first.ID))
	second := f.commitPages()
	f.must(f.x.Recorded(f.ctx, second.ID))
	look("another one", true)
	f.must(f.x.Forget(f.ctx, first.ID, "me", ""))
	w := look("one was forgotten", true)
	if w.Condemned+w.Rows != 0 || !w.CondemnedSince.IsZero() || !w.RowsSince.IsZero() || w.State.Forgotten != 1 {
		t.Fatalf("%+v", w)
	}
	f.must(f.x.RetireShard(f.ctx, s.Shard.ID, "me"))
	look("a shard was retired", true)

	term := f.lead("pruner", "one", time.Minute, true)
	rows := f.packRows(pack, other)
	began, err := f.x.Clock(f.ctx)
	began = began.Truncate(time.Millisecond) // as fine as SQLite
	f.must(err)
	f.must(f.x.Condemn(f.ctx, term, rows))
	f.must(f.x.Condemn(f.ctx, term, rows))
	if w = look("packs were condemned", false); w.Condemned != 2 || w.CondemnedSince.Before(began) || w.CondemnedSince.After(w.Now) || w.Rows != 0 {
		t.Fatalf("%+v", w)
	}
	f.must(f.x.Acquit(f.ctx, term, rows[:1]))
	f.must(f.x.Deleting(f.ctx, term, rows))
	if w = look("one is to be deleted", false); w.Condemned != 1 || w.CondemnedSince.IsZero() || w.Rows != 0 {
		t.Fatalf("%+v", w)
	}
	f.must(f.x.Gone(f.ctx, rows)) // the other is not to be deleted
	if w = look("it is deleted", false); w.Condemned != 0 || !w.CondemnedSince.IsZero() || w.Rows != 1 || w.RowsSince.Before(began) {
		t.Fatalf("%+v", w)
	}
	for p, err := range f.x.Packs(f.ctx) {
		f.must(err)
		if p.Gone != (p.Row == rows[1]) || p.Deleting != p.Gone {
			t.Errorf("%+v", p)
		}
	}
	f.must(f.x.Gone(f.ctx, nil))
	f.must(f.x.NotePrune(f.ctx, term, index.Prune{State: "done", Kept: 7, Unused: 3}))
	if w = look("a pass was noted", false); w.Done != "done" || w.Kept != 7 || w.Unused != 3 {
		t.Fatalf("%+v", w)
	}
	f.must(f.x.Remove(f.ctx, first.ID))
	look("a snapshot was removed", true)
	if last.Forgotten != 0 {
		t.Fatalf("%+v", last)
	}
}

// A pass closes a retired shard, and drops what interrupted snapshots have left of its pages. They
// were marked before, so the state says that more has become free.
func testPruneWorkOfRetiredShards(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	interrupted := func(want int64) index.PruneState {
		t.Helper()
		w, err := f.x.PruneWork(f.ctx)
		f.must(err)
		if w.State.Interrupted != want {
			t.Fatalf("%+v, want %d shards with pages of interrupted snapshots", w.State, want)
		}
		return w.State
	}
	interrupted(0)
	for range 2 { // the second one begins with the pages of the first
		s := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("a", "a")} })
		f.fail(s.ID, "")
		interrupted(1)
	}
	f.must(f.x.RetireShard(f.ctx, f.shard.ID, "me"))
	before := interrupted(1)
	_, err := f.x.DropVersions(f.ctx, f.shard.ID)
	f.must(err)
	if after := interrupted(0); after.String() == before.String() {
		t.Fatalf("the state is the same: %s", after)
	}
}

// Each sequence number of a catalog is used once, for any newest catalog in the store. Old catalogs
// are forgotten, but never the newest.
func testCatalogNumbers(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	next := func(newest, want int64) {
		t.Helper()
		if got, err := f.x.NextCatalog(f.ctx, newest); err != nil || got != want {
			t.Fatalf("catalog %d, %v; want %d", got, err, want)
		}
	}
	next(0, 1)
	next(0, 2)
	next(7, 8)
	next(3, 9)
	for _, n := range []int64{2, 8, 9} {
		f.must(f.x.CatalogWritten(f.ctx, index.WrittenCatalog{Sequence: n, Written: f.now}))
	}
	f.must(f.x.DropCatalogs(f.ctx, 8))
	left, err := f.x.Catalogs(f.ctx)
	f.must(err)
	if !slices.Equal(left, []int64{8, 9}) {
		t.Errorf("catalogs %d", left)
	}
	f.must(f.x.DropCatalogs(f.ctx, 100))
	if w, err := f.x.WrittenCatalog(f.ctx); err != nil || w.Sequence != 9 {
		t.Errorf("the newest catalog is %+v, %v", w, err)
	}
	next(0, 10)
}
