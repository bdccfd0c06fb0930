package indextest

import (
	"fmt"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// The commit of a snapshot with an alarm puts its shard on hold, and the removal of the hold
// acknowledges the alarm. One that failed raises none.
func testAlarms(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitRecorded(pageOf("a", "1"))
	wantAlarms := func(want ...backup.SnapshotID) []index.Hold {
		t.Helper()
		holds, err := f.x.Holds(f.ctx)
		f.must(err)
		if len(holds) != len(want) {
			t.Fatalf("holds %+v, want alarms of %v", holds, want)
		}
		for n, h := range holds {
			if h.Alarm != want[n] || h.Shard != f.shard.ID || h.Reason != "encrypted" {
				t.Errorf("hold %+v, want the alarm of %s", h, want[n])
			}
		}
		return holds
	}
	failed := f.begin()
	f.must(f.x.SetChurn(f.ctx, failed.ID, 2000, "encrypted"))
	f.fail(failed.ID, "")
	wantAlarms()
	f.wants(f.x.SetChurn(f.ctx, failed.ID, 2000, "encrypted"), backup.ErrNotFound)

	raise := func(alarm string) backup.Snapshot {
		t.Helper()
		s := f.walk(func(*backup.SliceWalked) {})
		f.must(f.x.SetChurn(f.ctx, s.ID, 1, "another"))
		f.must(f.x.SetChurn(f.ctx, s.ID, 2500, alarm)) // by the committer that took over
		wantAlarms()                                   // not before the commit
		f.commit(s)
		if got := f.snapshot(s.ID); got.ChurnScore != 2500 || got.Alarm != alarm {
			t.Errorf("snapshot %+v", got)
		}
		return s
	}
	raise("")
	wantAlarms()
	s := raise("encrypted")
	held := wantAlarms(s.ID)
	f.wants(f.forget(first), index.ErrKept)
	f.must(f.x.RemoveHold(f.ctx, held[0].ID, "alice", "a test"))
	f.must(f.forget(first))

	// A second alarm of the shard does not add another hold.
	s = raise("encrypted")
	again := f.walk(func(*backup.SliceWalked) {})
	f.must(f.x.SetChurn(f.ctx, again.ID, 1000, "encrypted, too"))
	f.commit(again)
	held = append(held, wantAlarms(s.ID)...)
	f.wantLog(
		fmt.Sprintf("bctl: hold hold %d shard %d: encrypted", held[0].ID, f.shard.ID), fmt.Sprintf("alice: release hold %d shard %d: a test", held[0].ID, f.shard.ID),
		fmt.Sprintf("operator: forget %s: no longer wanted", first.ID), fmt.Sprintf("bctl: hold hold %d shard %d: encrypted", held[1].ID, f.shard.ID),
	)
}
