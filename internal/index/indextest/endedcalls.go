package indextest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// testEndedCalls makes 50 calls that write, and ends the context of each at a later moment, up to
// twice the usual duration. The error of an ended call is always that of its context, and the next
// call works.
func testEndedCalls(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	begin := func(ctx context.Context) error {
		s, err := f.x.BeginSnapshot(ctx, f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, f.now)
		if err == nil || errors.Is(err, backup.ErrRunning) { // a call that was ended may have begun it
			f.must(f.x.Fail(f.ctx, s.ID, "enough", f.now))
		}
		return err
	}
	started := time.Now()
	f.must(begin(f.ctx))
	step := time.Since(started) / 25
	for after := time.Duration(0); after < 50*step; after += step {
		ctx, cancel := context.WithTimeout(f.ctx, after)
		err := begin(ctx)
		cancel()
		if err != nil && !errors.Is(err, backup.ErrRunning) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("ended after %v: %v", after, err)
		}
	}
}
