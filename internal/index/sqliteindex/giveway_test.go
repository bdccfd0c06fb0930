package sqliteindex

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index/entindex"
)

// Whoever gives way waits if, and only if, another process writes.
func TestGiveWay(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "index.db")
	open := func() *Index {
		x, err := Open(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	x, other := open(), open()
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	write := func(x *Index) {
		t.Helper()
		err := x.backend.Update(ctx, entindex.Relaxed, func(ctx context.Context, tx *entindex.Tx) error {
			_, err := tx.Hot.(hotWriter).exec(ctx, "INSERT INTO lost_snapshots VALUES (hex(randomblob(16)))")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const worked = 20 * time.Millisecond
	waits := func() bool {
		t.Helper()
		<-time.After(checkOthers) // the last check is old
		began := time.Now()
		needed, err := x.backend.GiveWay(ctx, worked)
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began) >= giveWayFactor*worked; waited != needed {
			t.Errorf("the database is needed: %v, and it waited: %v", needed, waited)
		}
		return needed
	}
	if waits() {
		t.Error("nobody has written, and it waits")
	}
	write(x)
	if waits() {
		t.Error("it has written itself, and waits")
	}
	write(other)
	if !waits() {
		t.Error("another process writes, and it does not wait")
	}
	if !waits() {
		t.Error("another process has just written, and it does not wait")
	}
	x.backend.others.wrote = time.Now().Add(-othersWrite)
	if waits() {
		t.Error("another process has not written for long, and it waits")
	}
	needed, asked := true, 0
	x.GiveWayWhile(func() (bool, error) { asked++; return needed, nil })
	if !waits() {
		t.Error("a backup runs, and it does not wait")
	}
	if needed = false; waits() {
		t.Error("the backup has ended, and it waits")
	}
	needed = true
	if err := x.backend.take(ctx); err != nil {
		t.Fatal(err)
	}
	if !waits() { // and does not wait for the writer
		t.Error("the writer is in use, and it does not wait for the backup")
	}
	asked = 0
	began := time.Now()
	for range 100 {
		if _, err := x.backend.GiveWay(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	if most := 1 + int(time.Since(began)/checkOthers); asked > most {
		t.Errorf("the writer is in use, and it asks %d times whether a backup runs, want %d at most", asked, most)
	}
	x.backend.give()
	needed = false
	write(other)
	<-time.After(checkOthers)
	ended, end := context.WithCancel(ctx)
	time.AfterFunc(checkOthers, end)
	if _, err := x.backend.GiveWay(ended, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("its context is done: %v", err)
	}
}

// A copy waits for other processes that read the log. Meanwhile they can write: a reader may wait
// for its own writer before it ends.
func TestCopyWaitsWithoutTheWriter(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "index.db")
	x, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	other, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	reading, err := x.backend.readers.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := reading.QueryRowContext(ctx, "SELECT count(*) FROM pages").Scan(&n); err != nil {
		t.Fatal(err)
	}
	copied := make(chan error, 1)
	go func() {
		copied <- other.Copy(ctx, func(io.Reader, int64) error { return nil })
	}()
	slowest := time.Duration(0)
	for range 10 {
		<-time.After(emptyEvery)
		began := time.Now()
		err := x.backend.Update(ctx, entindex.Relaxed, func(ctx context.Context, tx *entindex.Tx) error {
			_, err := tx.Hot.(hotWriter).exec(ctx, "INSERT INTO lost_snapshots VALUES (hex(randomblob(16)))")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(began))
	}
	if slowest >= emptiedWithin {
		t.Errorf("a transaction took %v: the copy had the lock of the writer", slowest)
	}
	select {
	case err := <-copied:
		t.Errorf("copied while another process reads the log: %v", err)
	default:
	}
	if err := reading.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-copied; err != nil {
		t.Error(err)
	}
}
