package pgindex

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bctl/bctl/e2e/testenv"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
)

// A fleet of 20 filers with 50 shards each: 25 snapshots a shard, one of them running, and much open work. A shard has many
// pages, of which there are no statistics yet.
const fleet = `
INSERT INTO filers (name) SELECT 'filer' || n FROM generate_series(1, 20) n;
INSERT INTO shards (filer_id, name, source, last_number) SELECT 1 + n % 20, 'shard' || n / 20, 'posix:///srv', 25 FROM generate_series(0, 999) n;
INSERT INTO snapshots (id, shard_id, filer_id, number, state, started, selection, tasks_announced, cancel)
SELECT gen_random_uuid(), h.id, h.filer_id, n, CASE WHEN n = 25 THEN 'running' WHEN n % 20 = 0 THEN 'failed' ELSE 'committed' END,
    timestamptz '2026-01-01' + make_interval(hours => 24 * n, secs => h.id), '{}', 1,
    CASE WHEN n = 25 AND h.id = 20 THEN 'enough' ELSE '' END
FROM shards h, generate_series(1, 25) n;
ANALYZE;
INSERT INTO walk_tasks (snapshot_id, filer_id, generation, lease_until, directories)
SELECT s.id, s.filer_id, 1, '1970-01-01', '\x01010161' FROM snapshots s, generate_series(1, 20) WHERE s.state = 'running';
INSERT INTO read_batches (snapshot_id, filer_id, lease_until, names, pages)
SELECT s.id, s.filer_id, '1970-01-01', '', '\x0100' FROM snapshots s, generate_series(1, 20) WHERE s.state = 'running';
INSERT INTO pages (shard, page, first_snapshot, inode, directory, fingerprint, path_key, listing)
SELECT 1, 0, 1, n, gen_random_uuid(), gen_random_uuid(), convert_to(n::text, 'UTF8') || '\x00', '\x00' FROM generate_series(1, 20000) n`

// mostRows is what one step of a plan may read: of 25,000 snapshots, 20,000 tasks and as many batches. There are 1,000 shards,
// as many snapshots run, a filer has 1,250 snapshots, and a claim looks at 64 tasks of each of 20 filers, and at 64 more in all.
const mostRows = 20*64 + 64

var (
	actual  = regexp.MustCompile(`actual rows=(\d+) loops=(\d+)`)
	removed = regexp.MustCompile(`Rows Removed by Filter: (\d+)`)
)

// What is called all the time, and what operators list, costs what it finds, and not what is there: no statement
// reads a large table from front to back, nor many rows of an index, nor sorts snapshots. The plans
// are those of the real calls, several times, because from the sixth time on Postgres may plan otherwise.
func TestPlansOfCalls(t *testing.T) {
	ctx := t.Context()
	dsn := testenv.Postgres(t)
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	configure(config, dsn, Options{})
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "client_min_messages": "log",
		"auto_explain.log_analyze": "on", "auto_explain.log_timing": "off",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	var plans []string // every call is the only one
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.Contains(n.Message, "plan:") {
			plans = append(plans, n.Message)
		}
	}
	x, err := connect(ctx, config)
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
	now := time.Now()
	term, _, err := x.Lead(ctx, "scheduler", "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bound := map[backup.FilerID]index.Binding{}
	for id := backup.FilerID(1); id <= 20; id++ {
		bound[id] = index.Binding{Policy: 1, Revision: 1}
	}
	if _, err := x.Bind(ctx, term, bound); err != nil {
		t.Fatal(err)
	}
	claim := index.Claim{Lease: time.Hour, Limit: 64, Queued: 100_000, Now: now}
	snapshots := func(f index.SnapshotFilter) func() error {
		return func() error { _, err := x.Snapshots(ctx, f); return err }
	}
	for _, test := range []struct {
		name  string
		sorts bool // what it found: at most that many rows as well
		call  func() error
	}{
		{"snapshots", false, snapshots(index.SnapshotFilter{Limit: 50})},
		{"snapshots of a filer", false, snapshots(index.SnapshotFilter{Filer: "filer7", Limit: 50})},
		{"snapshots of a shard", true, snapshots(index.SnapshotFilter{Filer: "filer7", Shard: "shard3", Limit: 50})},
		{"snapshots of a state", false, snapshots(index.SnapshotFilter{States: []backup.State{backup.Failed}, Limit: 50})},
		{"last good snapshot of a shard", false, snapshots(index.SnapshotFilter{Filer: "filer7", Shard: "shard3", States: []backup.State{backup.Committed}, Limit: 1})},
		{"failed snapshots of a filer", true, snapshots(index.SnapshotFilter{Filer: "filer7", States: []backup.State{backup.Failed}, Limit: 50})},
		{"snapshots since", false, snapshots(index.SnapshotFilter{Since: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), Limit: 50})},
		{"running snapshots", true, snapshots(index.SnapshotFilter{States: []backup.State{backup.Running}})},
		{"complete snapshots", true, func() error { _, err := x.CompleteSnapshots(ctx, nil); return err }},
		{"cancelled snapshots", true, func() error { _, err := x.Cancelled(ctx, nil); return err }},
		{"filers", true, func() error { _, err := x.ListFilers(ctx, index.FilerFilter{}); return err }},
		{"shards", true, func() error { _, err := x.ListShards(ctx, index.ShardFilter{}); return err }},
		{"claims of tasks", true, func() error { _, err := x.ClaimTasks(ctx, claim); return err }},
		{"claims of batches", true, func() error { _, err := x.ClaimBatches(ctx, claim); return err }},
		{"due shards", true, func() error { _, _, err := x.DueShards(ctx, now, []backup.PolicyID{1, 2}); return err }},
		{"unplanned shards", true, func() error {
			_, err := x.Unplanned(ctx, []backup.PolicyID{1, 2}, 0, 100)
			return err
		}},
		{"bindings", true, func() error { _, err := x.Bind(ctx, term, bound); return err }},
		{"marks", true, func() error { _, _, err := x.Marks(ctx, 1, 1, nil, nil, 1000); return err }},
		{"pages", true, func() error { _, err := x.backend.PagesAfter(ctx, 1, 1, entindex.Range{}, nil, 0, 256); return err }},
		{"work in hand", true, func() error { _, err := x.InHand(ctx, now, 100); return err }},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 7 {
				plans = nil
				if err := test.call(); err != nil {
					t.Fatal(err)
				}
				if len(plans) == 0 {
					t.Fatal("no plan was logged")
				}
				for _, plan := range plans {
					check(t, plan, test.sorts)
				}
			}
		})
	}
	for _, conn := range x.backend.pool.AcquireAllIdle(ctx) {
		var sort string
		if err := conn.QueryRow(ctx, "SHOW enable_sort").Scan(&sort); err != nil || sort != "on" {
			t.Errorf("a connection was left with enable_sort = %s, %v", sort, err)
		}
		conn.Release()
	}
}

func check(t *testing.T, plan string, sorts bool) {
	t.Helper()
	for _, table := range []string{"snapshots", "walk_tasks", "read_batches", "pages"} {
		if strings.Contains(plan, "Seq Scan on "+table) {
			t.Errorf("reads all of %s:\n%s", table, plan)
		}
	}
	if strings.Contains(plan, "Sort Key") && !sorts {
		t.Errorf("sorts:\n%s", plan)
	}
	for _, found := range append(actual.FindAllStringSubmatch(plan, -1), removed.FindAllStringSubmatch(plan, -1)...) {
		rows := 1
		for _, number := range found[1:] {
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			rows *= n
		}
		if rows > mostRows {
			t.Errorf("%s: more than %d:\n%s", found[0], mostRows, plan)
		}
	}
}
