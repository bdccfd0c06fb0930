package indextest

import (
	"fmt"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// commitFiles commits a snapshot with this number of files.
func (f *fixture) commitFiles(files int64) backup.Snapshot {
	f.Helper()
	f.now = f.now.Add(time.Hour)
	s := f.walk(func(s *backup.SliceWalked) { s.Counts = backup.Counts{Files: files, Bytes: 10 * files} })
	f.commit(s)
	return s
}

// A snapshot that is marked as bad is not its shard's last good one, for every method that reports
// or uses that.
func testBad(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	wantGood := func(want backup.Snapshot, files int64) {
		t.Helper()
		got := f.listShards(index.ShardFilter{Name: "home"})[0]
		if got.LastGood != want.ID || got.Number != want.Number || got.Files != files || got.Bytes != 10*files || !got.Time.Equal(want.Started) {
			t.Fatalf("last good is %+v, want snapshot %d", got, want.Number)
		}
		journal, err := f.x.LastCommits(f.ctx, f.shard.ID)
		f.must(err)
		if journal.Good != want.Number || journal.Files != files || journal.Bytes != 10*files {
			t.Fatalf("the guard compares with %+v, want snapshot %d", journal, want.Number)
		}
		if filer := f.listFilers(index.FilerFilter{Name: "filer"})[0]; !filer.Newest.Equal(want.Started) {
			t.Fatalf("the filer's newest is of %s, want that of snapshot %d", filer.Newest, want.Number)
		}
	}
	one, two, three := f.commitFiles(1000), f.commitFiles(900), f.commitFiles(10)
	term := f.lead("scheduler", "a", 24*time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"})
	b := f.bind(term, p, 1)
	plan := index.Plan{Shard: f.shard.ID, Filer: f.shard.Filer, Binding: b, Due: f.now.Add(time.Hour), Deadline: f.now.Add(2 * time.Hour), Good: three.Number}
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{plan}))

	f.must(f.x.SetBad(f.ctx, two.ID, "tester", "of the wrong export"))
	wantGood(three, 10)
	if len(f.unplanned(p, 0, 10)) != 0 {
		t.Fatal("the last good one is the same, and the shard is planned again")
	}
	f.must(f.x.SetBad(f.ctx, three.ID, "tester", "half of it was gone"))
	f.must(f.x.SetBad(f.ctx, three.ID, "tester", "half of it was gone"))
	wantGood(one, 1000)
	if got := f.snapshot(three.ID); got.Bad != "half of it was gone" || got.State != backup.Committed {
		t.Fatalf("%+v", got)
	}
	again := f.unplanned(p, 0, 10)
	if len(again) != 1 || !again[0].LastGood.Equal(one.Started) || again[0].Good != one.Number || !again[0].Bad || !again[0].Failed.IsZero() || !again[0].Deadline.IsZero() {
		t.Fatalf("to be planned: %+v, want the shard, from snapshot 1", again)
	}

	// It remains the base: later changes are found as before, and its content can be read.
	four := f.begin()
	if four.Base != three.Number || four.BaseID != three.ID {
		t.Fatalf("based on %d, want 3", four.Base)
	}
	f.wants(f.x.SetBad(f.ctx, four.ID, "tester", "it runs"), backup.ErrNotFound)
	f.fail(four.ID, "gone")
	f.wants(f.x.SetBad(f.ctx, four.ID, "tester", "it has failed"), backup.ErrNotFound)
	f.wants(f.x.SetBad(f.ctx, backup.NewSnapshotID(), "tester", "there is none"), backup.ErrNotFound)
	f.wants(f.x.SetBad(f.ctx, one.ID, "tester", "\xff"), backup.ErrInvalid)

	f.must(f.x.SetBad(f.ctx, one.ID, "tester", "all of them"))
	wantGood(backup.Snapshot{}, 0)
	f.must(f.x.SetBad(f.ctx, two.ID, "tester", ""))
	wantGood(two, 900)
	f.must(f.x.SetBad(f.ctx, three.ID, "tester", ""))
	wantGood(three, 10)
	f.must(f.x.SetBad(f.ctx, three.ID, "tester", "again"))
	five := f.commitFiles(800)
	wantGood(five, 800)

	marked := func(s backup.Snapshot, action, reason string) string {
		return fmt.Sprintf("tester: %s %s: %s", action, s.ID, reason)
	}
	f.wantLog(marked(two, "mark-bad", "of the wrong export"), marked(three, "mark-bad", "half of it was gone"), marked(three, "mark-bad", "half of it was gone"),
		marked(one, "mark-bad", "all of them"), marked(two, "mark-good", ""), marked(three, "mark-good", ""), marked(three, "mark-bad", "again"))
}
