package pgindex

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
	"github.com/bctl/bctl/migrations"
)

// scalerQuery returns the query by which KEDA, in deploy/kubernetes, scales a service at a site.
func scalerQuery(t *testing.T, service, site string) string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/kubernetes/components/keda-" + service + "/scaledobject.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct {
			Triggers []struct {
				Metadata struct{ Query string }
			}
		}
	}
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	query := object.Spec.Triggers[0].Metadata.Query
	if strings.Count(query, "'default'") != 1 {
		t.Fatalf("%s does not name a site", query)
	}
	return strings.Replace(query, "'default'", "'"+site+"'", 1)
}

// The services of a site are scaled by the work that they could hold: work that could be claimed,
// and work that is leased and not stalled. The query runs as the role that KEDA uses.
func TestScalersCountWhatCanBeInHand(t *testing.T) {
	ctx, dsn := t.Context(), testenv.Postgres(t)
	x, err := Open(ctx, dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = x.Migrate(ctx)
	must(err)
	ask := monitor(t, dsn)
	want := func(site string, tasks, batches float64) {
		t.Helper()
		if got := ask(scalerQuery(t, "walker", site)); got != tasks {
			t.Errorf("walkers of %s are scaled by %v, want %v", site, got, tasks)
		}
		if got := ask(scalerQuery(t, "reader", site)); got != batches {
			t.Errorf("readers of %s are scaled by %v, want %v", site, got, batches)
		}
	}
	now := time.Now()
	want("paris", 0, 0)

	limited := backup.Filer{Name: "nas1", Site: "paris", Limits: backup.Limits{WalkTasks: 4, ReadBatches: 3}}
	addWork(t, x, &limited, now, 10, 5)
	unlimited := backup.Filer{Name: "nas2", Site: "paris"}
	addWork(t, x, &unlimited, now, 40, 70) // more than the default limits
	addWork(t, x, &backup.Filer{Name: "nas3", Site: "lyon"}, now, 2, 1)
	want("paris", 4+backup.DefaultWalkTasks, 3+backup.DefaultReadBatches)
	want("lyon", 2, 1)
	want("rome", 0, 0)

	claim := index.Claim{Lease: time.Minute, Limit: 1000, Now: now}
	tasks, err := x.ClaimTasks(ctx, claim)
	must(err)
	batches, err := x.ClaimBatches(ctx, claim)
	must(err)
	if len(tasks) != 4+backup.DefaultWalkTasks+2 || len(batches) != 3+backup.DefaultReadBatches+1 {
		t.Errorf("%d tasks and %d batches were claimed: that is not what was counted", len(tasks), len(batches))
	}
	want("paris", 4+backup.DefaultWalkTasks, 3+backup.DefaultReadBatches) // leased or open, it is work

	// A stalled task keeps its slot of the filer, but does not need a worker.
	must(x.Extend(ctx, []index.Held{{Snapshot: tasks[0].Job.Snapshot, Task: tasks[0].ID, Worker: "w", Stalled: true}, {Snapshot: batches[0].Job.Snapshot, Batch: batches[0].ID, Worker: "w", Stalled: true}}, time.Minute, now))
	want("paris", 3+backup.DefaultWalkTasks, 2+backup.DefaultReadBatches)

	// The governor and a limit of bytes per second reduce the slots.
	term, _, err := x.Lead(ctx, "keeper", "test", time.Hour)
	must(err)
	must(x.SetLoads(ctx, term, map[backup.FilerID]backup.Load{limited.ID: {WalkSlots: 2, ReadSlots: 3}, unlimited.ID: {ReadSlots: 10}}))
	limited.Limits.ReadBytesPerSecond = 5 << 20
	must(x.SetFiler(ctx, limited))
	want("paris", 1+backup.DefaultWalkTasks, 1+10)
}

// monitor returns a function that runs queries as the role monitor of an installation.
func monitor(t *testing.T, dsn string) func(query string) float64 {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(statement string) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	name := fmt.Sprintf("scaler%d", os.Getpid())
	grants, err := migrations.Grants(name)
	if err != nil {
		t.Fatal(err)
	}
	roles := []string{"committer", "walker", "reader", "operator", "pruner", "scrubber", "restorer", "monitor"}
	for _, role := range roles {
		exec(fmt.Sprintf("CREATE ROLE %s_%s", name, role))
	}
	t.Cleanup(func() {
		exec("RESET ROLE")
		for _, role := range roles {
			exec(fmt.Sprintf("DROP OWNED BY %s_%s", name, role))
			exec(fmt.Sprintf("DROP ROLE %s_%s", name, role))
		}
		_ = conn.Close(ctx)
	})
	exec(grants)
	exec(fmt.Sprintf("SET ROLE %s_monitor", name))
	return func(query string) (n float64) {
		t.Helper()
		if err := conn.QueryRow(ctx, query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// addWork adds a filer, and a running snapshot of it with open work.
func addWork(t *testing.T, x *Index, filer *backup.Filer, now time.Time, tasks, batches int) {
	t.Helper()
	ctx := t.Context()
	var err error
	if *filer, err = x.AddFiler(ctx, *filer); err != nil {
		t.Fatal(err)
	}
	shard, err := x.EnsureShard(ctx, filer.ID, "/export", "posix:///export")
	if err != nil {
		t.Fatal(err)
	}
	s, err := x.BeginSnapshot(ctx, shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, now)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x.ClaimTasks(ctx, index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Minute, Limit: 1, Now: now})
	if err != nil || len(root) != 1 {
		t.Fatalf("claimed %v: %v", root, err)
	}
	walked := &backup.SliceWalked{Snapshot: s.ID, Task: root[0].ID, Attempt: root[0].Attempt, Last: true}
	for i := range tasks {
		walked.Children = append(walked.Children, backup.Child{Directories: []string{fmt.Sprint("d", i)}})
	}
	for i := range batches {
		walked.Batches = append(walked.Batches, backup.PagesToRead{Pages: []backup.PageVersion{{Path: fmt.Sprint("p", i), Fingerprint: backup.Fingerprint{byte(i)}, Inode: uint64(i + 1)}}})
	}
	outcomes, err := x.Apply(ctx, []index.Result{{Slice: walked}})
	if err != nil || outcomes[0].Err != nil || outcomes[0].Late {
		t.Fatalf("%+v, %v", outcomes, err)
	}
}

// The scaler runs its query every few seconds. The cost depends on how much work can be assigned,
// not on how much is open.
func TestPlansOfScalers(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	ctx, dsn := t.Context(), testenv.Postgres(t)
	x, err := Open(ctx, dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := x.backend.pool.Exec(ctx, fleet); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"walker", "reader"} {
		rows, err := x.backend.pool.Query(ctx, "EXPLAIN (ANALYZE, TIMING OFF) "+scalerQuery(t, service, "default"))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		check(t, strings.Join(lines, "\n"), false)
	}
}
