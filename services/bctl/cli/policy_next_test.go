package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

// In the moment before the scheduler has planned a shard, lists show the plan that policy next
// shows.
func TestPlanAll(t *testing.T) {
	ctx, now := t.Context(), time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)
	idx, err := sqliteindex.Open(ctx, filepath.Join(t.TempDir(), "index.db"))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	t.Cleanup(func() { _ = idx.Close() })
	_, _, err = idx.Migrate(ctx)
	must(err)
	filer, err := idx.AddFiler(ctx, backup.Filer{Name: "nas1"})
	must(err)
	_, err = idx.AddShard(ctx, backup.Shard{Filer: filer.ID, Name: "/export", Source: "posix:///export"})
	must(err)
	p, err := idx.SetPolicy(ctx, backup.Policy{Name: "nightly", Schedule: "30 1 * * *", RecoveryPoint: 30 * time.Hour}, "tester")
	must(err)
	listed := func() index.ShardStatus {
		t.Helper()
		shards, err := idx.ListShards(ctx, index.ShardFilter{})
		must(err)
		must(planAll(ctx, idx, shards, now))
		return shards[0]
	}
	if s := listed(); !s.Plan.Due.IsZero() {
		t.Errorf("%+v, want no plan of a shard that no scheduler has bound", s.Plan)
	}
	term, ok, err := idx.Lead(ctx, "scheduler", "test", time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	_, err = idx.Bind(ctx, term, map[backup.FilerID]index.Binding{filer.ID: {Policy: p.ID, Revision: p.Revision}})
	must(err)
	runs, err := nextRuns(ctx, idx, "", now)
	must(err)
	if s := listed(); len(runs) != 1 || !s.Plan.Due.Equal(runs[0].due) || !s.Plan.Deadline.Equal(runs[0].deadline) || !s.Plan.Deadline.Equal(now.Add(30*time.Hour)) {
		t.Errorf("%+v, want what policy next has: %+v", s.Plan, runs)
	}
}

// The table of policy next in each state. It fits on a terminal.
func TestNextRuns(t *testing.T) {
	now := time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)
	run := func(shard string, due, deadline time.Duration) nextRun {
		return nextRun{
			ShardStatus: index.ShardStatus{
				Shard: backup.Shard{Name: shard}, Filer: backup.Filer{Name: "files1"}, LastGood: backup.SnapshotID{1}, Time: now.Add(-20 * time.Hour),
			},
			policy: "nightly", due: now.Add(due), deadline: now.Add(deadline),
		}
	}
	hour := time.Hour
	runs := []nextRun{
		run("/export/a", -hour, hour), run("/export/b", -hour, hour), run("/export/c", -hour, hour), run("/export/d", -hour, -2*hour),
		run("/export/e", hour/10, -10*hour), run("/export/f", 7*hour, 12*hour), run("/export/g", -hour, hour), run("/export/h", -hour, hour),
	}
	runs[0].Running = backup.SnapshotID{2}
	runs[1].Time = now.Add(400 * 24 * hour)
	runs[2].LastGood = backup.SnapshotID{}
	runs[4].Failed = now.Add(-hour / 6)
	runs[6].opens = now.Add(3 * hour)
	for n := range runs {
		runs[n].state = stateOf(&runs[n], n == 7, n != 6, now)
	}
	var out bytes.Buffer
	object := func(r *nextRun) runJSON { return newRunJSON(r, now) }
	if err := printList(&app{out: &out, term: &terminal{}}, pointers(runs), runTable(now), object); err != nil {
		t.Fatal(err)
	}
	want := `
DUE     STATE    WINDOW  DEADLINE     LAST GOOD  FILER   SHARD      POLICY
60m ago running  -       in 60m       20h ago    files1  /export/a  nightly
60m ago waiting  -       in 60m       FUTURE     files1  /export/b  nightly
60m ago waiting  -       in 60m       never      files1  /export/c  nightly
60m ago waiting  -       OVERDUE 2h   20h ago    files1  /export/d  nightly
in 6m   failed   -       OVERDUE 10h  20h ago    files1  /export/e  nightly
in 7h   planned  -       in 12h       20h ago    files1  /export/f  nightly
60m ago window   in 3h   in 60m       20h ago    files1  /export/g  nightly
60m ago paused   -       in 60m       20h ago    files1  /export/h  nightly
`
	lines, wanted := strings.Split(strings.TrimSpace(out.String()), "\n"), strings.Split(strings.TrimSpace(want), "\n")
	if len(lines) != len(wanted) {
		t.Fatalf("%s", out.String())
	}
	for n, line := range lines {
		if strings.Join(strings.Fields(line), " ") != strings.Join(strings.Fields(wanted[n]), " ") {
			t.Errorf("line %d is\n%q, want\n%q", n, line, wanted[n])
		}
		if width := utf8.RuneCountInString(line); width > 80 {
			t.Errorf("line %d has %d columns", n, width)
		}
	}
}
