package indextest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// The brake has defaults, and can be changed to what makes sense.
func testBrake(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	b, err := f.x.Brake(f.ctx)
	f.must(err)
	if want := (index.Brake{Snapshots: 50, MinSnapshots: 10, Bytes: 30, MinBytes: 1 << 30, Operators: 1}); b != want {
		t.Fatalf("%+v, want %+v", b, want)
	}
	want := index.Brake{Snapshots: 40, MinSnapshots: 3, Bytes: 100, MinBytes: 1 << 40, Operators: 1}
	f.must(f.x.SetBrake(f.ctx, want, "alice"))
	f.must(f.x.SetBrake(f.ctx, want, "alice")) // changes nothing
	if b, err = f.x.Brake(f.ctx); err != nil || b != want {
		t.Fatalf("%+v, %v; want %+v", b, err, want)
	}
	for _, change := range []func(*index.Brake){
		func(b *index.Brake) { b.Snapshots = 101 }, func(b *index.Brake) { b.Snapshots = -1 }, func(b *index.Brake) { b.MinSnapshots = 0 },
		func(b *index.Brake) { b.Bytes = 101 }, func(b *index.Brake) { b.MinBytes = 0 },
		func(b *index.Brake) { b.Operators = 0 }, func(b *index.Brake) { b.Operators = 11 },
	} {
		wrong := want
		change(&wrong)
		f.wants(f.x.SetBrake(f.ctx, wrong, "alice"), backup.ErrInvalid)
	}
	f.wants(f.x.SetBrake(f.ctx, b, ""), backup.ErrInvalid)
	f.wantLog("alice: brake brake: snapshots 40%, at least 3; bytes 100%, at least 1099511627776; operators 1")
}

// brake sets the brake: percents of snapshots and bytes, without a least number.
func (f *fixture) brake(snapshots, bytes int) {
	f.Helper()
	f.must(f.x.SetBrake(f.ctx, index.Brake{Snapshots: snapshots, MinSnapshots: 1, Bytes: bytes, MinBytes: 1, Operators: 1}, "admin"))
}

// wantStop checks that a deletion is stopped, and whether that is new.
func (f *fixture) wantStop(d index.Deletion, isNew bool) index.Stop {
	f.Helper()
	err := f.x.MayDelete(f.ctx, d)
	var stopped *index.StoppedError
	if !errors.As(err, &stopped) || stopped.New != isNew {
		f.Fatalf("%+v: %v, want a stop, new: %v", d, err, isNew)
	}
	stops, err := f.x.Stops(f.ctx)
	f.must(err)
	i := slices.IndexFunc(stops, func(s index.Stop) bool { return s.ID == stopped.ID })
	if i < 0 {
		f.Fatalf("stop %d is not one of %+v", stopped.ID, stops)
	}
	s := stops[i]
	if s.Shard != d.Shard || s.Since.IsZero() || s.Allowed() {
		f.Fatalf("%+v, want it stopped", s)
	}
	return s
}

func (f *fixture) confirm(id int64, by string) index.Stop {
	f.Helper()
	s, err := f.x.Confirm(f.ctx, id, by, "because")
	f.must(err)
	return s
}

func (f *fixture) wantStops(want int) {
	f.Helper()
	if stops, err := f.x.Stops(f.ctx); err != nil || len(stops) != want {
		f.Fatalf("stops %+v, %v; want %d", stops, err, want)
	}
}

func newIDs(n int) (ids []backup.SnapshotID) {
	for range n {
		ids = append(ids, backup.NewSnapshotID())
	}
	return ids
}

// A policy may forget what was confirmed, and nothing else beyond the brake.
func testBrakeOfShards(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.brake(50, 100)
	ids := newIDs(10)
	of := func(of int, ids ...backup.SnapshotID) index.Deletion {
		return index.Deletion{By: "policy nightly", Shard: f.shard.ID, Snapshots: ids, OfSnapshots: of}
	}
	f.must(f.x.MayDelete(f.ctx, of(10)))
	f.must(f.x.MayDelete(f.ctx, of(10, ids[:5]...)))
	f.wantStops(0)
	s := f.wantStop(of(10, ids[:6]...), true)
	if !slices.Equal(s.Snapshots, ids[:6]) || s.OfSnapshots != 10 || s.By != "policy nightly" {
		t.Fatalf("%+v", s)
	}
	f.wantStop(of(10, ids[:6]...), false)
	// The seventh snapshot is a small deletion of its own. The stop stays as it was shown.
	if again := f.wantStop(of(10, ids[:7]...), false); again.ID != s.ID || len(again.Snapshots) != 6 {
		t.Fatalf("%+v", again)
	}
	// Others, and other shards, go on.
	other := of(10, ids[:6]...)
	other.Shard = f.newShard("filer", "other").ID
	other.Snapshots = ids[:5]
	f.must(f.x.MayDelete(f.ctx, other))
	manual := of(10, ids[:6]...)
	manual.By = "root@host"
	f.wantStop(manual, true)
	manual.Snapshots = ids[:1]
	f.must(f.x.MayDelete(f.ctx, manual)) // it is no longer too much
	f.wantStops(1)

	if s = f.confirm(s.ID, "alice"); !s.Allowed() {
		t.Fatalf("%+v, want it confirmed", s)
	}
	f.must(f.x.MayDelete(f.ctx, of(10, ids[:6]...)))
	f.must(f.x.MayDelete(f.ctx, of(10, ids[:8]...)))
	// Four more of the four that were to stay.
	grown := f.wantStop(of(10, ids...), true)
	if grown.ID == s.ID || len(grown.Snapshots) != 10 || len(grown.Confirmed) != 0 {
		t.Fatalf("%+v, want another stop", grown)
	}
	_, err := f.x.Confirm(f.ctx, s.ID, "alice", "")
	f.wants(err, backup.ErrNotFound)
	// What is rejected stays rejected while it grows, up to twice as many.
	f.must(f.x.Reject(f.ctx, grown.ID, "bob", ""))
	added := newIDs(11)
	if s := f.wantStop(of(20, append(slices.Clone(ids), added[:10]...)...), false); s.ID != grown.ID || s.Rejected != "bob" || len(s.Snapshots) != 10 {
		t.Fatalf("%+v, want the rejected one", s)
	}
	if s := f.wantStop(of(21, append(slices.Clone(ids), added...)...), true); s.ID == grown.ID || s.Rejected != "" {
		t.Fatalf("%+v, want another stop", s)
	}
	f.must(f.x.MayDelete(f.ctx, of(10)))
	grown = f.wantStop(of(10, ids...), true)
	// A confirmation is used once.
	f.confirm(grown.ID, "alice")
	f.must(f.x.MayDelete(f.ctx, of(10, ids...)))
	f.must(f.x.Deleted(f.ctx, of(10, ids...), false))
	f.must(f.x.MayDelete(f.ctx, of(2, ids[8:]...))) // the rest, after a failure
	f.must(f.x.Deleted(f.ctx, of(2, ids[8:]...), true))
	f.wantStops(0)
	f.wantStop(of(2, ids[8:]...), true)

	for _, by := range []string{"", "\xff"} {
		wrong := of(10, ids...)
		wrong.By = by
		f.wants(f.x.MayDelete(f.ctx, wrong), backup.ErrInvalid)
		_, err := f.x.Confirm(f.ctx, 1, by, "")
		f.wants(err, backup.ErrInvalid)
	}
	// The last good snapshot is stopped even if it is one of many.
	last := other
	last.Snapshots, last.Last, last.LastBytes, last.OfSnapshots = ids[:1], ids[0], 7, 100
	f.confirm(f.wantStop(last, true).ID, "alice")
	f.must(f.x.MayDelete(f.ctx, last))
}

// The pruner may delete what was confirmed. A rejected stop remains, and can be confirmed after
// all.
func testBrakeOfRepository(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.brake(100, 30)
	of := func(bytes int64) index.Deletion { return index.Deletion{By: "pruner", Bytes: bytes, OfBytes: 1000} }
	f.must(f.x.MayDelete(f.ctx, of(300)))
	s := f.wantStop(of(301), true)
	f.must(f.x.Reject(f.ctx, s.ID, "bob", "not ours"))
	if s = f.wantStop(of(302), false); s.Rejected != "bob" || s.Waits() {
		t.Fatalf("%+v, want it rejected", s)
	}
	work := func() index.PruneWork {
		t.Helper()
		w, err := f.x.PruneWork(f.ctx)
		f.must(err)
		return w
	}
	before := work()
	s = f.confirm(s.ID, "alice")
	if s.Rejected != "" || !s.Allowed() || len(s.Confirmed) != 1 {
		t.Fatalf("%+v, want it confirmed", s)
	}
	if work().State.Confirmed == before.State.Confirmed {
		t.Fatal("the confirmation does not show in PruneWork")
	}
	f.must(f.x.MayDelete(f.ctx, of(302)))
	f.must(f.x.Reject(f.ctx, s.ID, "bob", "")) // takes the confirmation back
	f.wantStop(of(302), false)
	// What is rejected stays rejected while it grows, up to twice as much.
	if s = f.wantStop(of(602), false); s.Rejected != "bob" || s.Bytes != 301 {
		t.Fatalf("%+v, want it rejected", s)
	}
	f.confirm(s.ID, "alice")
	more := f.wantStop(of(900), true)
	f.must(f.x.Reject(f.ctx, more.ID, "bob", ""))
	twice := f.wantStop(index.Deletion{By: "pruner", Bytes: 1801, OfBytes: 2000}, true)
	if twice.ID == more.ID || twice.Rejected != "" {
		t.Fatalf("%+v, want another stop", twice)
	}
	f.must(f.x.MayDelete(f.ctx, of(0)))
	first := more.ID
	more = f.wantStop(of(900), true)
	f.confirm(more.ID, "alice")
	f.must(f.x.MayDelete(f.ctx, of(900)))
	f.must(f.x.Deleted(f.ctx, of(900), true))
	f.wantStops(0)
	f.wants(f.x.Reject(f.ctx, more.ID, "bob", ""), backup.ErrNotFound)
	// Nothing to delete is never too much.
	f.brake(100, 0)
	f.must(f.x.MayDelete(f.ctx, of(0)))

	f.wantLog(
		"admin: brake brake: snapshots 100%, at least 1; bytes 30%, at least 1; operators 1",
		fmt.Sprintf("pruner: stop repository: stop %d: 301 of 1000 bytes", s.ID), fmt.Sprintf("bob: reject stop %d: not ours", s.ID),
		fmt.Sprintf("alice: confirm stop %d: because", s.ID), fmt.Sprintf("bob: reject stop %d: ", s.ID), fmt.Sprintf("alice: confirm stop %d: because", s.ID),
		fmt.Sprintf("pruner: stop repository: stop %d: 900 of 1000 bytes", first), fmt.Sprintf("bob: reject stop %d: ", first),
		fmt.Sprintf("pruner: stop repository: stop %d: 1801 of 2000 bytes", twice.ID),
		fmt.Sprintf("pruner: stop repository: stop %d: 900 of 1000 bytes", more.ID), fmt.Sprintf("alice: confirm stop %d: because", more.ID),
		"admin: brake brake: snapshots 100%, at least 1; bytes 0%, at least 1; operators 1",
	)
}

// Pruning and purges are stopped and confirmed apart from each other, and so are those of different
// operators.
func testBrakeOfPurges(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.brake(100, 30)
	by := func(who string, bytes int64) index.Deletion {
		return index.Deletion{By: who, Bytes: bytes, OfBytes: 1000}
	}
	alice, bob := index.ByPurge("alice@host"), index.ByPurge("bob@host")
	stopped := f.wantStop(by("pruner", 500), true)
	f.must(f.x.Reject(f.ctx, stopped.ID, "bob", "keep them"))
	// A small purge drops no stop of the pruner, and does not use it up.
	f.must(f.x.MayDelete(f.ctx, by(alice, 10)))
	f.must(f.x.Deleted(f.ctx, by(alice, 10), true))
	if s := f.wantStop(by("root@host", 500), false); s.ID != stopped.ID || s.Rejected != "bob" {
		t.Fatalf("%+v, want the rejected stop %d", s, stopped.ID)
	}
	// The confirmation of a pruning does not confirm a purge, and vice versa.
	f.confirm(stopped.ID, "alice")
	purge := f.wantStop(by(alice, 500), true)
	if other := f.wantStop(by(bob, 500), true); other.ID == purge.ID {
		t.Fatalf("%+v is the stop of two operators", other)
	}
	f.confirm(purge.ID, "bob")
	f.must(f.x.MayDelete(f.ctx, by(alice, 500)))
	f.must(f.x.Deleted(f.ctx, by(alice, 0), true)) // as bctl purge --resume reports it
	f.wantStops(2)
	f.wantStop(by(alice, 500), true)
	f.must(f.x.MayDelete(f.ctx, by("pruner", 500)))
	f.must(f.x.Deleted(f.ctx, by("pruner", 500), true))
	f.wantStops(2)
}

// Deletions within a day count, except for those that were confirmed. So many small deletions are
// stopped, too.
func testBrakeWindow(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.brake(100, 30)
	of := func(bytes, stored int64) index.Deletion {
		return index.Deletion{By: "pruner", Bytes: bytes, OfBytes: stored}
	}
	f.must(f.x.MayDelete(f.ctx, of(200, 1000)))
	f.must(f.x.Deleted(f.ctx, of(200, 1000), true))
	f.must(f.x.MayDelete(f.ctx, of(100, 800)))
	s := f.wantStop(of(101, 800), true)
	if s.EarlierBytes != 200 || s.Bytes != 101 {
		t.Fatalf("%+v", s)
	}
	f.confirm(s.ID, "alice")
	f.must(f.x.MayDelete(f.ctx, of(101, 800)))
	f.must(f.x.Deleted(f.ctx, of(101, 800), true))
	f.must(f.x.MayDelete(f.ctx, of(10, 800))) // 200 and 10 of 1,000
	for _, days := range []int{-2, 2} {       // a window that has ended, or that a wrong clock has begun
		f.exec("UPDATE brake SET window_began = $1, deleted_bytes = 500", time.Now().AddDate(0, 0, days).UnixMicro())
		f.must(f.x.MayDelete(f.ctx, of(100, 800)))
	}
	f.must(f.x.Deleted(f.ctx, of(100, 800), false))
	f.wantStop(of(200, 700), true)
}

// One operator who confirms twice is one.
func testTwoOperators(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.must(f.x.SetBrake(f.ctx, index.Brake{Snapshots: 100, MinSnapshots: 1, Bytes: 30, MinBytes: 1, Operators: 2}, "admin"))
	d := index.Deletion{By: "pruner", Bytes: 500, OfBytes: 1000}
	s := f.wantStop(d, true)
	for range 2 {
		if s = f.confirm(s.ID, "alice"); s.Allowed() || !slices.Equal(s.Confirmed, []string{"alice"}) {
			t.Fatalf("%+v after one operator has confirmed it", s)
		}
		f.wantStop(d, false)
	}
	if s = f.confirm(s.ID, "bob"); !s.Allowed() || !slices.Equal(s.Confirmed, []string{"alice", "bob"}) {
		t.Fatalf("%+v after two operators have confirmed it", s)
	}
	f.must(f.x.MayDelete(f.ctx, d))
	f.wantLog("admin: brake brake: snapshots 100%, at least 1; bytes 30%, at least 1; operators 2", fmt.Sprintf("pruner: stop repository: stop %d: 500 of 1000 bytes", s.ID),
		fmt.Sprintf("alice: confirm stop %d: because", s.ID), fmt.Sprintf("bob: confirm stop %d: because", s.ID))
}
