package pgindex

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A listener is notified when another process begins a snapshot, ends one or marks one as bad, once
// that is visible, and detects a lost connection.
func TestListenSnapshots(t *testing.T) {
	l := newLost(t)
	filer, err := l.x.AddFiler(t.Context(), backup.Filer{Name: "filer"})
	if err != nil {
		t.Fatal(err)
	}
	shard, err := l.x.EnsureShard(t.Context(), filer.ID, "home", "posix:///srv/home")
	if err != nil {
		t.Fatal(err)
	}
	told, ended := make(chan struct{}, 10), make(chan error, 1)
	listen := func(ctx context.Context) { ended <- l.x.ListenSnapshots(ctx, func() { told <- struct{}{} }) }
	hear := func(what string) {
		t.Helper()
		select {
		case <-told:
		case err := <-ended:
			t.Fatalf("%s: it has ended: %v", what, err)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nothing was told", what)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	go listen(ctx)
	hear("at first")
	begun, err := l.x.BeginSnapshot(t.Context(), shard.ID, backup.Snapshot{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	hear("begun")
	if s, err := l.x.Snapshot(t.Context(), begun.ID); err != nil || s.State != backup.Running {
		t.Errorf("the snapshot that was told of: %+v, %v", s, err)
	}
	if _, err := l.x.BeginSnapshot(t.Context(), shard.ID, backup.Snapshot{}, time.Now()); !errors.Is(err, backup.ErrRunning) {
		t.Fatal(err)
	}
	if err := l.x.Fail(t.Context(), begun.ID, "the test says so", time.Now()); err != nil {
		t.Fatal(err)
	}
	hear("failed")
	second, err := l.x.BeginSnapshot(t.Context(), shard.ID, backup.Snapshot{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	hear("begun again")
	tasks, err := l.x.ClaimTasks(t.Context(), index.Claim{Lease: time.Hour, Limit: 1})
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%d tasks, %v", len(tasks), err)
	}
	result := index.Result{Slice: &backup.SliceWalked{Snapshot: second.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true}}
	if _, err := l.x.Apply(t.Context(), []index.Result{result}); err != nil {
		t.Fatal(err)
	}
	if err := l.x.Commit(t.Context(), second.ID, backup.Segment{}, backup.PageSet{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	hear("committed")
	if err := l.x.SetBad(t.Context(), second.ID, "tester", "the test says so"); err != nil {
		t.Fatal(err)
	}
	hear("marked bad")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	if len(told) > 0 {
		t.Error("told of something that has not happened")
	}

	go listen(t.Context())
	hear("again")
	l.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%LISTEN " + snapshotsChannel + "'")
	if err := <-ended; !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("connection ended: %v", err)
	}
}
