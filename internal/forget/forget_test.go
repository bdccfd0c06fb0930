package forget_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

// A dry run reports exactly what the index then does with each snapshot, in every case.
func TestFatesAreWhatTheIndexDoes(t *testing.T) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	idx, err := sqliteindex.Open(ctx, filepath.Join(t.TempDir(), "index.db"))
	must(err)
	defer idx.Close()
	_, _, err = idx.Migrate(ctx)
	must(err)
	filer, err := idx.AddFiler(ctx, backup.Filer{Name: "nas"})
	must(err)
	shard, err := idx.AddShard(ctx, backup.Shard{Filer: filer.ID, Name: "/a", Source: "posix:///a"})
	must(err)

	// Snapshots 1 to 8: held, failed, plain, plain, unrecorded, last good, bad, failed; and 9 runs.
	start := time.Now().Add(-10 * time.Hour).UTC().Truncate(time.Second)
	var all []backup.Snapshot
	for n := range 9 {
		s, err := idx.BeginSnapshot(ctx, shard.ID, backup.Snapshot{}, start.Add(time.Duration(n)*time.Hour))
		must(err)
		all = append(all, s)
		switch n {
		case 8:
			continue
		case 1, 7:
			must(idx.Fail(ctx, s.ID, "the test says so", time.Time{}))
		default:
			tasks, err := idx.ClaimTasks(ctx, index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Hour, Limit: 1})
			must(err)
			_, err = idx.Apply(ctx, []index.Result{{Slice: indextest.SliceOf(tasks[0])}})
			must(err)
			must(idx.Commit(ctx, s.ID, backup.Segment{}, backup.PageSet{}, time.Time{}))
		}
		if n != 4 {
			must(idx.Recorded(ctx, s.ID))
		}
	}
	must(idx.SetBad(ctx, all[6].ID, "tester", "half of it was gone"))
	_, err = idx.AddHold(ctx, index.Hold{Snapshot: all[0].ID, By: "me", Reason: "case 12"})
	must(err)

	d, err := forget.New(ctx, idx)
	must(err)
	shards, err := idx.ListShards(ctx, index.ShardFilter{})
	must(err)
	// The rule keeps nothing of its own.
	fates, err := d.Shard(ctx, &shards[0], forget.Rule{Retention: backup.Retention{Tags: [][]string{{"none"}}}})
	must(err)
	want := map[backup.SnapshotNumber]string{
		1: "on hold: case 12", 2: "not good, and no good one is newer by 7d", 3: "", 4: "", 5: "the store has no record of it yet", 6: "last good snapshot",
		7: "a running snapshot is compared with it", 8: "not good, and no good one is newer by 7d",
	}
	if len(fates) != len(want) {
		t.Errorf("%d fates, want %d", len(fates), len(want))
	}
	for _, f := range fates {
		reasons := strings.Join(f.Reasons, "; ")
		if why := want[f.Number]; f.Keep != (why != "") || !strings.Contains(reasons, why) {
			t.Errorf("number %d: keep %v, %s; want %q", f.Number, f.Keep, reasons, why)
		}
		kept, err := d.Kept(ctx, &f.Snapshot, &shards[0])
		must(err)
		// The index itself does not keep a snapshot because it is not good.
		if err := idx.Forget(ctx, f.ID, "me", ""); (err == nil) != (len(kept) == 0) || f.Keep != (err != nil) && f.Number != 2 && f.Number != 8 {
			t.Errorf("number %d, keep %v, kept %q: %v", f.Number, f.Keep, kept, err)
		}
	}

	// Of snapshots that are selected by a tag, none is kept in place of the last good one.
	fates, err = d.Shard(ctx, &shards[0], forget.Rule{
		Retention: backup.Retention{Tags: [][]string{{"none"}}},
		Wanted:    func(s *backup.Snapshot) bool { return s.Number == 5 || s.Number == 1 },
	})
	must(err)
	if len(fates) != 2 || !fates[0].Keep || !fates[1].Keep || strings.Contains(strings.Join(append(fates[0].Reasons, fates[1].Reasons...), " "), "last good") {
		t.Errorf("%+v", fates)
	}
}
