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

// commitRecorded is commitPages, and the store has the record.
func (f *fixture) commitRecorded(pages ...backup.PageVersion) backup.Snapshot {
	f.Helper()
	s := f.commitPages(pages...)
	f.must(f.x.Recorded(f.ctx, s.ID))
	return s
}

func (f *fixture) forget(s backup.Snapshot) error {
	return f.x.Forget(f.ctx, s.ID, "operator", "no longer wanted")
}

// A snapshot is kept for each of several reasons, and forgotten once none of them is left.
func testForget(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitPages(pageOf("a", "1"))
	f.wants(f.forget(first), index.ErrKept) // the last good one, without a record
	second, third := f.commitRecorded(pageOf("a", "2")), f.commitRecorded(pageOf("a", "3"))
	f.wants(f.forget(first), index.ErrKept) // no record
	f.must(f.x.Recorded(f.ctx, first.ID))
	f.wants(f.forget(third), index.ErrKept) // the last good one

	running := f.begin()
	f.must(f.x.SetBad(f.ctx, third.ID, "tester", "damaged"))
	f.wants(f.forget(second), index.ErrKept) // the last good one now
	f.wants(f.forget(third), index.ErrKept)  // the base
	f.wants(f.forget(running), backup.ErrNotFound)
	f.wants(f.forget(backup.Snapshot{ID: backup.NewSnapshotID()}), backup.ErrNotFound)
	f.fail(running.ID, "")
	f.wants(f.forget(running), index.ErrKept) // no record
	f.must(f.x.Recorded(f.ctx, running.ID))
	f.must(f.forget(running))
	f.must(f.forget(third))
	f.must(f.forget(first))
	for _, s := range []backup.Snapshot{first, third, running} {
		f.wants(f.forget(s), backup.ErrNotFound)
	}
	// The last good snapshot of a retired shard may go, too.
	f.wants(f.forget(second), index.ErrKept)
	f.must(f.x.RetireShard(f.ctx, f.shard.ID, "tester"))
	f.must(f.forget(second))
	if good, err := f.x.LastCommits(f.ctx, f.shard.ID); err != nil || good.Good != 0 {
		t.Fatalf("last good snapshot %d, %v; want none", good.Good, err)
	}
	for _, by := range []string{"", "a\x00", "\xff"} {
		f.wants(f.x.Forget(f.ctx, second.ID, by, ""), backup.ErrInvalid)
	}
	f.wants(f.x.Forget(f.ctx, second.ID, "operator", "\xff"), backup.ErrInvalid)
}

// Nobody can list, read, mark or hold a forgotten snapshot.
func testForgotten(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first, second := f.commitRecorded(pageOf("a", "1")), f.commitRecorded(pageOf("a", "2"))
	f.must(f.forget(first))
	if s := f.snapshot(first.ID); s.State != backup.Deleting {
		t.Fatalf("it is %s", s.State)
	}
	for _, list := range []struct {
		states []backup.State
		want   []backup.SnapshotID
	}{
		{nil, []backup.SnapshotID{second.ID}},
		{[]backup.State{backup.Committed}, []backup.SnapshotID{second.ID}},
		{[]backup.State{backup.Deleting}, []backup.SnapshotID{first.ID}},
		{[]backup.State{backup.Failed}, nil},
		{[]backup.State{backup.Deleting, backup.Committed}, []backup.SnapshotID{first.ID, second.ID}},
	} {
		found, err := f.x.Snapshots(f.ctx, index.SnapshotFilter{States: list.states})
		f.must(err)
		var ids []backup.SnapshotID
		for _, s := range found {
			ids = append(ids, s.ID)
		}
		if !slices.Equal(ids, list.want) {
			t.Fatalf("in states %v: %v, want %v", list.states, ids, list.want)
		}
	}
	for _, err := range f.x.Pages(f.ctx, first.ID, "") {
		f.wants(err, backup.ErrNotFound)
	}
	f.wants(f.x.SetBad(f.ctx, first.ID, "tester", "damaged"), backup.ErrNotFound)
	_, err := f.x.AddHold(f.ctx, index.Hold{Snapshot: first.ID, By: "operator"})
	f.wants(err, backup.ErrNotFound)
	f.wants(f.x.BeginReading(f.ctx, backup.NewPackID(), first.ID, time.Hour), backup.ErrNotFound)
}

// The newest snapshot has ended a page, and is forgotten. The next snapshot begins with its
// content: with that of the one before, the page would be back.
func testForgetHead(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitRecorded(pageOf("a", "1"), pageOf("b", "1"))
	head := f.walk(func(r *backup.SliceWalked) { r.Removed = []string{"b"} })
	f.commit(head)
	f.must(f.x.Recorded(f.ctx, head.ID))
	f.must(f.x.SetBad(f.ctx, head.ID, "tester", "damaged"))
	f.must(f.forget(head))
	f.wantLastGood(first.Number)
	for range 2 { // before and after
		next := f.begin()
		if next.Base != head.Number || next.BaseID != head.ID {
			t.Fatalf("snapshot %d is based on %d, want %d", next.Number, next.Base, head.Number)
		}
		f.accept(index.Result{Slice: SliceOf(f.claimTask(next))})
		f.wantPages(next, "a")
		f.fail(next.ID, "")
		_, err := f.x.DropVersions(f.ctx, f.shard.ID)
		f.must(err)
	}
	next := f.walk(func(*backup.SliceWalked) {})
	f.commit(next)
	f.wantPages(next, "a")
	f.wantPages(first, "a", "b")
}

func (f *fixture) wantLastGood(good backup.SnapshotNumber) {
	f.Helper()
	j, err := f.x.LastCommits(f.ctx, f.shard.ID)
	f.must(err)
	if j.Good != good {
		f.Fatalf("last good snapshot %d, want %d", j.Good, good)
	}
}

// wantPages checks the pages of a snapshot, which may be running.
func (f *fixture) wantPages(s backup.Snapshot, want ...string) {
	f.Helper()
	var got []backup.PageVersion
	for p, err := range f.x.Subtree(f.ctx, f.shard.ID, s.Number, "") {
		f.must(err)
		got = append(got, p)
	}
	f.wantPaths(got, want...)
}

// Holds keep snapshots. The log has each of them, and each forgetting.
func testHolds(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first, second := f.commitRecorded(pageOf("a", "1")), f.commitRecorded(pageOf("a", "2"))
	began, err := f.x.Clock(f.ctx)
	f.must(err)
	add := func(h index.Hold) index.Hold {
		t.Helper()
		held, err := f.x.AddHold(f.ctx, h)
		f.must(err)
		if held.ID == 0 || held.Since.Before(began.Add(-time.Second)) || held.Since.Location() != time.UTC {
			t.Fatalf("hold %+v", held)
		}
		return held
	}
	one := add(index.Hold{Snapshot: first.ID, By: "alice", Reason: "case 1"})
	other := add(index.Hold{Snapshot: first.ID, By: "bob"})
	all := add(index.Hold{Shard: f.shard.ID, By: "carol", Reason: "case 2"})
	holds, err := f.x.Holds(f.ctx)
	f.must(err)
	if !slices.Equal(holds, []index.Hold{one, other, all}) {
		t.Fatalf("holds %+v", holds)
	}
	for _, h := range []index.Hold{all, one, other} {
		f.wants(f.forget(first), index.ErrKept)
		f.must(f.x.RemoveHold(f.ctx, h.ID, "dave", "closed"))
		f.wants(f.x.RemoveHold(f.ctx, h.ID, "dave", ""), backup.ErrNotFound)
	}
	f.must(f.forget(first))
	for _, h := range []index.Hold{{By: "a"}, {By: "a", Snapshot: second.ID, Shard: f.shard.ID}, {Snapshot: second.ID}, {By: "a", Reason: "\xff", Snapshot: second.ID}} {
		_, err := f.x.AddHold(f.ctx, h)
		f.wants(err, backup.ErrInvalid)
	}
	for _, h := range []index.Hold{{By: "a", Snapshot: backup.NewSnapshotID()}, {By: "a", Shard: 1 << 40}} {
		_, err := f.x.AddHold(f.ctx, h)
		f.wants(err, backup.ErrNotFound)
	}
	// A shard that is retired before its first snapshot is deleted, unless it is on hold.
	empty := f.newShard("filer", "empty")
	last := add(index.Hold{Shard: empty.ID, By: "erin"})
	f.must(f.x.RetireShard(f.ctx, empty.ID, "tester"))
	f.must(f.x.RemoveHold(f.ctx, last.ID, "erin", ""))
	f.must(f.x.RetireShard(f.ctx, empty.ID, "tester"))
	f.wants(f.x.RetireShard(f.ctx, empty.ID, "tester"), backup.ErrNotFound)

	ofFirst := func(h index.Hold) string { return fmt.Sprintf("hold %d snapshot %s", h.ID, first.ID) }
	ofShard := func(h index.Hold, s backup.Shard) string { return fmt.Sprintf("hold %d shard %d", h.ID, s.ID) }
	f.wantLog(
		"alice: hold "+ofFirst(one)+": case 1", "bob: hold "+ofFirst(other)+": ", "carol: hold "+ofShard(all, f.shard)+": case 2",
		"dave: release "+ofShard(all, f.shard)+": closed", "dave: release "+ofFirst(one)+": closed", "dave: release "+ofFirst(other)+": closed",
		fmt.Sprintf("operator: forget %s: no longer wanted", first.ID),
		"erin: hold "+ofShard(last, empty)+": ", fmt.Sprintf("tester: retire shard %d: ", empty.ID), "erin: release "+ofShard(last, empty)+": ",
	)
	for e, err := range f.x.Log(f.ctx, time.Now().Add(time.Hour)) {
		t.Fatalf("entry %+v, %v since then", e, err)
	}
}

// wantLog compares the log without policies, whose entries must be of this minute.
func (f *fixture) wantLog(want ...string) {
	f.Helper()
	now, err := f.x.Clock(f.ctx)
	f.must(err)
	var got []string
	for e, err := range f.x.Log(f.ctx, time.Time{}) {
		f.must(err)
		if e.Action == "policy" {
			continue
		}
		if now.Sub(e.Time).Abs() > time.Minute {
			f.Fatalf("entry %+v, and it is %s", e, now)
		}
		got = append(got, fmt.Sprintf("%s: %s %s: %s", e.By, e.Action, e.Subject, e.Reason))
	}
	if !slices.Equal(got, want) {
		f.Fatalf("log %q, want %q", got, want)
	}
}

// A reader keeps a snapshot until it ends, or its lease runs out.
func testReadings(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first, second := f.commitRecorded(pageOf("a", "1")), f.commitRecorded(pageOf("a", "2"))
	third := f.commitRecorded(pageOf("a", "3"))
	reading, other := backup.NewPackID(), backup.NewPackID()
	f.must(f.x.BeginReading(f.ctx, reading, first.ID, time.Hour))
	f.must(f.x.BeginReading(f.ctx, reading, first.ID, time.Hour)) // renewed
	f.must(f.x.BeginReading(f.ctx, other, first.ID, time.Hour))
	f.must(f.forget(second)) // nobody reads it
	f.must(f.x.EndReading(f.ctx, reading))
	f.wants(f.forget(first), index.ErrKept)
	f.must(f.x.EndReading(f.ctx, other))
	f.must(f.x.EndReading(f.ctx, other))
	f.must(f.x.BeginReading(f.ctx, other, first.ID, time.Microsecond))
	for f.forget(first) != nil { // until the clock has advanced
		if err := f.ctx.Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.wants(f.x.BeginReading(f.ctx, other, first.ID, time.Hour), backup.ErrNotFound)
	f.wantNeeded(nil, third.Number)

	// The clock goes back: the lease runs again.
	f.exec("UPDATE readings SET until = $1", time.Now().Add(time.Hour).UnixMicro())
	f.wantNeeded(nil, first.Number, third.Number)
	f.wants(f.x.Remove(f.ctx, first.ID), index.ErrKept)
	n, err := f.x.DropVersions(f.ctx, f.shard.ID)
	f.must(err)
	if n != 1 { // that of the second
		t.Fatalf("%d versions dropped, want 1", n)
	}
	f.wantPaths(f.pages(first, ""), "a")
	f.must(f.x.EndReading(f.ctx, other))
	f.must(f.x.Remove(f.ctx, first.ID))

	running := f.begin()
	for _, id := range []backup.SnapshotID{running.ID, backup.NewSnapshotID()} {
		f.wants(f.x.BeginReading(f.ctx, reading, id, time.Hour), backup.ErrNotFound)
	}
	for _, lease := range []time.Duration{0, -1, 1000 * time.Hour} {
		f.wants(f.x.BeginReading(f.ctx, reading, third.ID, lease), backup.ErrInvalid)
	}
}

// A hold and a Forget at the same time: one of them fails.
func testHoldWhileForgetting(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.commitRecorded(pageOf("a", "0"))
	for range 10 {
		s := f.commitRecorded()
		f.commitRecorded()
		held := make(chan error)
		go func() {
			_, err := f.x.AddHold(f.ctx, index.Hold{Snapshot: s.ID, By: "operator"})
			held <- err
		}()
		forgotten, err := f.forget(s), <-held
		gone, kept := forgotten == nil && errors.Is(err, backup.ErrNotFound), errors.Is(forgotten, index.ErrKept) && err == nil
		if !gone && !kept {
			t.Fatalf("forget: %v; hold: %v", forgotten, err)
		}
	}
}
