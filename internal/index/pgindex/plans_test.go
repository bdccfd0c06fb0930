package pgindex

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A fleet of 20 filers with 50 shards each: 25 snapshots per shard, one of them running, and much
// open work. A shard has many pages, which have no statistics yet.
var fleet = `
INSERT INTO filers (name) SELECT 'filer' || n FROM generate_series(1, 20) n;
INSERT INTO shards (shard_key, filer_id, name, source, last_number, last_good_number)
SELECT gen_random_uuid(), 1 + n % 20, 'shard' || n / 20, 'posix:///srv', 25, 24 FROM generate_series(0, 999) n;
INSERT INTO snapshots (id, shard_id, filer_id, number, state, started, sort_time, selection, tasks_announced, cancel, recorded)
SELECT gen_random_uuid(), h.id, h.filer_id, n, CASE WHEN n = 25 THEN 'running' WHEN n % 20 = 0 THEN 'failed' ELSE 'committed' END,
    timestamptz '2026-01-01' + make_interval(hours => 24 * n, secs => h.id), timestamptz '2026-01-01' + make_interval(hours => 24 * n, secs => h.id),
    '{}', 1, CASE WHEN n = 25 AND h.id = 20 THEN 'enough' ELSE '' END, n < 24
FROM shards h, generate_series(1, 25) n;
ANALYZE;
` + openWork("state = 'running'") + `
INSERT INTO pages (shard, page, first_snapshot, inode, directory, fingerprint, digest, path_key, listing)
SELECT 1, 0, 1, n, gen_random_uuid(), gen_random_uuid(), '', convert_to(n::text, 'UTF8') || '\x00', '\x00' FROM generate_series(1, 20000) n`

// openWork inserts 20 tasks and 20 batches without pages, claimed once, of each snapshot that
// matches.
func openWork(condition string) string {
	return `
INSERT INTO walk_tasks (snapshot_id, filer_id, attempt, generation, lease_until, directories)
SELECT s.id, s.filer_id, 1, 1, '1970-01-01', '\x0101016100' FROM snapshots s, generate_series(1, 20) WHERE s.` + condition + `;
INSERT INTO read_batches (snapshot_id, filer_id, attempt, lease_until, names, pages)
SELECT s.id, s.filer_id, 1, '1970-01-01', '\xaf1349b9f5f9a1a6a0404dea36dcc949', '\x010000' FROM snapshots s, generate_series(1, 20) WHERE s.` + condition + ";"
}

// mostRows bounds what one step of a plan may read of 25,000 snapshots, 20,000 tasks and as many
// batches. There are 1,000 shards and as many running snapshots. A filer has 1,250 snapshots. A
// claim looks at 64 tasks of each of 20 filers, and at 64 more in all.
const mostRows = 20*64 + 64

var (
	actual  = regexp.MustCompile(`actual rows=(\d+) loops=(\d+)`)
	removed = regexp.MustCompile(`Rows Removed by Filter: (\d+)`)
)

// explained returns a migrated index, and a function that makes a call and returns the plans of its
// statements.
func explained(t *testing.T) (x *Index, plans func(call func() error) []string) {
	t.Helper()
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
	var logged []string // calls are not concurrent
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.Contains(n.Message, "plan:") {
			logged = append(logged, n.Message)
		}
	}
	x, err = connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return x, func(call func() error) []string {
		t.Helper()
		logged = nil
		if err := call(); err != nil {
			t.Fatal(err)
		}
		if len(logged) == 0 {
			t.Fatal("no plan was logged")
		}
		return logged
	}
}

// The cost of frequent calls and of operators' lists grows with what they return, not with what is
// stored: no statement scans a large table, reads many rows of an index, or sorts snapshots. The
// plans are those of the real calls. Each is made several times, because Postgres may change the
// plan from the sixth time on.
func TestPlansOfCalls(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	ctx := t.Context()
	x, plans := explained(t)
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
	running, err := x.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}, Limit: 1})
	if err != nil || len(running) != 1 {
		t.Fatal(running, err)
	}
	claim := index.Claim{Lease: time.Hour, Limit: 64, Queued: 100_000, Now: now}
	snapshots := func(f index.SnapshotFilter) func() error {
		return func() error { _, err := x.Snapshots(ctx, f); return err }
	}
	for _, test := range []struct {
		name  string
		sorts bool // of its result: at most that many rows as well
		call  func() error
	}{
		{"snapshots", false, snapshots(index.SnapshotFilter{Limit: 50})},
		{"snapshots of a filer", false, snapshots(index.SnapshotFilter{Filer: "filer7", Limit: 50})},
		{"snapshots of a shard", true, snapshots(index.SnapshotFilter{Filer: "filer7", Shard: "shard3", Limit: 50})},
		{"snapshots of a state", false, snapshots(index.SnapshotFilter{States: []backup.State{backup.Failed}, Limit: 50})},
		{"last good snapshot of a shard", false, snapshots(index.SnapshotFilter{Filer: "filer7", Shard: "shard3", States: []backup.State{backup.Committed}, Limit: 1})},
		{"failed snapshots of a filer", true, snapshots(index.SnapshotFilter{Filer: "filer7", States: []backup.State{backup.Failed}, Limit: 50})},
		{"snapshots since", false, snapshots(index.SnapshotFilter{Since: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), Limit: 50})},
		{"failed snapshots since", false, snapshots(index.SnapshotFilter{States: []backup.State{backup.Failed}, Since: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), Limit: 50})},
		{"running snapshots", true, snapshots(index.SnapshotFilter{States: []backup.State{backup.Running}})},
		{"complete snapshots", true, func() error { _, err := x.CompleteSnapshots(ctx, nil); return err }},
		{"claim of a commit", false, func() error { _, err := x.ClaimCommit(ctx, running[0].ID, "test", time.Hour); return err }},
		{"cancelled snapshots", true, func() error { _, err := x.Cancelled(ctx, nil); return err }},
		{"unrecorded snapshots", false, func() error { _, err := x.Unrecorded(ctx, nil, 50); return err }},
		{"filers", true, func() error { _, err := x.ListFilers(ctx, index.FilerFilter{}); return err }},
		{"shards", true, func() error { _, err := x.ListShards(ctx, index.ShardFilter{}); return err }},
		{"claims of tasks", true, func() error { _, err := x.ClaimTasks(ctx, claim); return err }},
		{"claims of batches", true, func() error { _, err := x.ClaimBatches(ctx, claim); return err }},
		{"objects of a sweep", false, func() error {
			_, err := x.Recognize(ctx, index.Term{}, []index.StoredObject{{Snapshot: running[0].ID, ID: backup.NewPackID()}, {Snapshot: backup.NewSnapshotID(), ID: backup.NewPackID()}})
			return err
		}},
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
				for _, plan := range plans(test.call) {
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

// many fills the tables that are empty, or nearly so, most of the time.
const many = `
INSERT INTO interrupted_pages (shard, page, directory, listing) SELECT 1 + n % 20, 0, gen_random_uuid(), '\x00' FROM generate_series(1, 60000) n;
INSERT INTO chunk_copies SELECT gen_random_uuid(), 1, 1, 1, 1 FROM generate_series(1, 60000) n;
INSERT INTO chunk_lists SELECT gen_random_uuid(), false, '' FROM generate_series(1, 60000) n`

// Statements on tables that are small for long, and then suddenly large, do not keep a plan for the
// small table. So a large failed snapshot or a large condemned pack does not make every reader scan
// these tables.
func TestPlansOfTablesThatGrow(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	ctx := t.Context()
	x, plans := explained(t)
	id := backup.ChunkID{1}
	seed := `INSERT INTO packs (pack, snapshot, object, stored_bytes, frame_bytes, chunks, condemned)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, '', 1, true;
INSERT INTO chunks VALUES ('01000000-0000-0000-0000-000000000000', 1, 0, 0, 1);
INSERT INTO chunk_copies VALUES ('01000000-0000-0000-0000-000000000000', 1, 0, 0, 1);
INSERT INTO chunk_lists VALUES ('01000000-0000-0000-0000-000000000000', false, '');
INSERT INTO interrupted_pages VALUES (1, 0, '01000000-0000-0000-0000-000000000000', '');
ANALYZE interrupted_pages; ANALYZE chunk_copies; ANALYZE chunk_lists` // Postgres does this itself as soon as they have a few rows
	if _, err := x.backend.pool.Exec(ctx, seed); err != nil {
		t.Fatal(err)
	}
	undone := errors.New("undone")
	write := func(do func(entindex.HotWriter) error) func() error {
		return func() error {
			var failed error
			err := x.backend.Update(ctx, entindex.Relaxed, func(_ context.Context, tx *entindex.Tx) error {
				failed = do(tx.Hot)
				return undone
			})
			if !errors.Is(err, undone) {
				return err
			}
			return failed
		}
	}
	names := make([]backup.PageName, 100)
	for i := range names {
		names[i] = backup.PageName{Path: strconv.Itoa(i)}
	}
	lists := make([]backup.ChunkID, 20)
	for i := range lists {
		lists[i] = backup.ChunkID{byte(i), 1}
	}
	lists[0] = id
	tests := []struct {
		name string
		call func() error
	}{
		{"interrupted listings", func() error { _, err := x.InterruptedListings(ctx, 1, names); return err }},
		{"copies", func() error { _, err := x.Locate(ctx, []backup.ChunkID{id}); return err }},
		{"known lists", write(func(w entindex.HotWriter) error { _, err := w.KnownLists(ctx, lists); return err })},
		{"interrupted pages of another shard", write(func(w entindex.HotWriter) error { return w.DropInterrupted(ctx, 4711) })},
		{"set aside", write(func(w entindex.HotWriter) error { _, err := w.SetAside(ctx, 1, 2); return err })},
		{"one more place", write(func(w entindex.HotWriter) error {
			return w.PutChunks(ctx, []entindex.ChunkRow{{ChunkPlace: backup.ChunkPlace{ID: id}, Pack: 1}, {ChunkPlace: backup.ChunkPlace{ID: id}, Pack: 2}})
		})},
	}
	for range 7 { // from the sixth time on Postgres may keep a plan
		for _, test := range tests {
			if err := test.call(); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
		}
	}
	if _, err := x.backend.pool.Exec(ctx, many); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		for _, plan := range plans(test.call) {
			if readsAll.MatchString(plan) {
				t.Errorf("%s:\n%s", test.name, plan)
			}
		}
	}
}

// The tables of open work are nearly empty between backups. When they have grown, no statement on
// them still reads them as a whole.
func TestPlansOfOpenWork(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	ctx := t.Context()
	x, plans := explained(t)
	execute := func(statements ...string) {
		t.Helper()
		for _, statement := range statements {
			if _, err := x.backend.pool.Exec(ctx, statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	execute(fleet, "DELETE FROM walk_tasks", "DELETE FROM read_batches", "VACUUM walk_tasks", "VACUUM read_batches", "VACUUM slice_parts")
	// Where all work belongs to one snapshot, statistics may rightly lead to a scan of it.
	execute("ALTER TABLE walk_tasks SET (autovacuum_enabled = off)", "ALTER TABLE read_batches SET (autovacuum_enabled = off)", "ALTER TABLE slice_parts SET (autovacuum_enabled = off)")
	running, err := x.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}})
	if err != nil || len(running) < 10 {
		t.Fatal(len(running), err)
	}
	of := running[0].ID
	execute(openWork("id = '" + of.String() + "'"))
	var task backup.TaskID
	var batch backup.BatchID
	if err := x.backend.pool.QueryRow(ctx, "SELECT min(t.id), min(b.id) FROM walk_tasks t, read_batches b").Scan(&task, &batch); err != nil {
		t.Fatal(err)
	}
	held := func() []index.Held {
		return []index.Held{{Snapshot: of, Task: task, Worker: "w"}, {Snapshot: of, Batch: batch, Worker: "w"}}
	}
	tests := []struct {
		name string
		call func() error
	}{
		{"reports", func() error { return x.Extend(ctx, held(), time.Hour, time.Time{}) }},
		{"work given back", func() error { return x.GiveBack(ctx, held()) }},
		{"end of leases", func() error { return x.ExpireLeases(ctx, of) }},
		{"results", func() error {
			outcomes, err := x.Apply(ctx, []index.Result{
				{Slice: &backup.SliceWalked{Snapshot: of, Task: task, Attempt: 1, Last: true}},
				{Batch: &backup.BatchStored{Snapshot: of, Batch: batch, Attempt: 1}},
			})
			for _, o := range outcomes {
				if o.Err != nil || o.Late {
					t.Errorf("not settled: %+v", o)
				}
			}
			task, batch = task+1, batch+1
			return err
		}},
		{"end", func() error {
			running = running[1:]
			return x.Fail(ctx, running[0].ID, "test", time.Time{})
		}},
	}
	for range 7 { // from the sixth time on Postgres may keep a plan
		for _, test := range tests {
			if err := test.call(); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
		}
	}
	execute(openWork("state = 'running'"), `
INSERT INTO slice_parts (snapshot_id, task_id, attempt, part, result) SELECT gen_random_uuid(), n, 1, 0, '' FROM generate_series(1, 20000) n`)
	for _, test := range tests {
		for _, plan := range plans(test.call) {
			if readsAllWork.MatchString(plan) {
				t.Errorf("%s:\n%s", test.name, plan)
			}
		}
	}
}

var readsAllWork = regexp.MustCompile("Seq Scan on (walk_tasks|read_batches|slice_parts)")
