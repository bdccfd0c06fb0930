package pgindex

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A listener is notified of a snapshot that another process begins, once the snapshot is visible,
// and detects a lost connection.
func TestListenBegun(t *testing.T) {
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
	listen := func(ctx context.Context) { ended <- l.x.ListenBegun(ctx, func() { told <- struct{}{} }) }
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
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	if len(told) > 0 {
		t.Error("told of a snapshot that was there already")
	}

	go listen(t.Context())
	hear("again")
	l.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%LISTEN " + begunChannel + "'")
	if err := <-ended; !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("connection ended: %v", err)
	}
}
