package cli

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	setZone(t, time.FixedZone("CET", 3600))
	lines := runTable(now).lines(pointers(runs), 80)
	want := `
DUE              STATE    WINDOW  DEADLINE                 FILER   SHARD
11-22 18:30 CET  running  -       11-22 20:30 CET          files1  /export/a
11-22 18:30 CET  waiting  -       11-22 20:30 CET          files1  /export/b
11-22 18:30 CET  waiting  -       11-22 20:30 CET          files1  /export/c
11-22 18:30 CET  waiting  -       11-22 17:30 CET OVERDUE  files1  /export/d
11-22 19:36 CET  failed   -       11-22 09:30 CET OVERDUE  files1  /export/e
11-23 02:30 CET  planned  -       11-23 07:30 CET          files1  /export/f
11-22 18:30 CET  window   in 3h   11-22 20:30 CET          files1  /export/g
11-22 18:30 CET  paused   -       11-22 20:30 CET          files1  /export/h
`
	wanted := strings.Split(strings.TrimSpace(want), "\n")
	if !slices.Equal(lines, wanted) {
		t.Errorf("\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(wanted, "\n"))
	}
	wide := strings.Join(runTable(now).lines(pointers(runs), 0), "\n")
	for _, text := range []string{
		"2026-11-22 18:30:00 CET (60m ago)", "2026-11-22 22:30:00 CET (in 3h)", "2026-11-22 17:30:00 CET (OVERDUE 2h)",
		"2027-12-27 19:30:00 CET (in the FUTURE, by 400d: a clock was ahead)", "never", "nightly",
	} {
		if !strings.Contains(wide, text) {
			t.Errorf("no %q in\n%s", text, wide)
		}
	}
}
