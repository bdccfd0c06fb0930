package cli

import (
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/policy"
)

// Snapshots begin when a shard is due and a window is open, and a missed time is made up once.
func TestSimulatedStarts(t *testing.T) {
	p := backup.Policy{ID: 1, Name: "p", Schedule: "0 */6 * * *", Windows: []string{"mon-sun 13:00-19:00"}}
	times, err := policy.Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 23, 9, 30, 0, 0, time.UTC)
	shard := &index.ShardStatus{}
	shard.Plan.Due = now.Add(-time.Hour)
	var got []string
	for at := range (openings{}).starts(p.ID, times, shard, now) {
		if got = append(got, at.Format("02 15:04")); len(got) == 4 {
			break
		}
	}
	if want := []string{"23 13:00", "23 18:00", "24 13:00", "24 18:00"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The year has the snapshots of the schedule and those that the rules keep, and the bytes that were
// measured. The first snapshot of a shard is not measured.
func TestSimulate(t *testing.T) {
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
	filer, err := idx.AddFiler(ctx, backup.Filer{Name: "nas1"})
	must(err)
	shard, err := idx.AddShard(ctx, backup.Shard{Filer: filer.ID, Name: "/a", Source: "posix:///a"})
	must(err)
	_, err = idx.AddShard(ctx, backup.Shard{Filer: filer.ID, Name: "/new", Source: "posix:///new"})
	must(err)
	p, err := idx.SetPolicy(ctx, backup.Policy{Name: "nightly", Schedule: "30 1 * * *", Retention: backup.Retention{Daily: 7, Monthly: 3}}, "tester")
	must(err)
	for n := range 3 {
		s, err := idx.BeginSnapshot(ctx, shard.ID, backup.Snapshot{}, time.Now().Add(time.Duration(n-3)*time.Hour))
		must(err)
		tasks, err := idx.ClaimTasks(ctx, index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Hour, Limit: 1})
		must(err)
		results := []index.Result{{Slice: &backup.SliceWalked{
			Snapshot: s.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true, Counts: backup.Counts{StoredBytes: []int64{1e9, 100, 300}[n]},
		}}}
		if n == 0 {
			results = append(results, index.Result{Pack: &backup.PackStored{
				Snapshot: s.ID, Pack: backup.NewPackID(), StoredBytes: 1e9, FrameBytes: []uint32{190}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{1}, Length: 100}},
			}})
		}
		_, err = idx.Apply(ctx, results)
		must(err)
		must(idx.Commit(ctx, s.ID, backup.Segment{}, backup.PageSet{}, time.Time{}))
	}
	a := &app{}
	s, err := a.simulate(ctx, idx, &p)
	must(err)
	if len(s.shards) != 2 || len(s.months) != 12 {
		t.Fatalf("%d shards, %d months", len(s.shards), len(s.months))
	}
	c := s.shards[slices.IndexFunc(s.shards, func(c shardCourse) bool { return c.Name == "/a" })]
	if c.Now != 3 || c.Made < 365 || c.Made > 367 || c.Measured != 2 || c.EachBytes != 200 {
		t.Errorf("%+v", c.Course)
	}
	// 7 days; the ends of at most 2 other months.
	if kept := len(c.Kept); kept < 8 || kept > 9 || c.NewKept != kept || c.left() != int64(200*kept) || c.added() != int64(200*c.Made) {
		t.Errorf("%d kept, %d of them new", kept, c.NewKept)
	}
	if end := s.months[11]; !end.measured || end.Kept < 16 || end.Kept > 18 || end.added != int64(200*c.Months[11].Made) || end.Made < 56 {
		t.Errorf("%+v", end)
	}
	// The store has 1 GB. At most, it has what the backups add in addition, and each month
	// pays for half of its own.
	s.price = 0.5
	if want := int64(1e9 + 200*c.Made); s.stored != 1e9 || s.most() != want {
		t.Errorf("%d bytes now, at most %d, want %d", s.stored, s.most(), want)
	}
	if cost := s.cost(); cost <= 12*0.5 || cost > 12*0.5*(1+float64(200*c.Made)/1e9) {
		t.Errorf("cost %f", cost)
	}
	s.months[0].added += 2e9 // paid for half of the first month, and for all of the others
	if cost := s.cost(); math.Abs(cost-(12*0.5+11.5*0.5*2)) > 0.01 {
		t.Errorf("cost %f", cost)
	}
	for _, wrong := range []string{"", "0", "-1", "NaN", "Inf", "1e9", "2 cents"} {
		if _, err := parsePrice(wrong); err == nil {
			t.Errorf("%q is a price", wrong)
		}
	}
	// Without rules all are kept.
	p.Retention = backup.Retention{}
	s, err = a.simulate(ctx, idx, &p)
	must(err)
	for _, c := range s.shards {
		if len(c.Kept) != c.Now+c.Made || c.NewKept != c.Made {
			t.Errorf("%s: %d of %d+%d are kept, %d of them new", c.Name, len(c.Kept), c.Now, c.Made, c.NewKept)
		}
	}
	// A policy that applies to no filer.
	other, err := idx.SetPolicy(ctx, backup.Policy{Name: "other", Schedule: "@daily", Labels: map[string]string{"a": "b"}}, "tester")
	must(err)
	if s, err = a.simulate(ctx, idx, &other); err != nil || len(s.shards) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
