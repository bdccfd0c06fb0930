package indextest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// testEndedCalls ends the context of a call that writes at any moment: the
// error is that of the context, whatever the call was doing.
func testEndedCalls(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	for n := range 200 {
		ctx, cancel := context.WithTimeout(f.ctx, time.Duration(n)*20*time.Microsecond)
		s, err := f.x.BeginSnapshot(ctx, f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, f.now)
		cancel()
		switch {
		case err == nil:
			f.must(f.x.Fail(f.ctx, s.ID, "enough", f.now))
		case errors.Is(err, backup.ErrRunning): // it was begun, and could not say so
			f.must(f.x.Fail(f.ctx, s.ID, "enough", f.now))
		case !errors.Is(err, context.DeadlineExceeded):
			t.Fatalf("interrupted after %d µs: %v", 20*n, err)
		}
	}
}
