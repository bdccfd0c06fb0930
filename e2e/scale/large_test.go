//go:build linux

package scale_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// A large fleet: filers with as many shards each, and committed snapshots of all of them.
type large struct {
	filers, shards, snapshots int
	walkTasks, readBatches    int // limits of each filer
}

// smallTree is what all shards are: enough for a read batch.
func smallTree(t testing.TB) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "tree")
	for i := range 3 {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 3 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), fmt.Appendf(nil, "content %d", j), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// insert fills an index. A million statements would take longer than all that is measured.
func (l large) insert(t testing.TB, f *fleet.Fleet, tree string) {
	t.Helper()
	for _, step := range []struct {
		statement string
		args      []any
	}{
		{`INSERT INTO filers (name, walk_tasks, read_batches, labels)
			SELECT 'filer' || to_char(n, 'FM000'), $2, $3, '{"env": "test"}' FROM generate_series(1, $1::int) AS n`,
			[]any{l.filers, l.walkTasks, l.readBatches}},
		{`INSERT INTO shards (shard_key, filer_id, name, source, last_number)
			SELECT gen_random_uuid(), f.id, 'shard' || to_char(n, 'FM000'), $2, $3 FROM filers AS f, generate_series(1, $1::int) AS n`,
			[]any{l.shards, "posix://" + tree, l.numbers()}},
		{`INSERT INTO snapshots (id, number, base, state, started, sort_time, committed, recorded, selection, shard_id, filer_id, source, files, directories, bytes, tasks_announced, tasks_settled)
			SELECT gen_random_uuid(), n, n - 1, 'committed', at, at, at + interval '1 hour', true, '{}', s.id, s.filer_id, s.source, 9, 4, 81, 1, 1
			FROM shards AS s, generate_series(1, $1::int) AS n, LATERAL (SELECT now() - interval '1 day' * ($1 - n + 1) + s.id * interval '1 second' AS at) AS t`,
			[]any{l.numbers()}},
		{`UPDATE shards AS s SET last_good = n.id, last_good_number = n.number, last_good_started = n.started, last_good_files = n.files, last_good_bytes = n.bytes
			FROM snapshots AS n WHERE n.shard_id = s.id AND n.number = $1`, []any{l.numbers()}},
		{`ANALYZE`, nil},
	} {
		if _, err := f.Index.DB().Exec(step.statement, step.args...); err != nil {
			t.Fatalf("%s: %v", step.statement, err)
		}
	}
}

// numbers is how many snapshots a shard has.
func (l large) numbers() int { return l.snapshots / (l.filers * l.shards) }

// begin asks for n snapshots at once, of shards of all filers, and returns how long that took.
func (l large) begin(t testing.TB, f *fleet.Fleet, n int) time.Duration {
	t.Helper()
	rows, err := f.Index.DB().Query(`SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY filer_id ORDER BY id) AS n FROM shards) AS s ORDER BY n, id LIMIT $1`, n)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var shards []backup.ShardID
	for rows.Next() {
		var id backup.ShardID
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		shards = append(shards, id)
	}
	if err := rows.Err(); err != nil || len(shards) != n {
		t.Fatalf("%d shards: %v", len(shards), err)
	}
	idx, err := pgindex.Open(context.Background(), f.Postgres.DSN(), pgindex.Options{MaxConns: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer idx.Close()
	start := time.Now()
	var all errgroup.Group
	for _, shard := range shards {
		all.Go(func() error {
			_, err := idx.BeginSnapshot(context.Background(), shard, backup.Snapshot{ID: backup.NewSnapshotID()}, time.Now())
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// run has all running snapshots end, and fails the test where more of a filer's work was in hand
// than its limits allow, more messages were queued than the committers were told, or a
// snapshot was not committed.
func (l large) run(t testing.TB, f *fleet.Fleet, queued int) (took time.Duration, peaks map[string]int64) {
	t.Helper()
	before := f.Index.Count("SELECT count(*) FROM snapshots WHERE state = 'committed'")
	running := f.Index.Count("SELECT count(*) FROM snapshots WHERE state = 'running'")
	nc, err := nats.Connect(f.NATSURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	start, last := time.Now(), time.Now()
	for range 2 {
		f.Committers = append(f.Committers, f.Service("committer", quiet, fmt.Sprintf("BCTL_WORKER_QUEUED=%d", queued)))
		f.Walkers = append(f.Walkers, f.Service("walker", quiet))
		f.Readers = append(f.Readers, f.Service("reader", quiet))
	}
	limits := map[string]int64{
		"walk_tasks": int64(l.walkTasks), "read_batches": int64(l.readBatches), "BCTL_WALK": int64(queued), "BCTL_READ": int64(queued),
	}
	peaks = map[string]int64{}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for left := running; left > 0; {
		for _, table := range []string{"walk_tasks", "read_batches"} {
			peaks[table] = max(peaks[table], f.Index.Count("SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM "+table+" WHERE lease_until > now() GROUP BY filer_id) AS c"))
		}
		for _, stream := range []string{"BCTL_WALK", "BCTL_READ"} {
			if s, err := js.Stream(context.Background(), stream); err == nil { // until the keeper has made it
				peaks[stream] = max(peaks[stream], int64(s.CachedInfo().State.Msgs))
			}
		}
		if now := f.Index.Count("SELECT count(*) FROM snapshots WHERE state = 'running'"); now < left {
			left, last = now, time.Now()
		} else if time.Since(last) > time.Minute {
			t.Fatalf("%d of %d snapshots are running still, and none has ended for a minute", now, running)
		}
		<-tick.C
	}
	for what, limit := range limits {
		if peaks[what] > limit || peaks[what] == 0 {
			t.Errorf("%s: %d at once; the limit is %d", what, peaks[what], limit)
		}
	}
	if n := f.Index.Count("SELECT count(*) FROM snapshots WHERE state = 'committed'") - before; n != running {
		t.Errorf("%d snapshots of %d were committed", n, running)
	}
	f.Index.CheckSettled()
	return time.Since(start), peaks
}

// noServices is a fleet that is nothing but its servers and its command.
func noServices(t testing.TB) *fleet.Fleet {
	return fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1, S3: true, OwnPostgres: true})
}

func TestManySnapshotsAtOnceKeepToTheLimits(t *testing.T) {
	l := large{filers: 5, shards: 8, snapshots: 40, walkTasks: 2, readBatches: 1}
	f := noServices(t)
	l.insert(t, f, smallTree(t))
	l.begin(t, f, 40)
	l.run(t, f, 6)
}

// How long what an operator asks for may take, with 100,000 snapshots in the index.
var commandLimits = []struct {
	args  []string
	limit time.Duration
}{
	{[]string{"filer", "ls"}, 200 * time.Millisecond},
	{[]string{"status"}, 200 * time.Millisecond},
	{[]string{"snapshot", "ls", "--limit", "50"}, 100 * time.Millisecond},
}

// BenchmarkLargeFleet asks for 1,000 snapshots at once in a fleet of 200 filers with
// 50 shards each, and 100,000 snapshots.
func BenchmarkLargeFleet(b *testing.B) {
	for range b.N {
		largeFleet(b)
	}
}

func largeFleet(b *testing.B) {
	const atOnce, queued = 1000, 128
	l := large{filers: 200, shards: 50, snapshots: 100_000, walkTasks: 2, readBatches: 1}
	r := newReport(b, "large-fleet")
	f := noServices(b)
	l.insert(b, f, smallTree(b))
	began := l.begin(b, f, atOnce)
	r.say("%d filers of %d shards, %d committed snapshots; %d more were asked for at once through the index, which took %.2f s, and were running when the commands were timed: each a process of its own, from its start to its end, the median of %d.",
		l.filers, l.shards, l.snapshots, atOnce, began.Seconds(), commandRuns)
	rows := [][]string{{"command", "ms", "at most"}}
	var plans strings.Builder
	seen := map[string]bool{}
	for _, c := range commandLimits {
		name := "bctl " + strings.Join(c.args, " ")
		took := medianTime(f, c.args)
		rows = append(rows, []string{"`" + name + "`", fmt.Sprint(took.Milliseconds()), fmt.Sprint(c.limit.Milliseconds())})
		r.must(took <= c.limit, "%s takes %v (at most %v)", name, took, c.limit)
		for _, plan := range plansOf(b, f, c.args, seen) {
			if strings.Contains(plan, "Seq Scan on snapshots") {
				b.Errorf("%s reads all snapshots:\n%s", name, plan)
			}
			fmt.Fprintf(&plans, "%s\n", plan)
		}
	}
	r.table(rows)
	b.Logf("plans:\n%s", plans.String())

	took, peaks := l.run(b, f, queued)
	r.say("Two committers, walkers and readers committed the %d snapshots in %.0f s (%.0f a second). In hand of one filer at once: %d walk tasks and %d read batches, of %d and %d; in JetStream at most %d and %d messages, of %d.",
		atOnce, took.Seconds(), atOnce/took.Seconds(), peaks["walk_tasks"], peaks["read_batches"], l.walkTasks, l.readBatches, peaks["BCTL_WALK"], peaks["BCTL_READ"], queued)
	r.write()
}

const commandRuns = 9

func medianTime(f *fleet.Fleet, args []string) time.Duration {
	var took []time.Duration
	for range commandRuns {
		start := time.Now()
		f.Must(args...)
		took = append(took, time.Since(start))
	}
	slices.SortFunc(took, cmp.Compare[time.Duration])
	return took[len(took)/2]
}

// plansOf returns the plans of the statements of a command, as the server logs them, that were not
// seen before.
func plansOf(b *testing.B, f *fleet.Fleet, args []string, seen map[string]bool) (plans []string) {
	b.Helper()
	for _, statement := range []string{"LOAD 'auto_explain'", "ALTER ROLE CURRENT_USER SET session_preload_libraries = 'auto_explain'", "ALTER ROLE CURRENT_USER SET auto_explain.log_min_duration = 0"} {
		if _, err := f.Index.DB().Exec(statement); err != nil {
			b.Logf("no plans: %v", err)
			return nil
		}
	}
	f.Must(args...)
	if _, err := f.Index.DB().Exec("ALTER ROLE CURRENT_USER RESET ALL"); err != nil {
		b.Fatal(err)
	}
	for _, logged := range strings.Split(f.Postgres.Process().Output(), "plan:\n")[1:] {
		plan, _, _ := strings.Cut(logged, "\n20") // the next line of the log, which begins with the year
		if !seen[plan] {
			plans = append(plans, plan)
		}
		seen[plan] = true
	}
	return plans
}
