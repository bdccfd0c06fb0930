package pgindex_test

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/testenv"
)

// All times that the index stores are of the database's clock. Here the clock of the process is
// five minutes ahead. Neither the duration of a backup nor that of a lease is affected.
func TestTimesAreOfTheDatabase(t *testing.T) {
	dsn := testenv.Postgres(t)
	const ahead = 5 * time.Minute
	testenv.ShiftClock(t, dsn, -ahead)
	x, ctx := open(t, dsn), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := x.Migrate(ctx)
	must(err)
	began := time.Now().Add(-ahead)
	of := func(what string, at time.Time) {
		t.Helper()
		// Times are truncated to microseconds.
		if at.Before(began.Add(-time.Microsecond)) || at.After(time.Now().Add(-ahead)) {
			t.Errorf("%s: %v, want a time since %v, when the test began by the database's clock", what, at, began)
		}
	}
	now, err := x.Clock(ctx)
	must(err)
	of("clock", now)

	filer, err := x.AddFiler(ctx, backup.Filer{Name: "nas"})
	must(err)
	shard, err := x.AddShard(ctx, backup.Shard{Filer: filer.ID, Name: "home", Source: "posix:///home"})
	must(err)
	snap, err := x.BeginSnapshot(ctx, shard.ID, backup.Snapshot{}, time.Time{})
	must(err)
	of("begun", snap.Started)

	const lease = time.Hour
	tasks, err := x.ClaimTasks(ctx, index.Claim{Lease: lease, Limit: 1})
	must(err)
	if len(tasks) != 1 {
		t.Fatalf("%d tasks, want 1", len(tasks))
	}
	task := tasks[0]
	leased := func(what string, stalled bool) {
		t.Helper()
		work, err := x.InHand(ctx, time.Time{}, 10)
		must(err)
		if len(work) != 1 {
			t.Fatalf("%s: %d in hand, want 1", what, len(work))
		}
		of(what, work[0].Until.Add(-lease))
		if stalled {
			of(what+", stalled", work[0].Stalled)
		}
	}
	leased("claimed", false)
	must(x.Extend(ctx, []index.Held{{Snapshot: snap.ID, Task: task.ID, Worker: "w", Stalled: true}}, lease, time.Time{}))
	leased("extended", true)
	filers, err := x.ListFilers(ctx, index.FilerFilter{})
	must(err)
	if filers[0].Tasks != 1 {
		t.Errorf("%d tasks in hand, want 1", filers[0].Tasks)
	}
	// A lease that has run out by the database's clock, and by no other, is claimed again.
	must(x.ExpireLeases(ctx, snap.ID))
	_, err = x.ClaimTasks(ctx, index.Claim{Lease: ahead / 2, Limit: 1})
	must(err)
	if again, err := x.ClaimTasks(ctx, index.Claim{Lease: lease, Limit: 1}); err != nil || len(again) != 0 {
		t.Errorf("claimed %+v, %v, though its lease has not run out", again, err)
	}

	must(x.Fail(ctx, snap.ID, "the test says so", time.Time{}))
	failed, err := x.Snapshot(ctx, snap.ID)
	must(err)
	of("failed", failed.Ended)

	snap, err = x.BeginSnapshot(ctx, shard.ID, backup.Snapshot{}, time.Time{})
	must(err)
	tasks, err = x.ClaimTasks(ctx, index.Claim{Lease: lease, Limit: 1})
	must(err)
	_, err = x.Apply(ctx, []index.Result{{Slice: &backup.SliceWalked{Snapshot: snap.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true}}})
	must(err)
	must(x.Commit(ctx, snap.ID, backup.Segment{}, backup.PageSet{}, time.Time{}))
	good, err := x.Snapshot(ctx, snap.ID)
	must(err)
	of("committed", good.Committed)
	of("ended", good.Ended)
}
