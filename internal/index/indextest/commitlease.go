package indextest

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// claimCommit requests a commit lease, and checks whether it is granted.
func (f *fixture) claimCommit(id backup.SnapshotID, holder string, ttl time.Duration, want bool) {
	f.Helper()
	got, err := f.x.ClaimCommit(f.ctx, id, holder, ttl)
	f.must(err)
	if got != want {
		f.Fatalf("%s has the lease of the commit: %v, want %v", holder, got, want)
	}
}

// One committer at a time has the commit lease. Commit and Fail do not depend on it.
func testClaimCommit(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.begin()
	f.claimCommit(s.ID, "a", time.Hour, false) // not complete: a task
	r := SliceOf(f.claimTask(s))
	r.Batches = reads([][]backup.PageVersion{{pageOf("", "root")}})
	f.accept(index.Result{Slice: r})
	f.claimCommit(s.ID, "a", time.Hour, false) // not complete: a batch
	f.accept(index.Result{Batch: storedOf(f.claimBatch(s))})
	f.claimCommit(backup.NewSnapshotID(), "a", time.Hour, false)

	before := f.snapshot(s.ID)
	f.claimCommit(s.ID, "a", time.Hour, true)
	f.claimCommit(s.ID, "b", time.Hour, false)
	f.claimCommit(s.ID, "b", 0, false) // b cannot release a's lease
	f.claimCommit(s.ID, "b", time.Hour, false)
	f.claimCommit(s.ID, "a", time.Hour, true) // renewed
	f.claimCommit(s.ID, "a", 0, true)         // released
	f.claimCommit(s.ID, "b", time.Hour, true)
	f.claimCommit(s.ID, "a", time.Hour, false)
	if got, err := f.x.CompleteSnapshots(f.ctx, nil); err != nil || len(got) != 1 {
		t.Fatalf("complete: %v, %v: a lease hides nothing", got, err)
	}

	// Any holder can claim a lease that has run out. (The databases' clocks tick at least every
	// millisecond.)
	f.claimCommit(s.ID, "b", time.Microsecond, true)
	for got := false; !got; {
		var err error
		got, err = f.x.ClaimCommit(f.ctx, s.ID, "c", time.Hour)
		f.must(err)
	}
	f.claimCommit(s.ID, "b", time.Hour, false)

	for _, bad := range []struct {
		holder string
		ttl    time.Duration
	}{{"", time.Hour}, {"nul\x00", time.Hour}, {"c", -1}} {
		_, err := f.x.ClaimCommit(f.ctx, s.ID, bad.holder, bad.ttl)
		f.wants(err, backup.ErrInvalid)
	}
	if got := f.snapshot(s.ID); got.Counts != before.Counts || got.State != before.State || got.Reason != before.Reason {
		t.Fatalf("snapshot %+v, want it as before: %+v", got, before)
	}
	f.commit(s) // without regard to the lease
	f.claimCommit(s.ID, "c", time.Hour, false)
	f.claimCommit(s.ID, "c", 0, false)
}

// Of many that claim at the same time, one gets the lease.
func testClaimCommitAtOnce(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.walk(func(*backup.SliceWalked) {})
	var got atomic.Int64
	var all errgroup.Group
	for _, holder := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		x := f.db.Open()
		all.Go(func() error {
			ok, err := x.ClaimCommit(f.ctx, s.ID, holder, time.Hour)
			if ok {
				got.Add(1)
			}
			return err
		})
	}
	f.must(all.Wait())
	if n := got.Load(); n != 1 {
		t.Errorf("%d have the lease", n)
	}
}
