package fleet

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// An Index reads the tables of an index directly.
type Index struct {
	t  testing.TB
	db *sql.DB
}

// OpenPostgres opens an index in Postgres.
func OpenPostgres(t testing.TB, dsn string) *Index { return openIndex(t, "pgx", dsn) }

// Index opens the repository's index.
func (r *Repo) Index() *Index {
	return openIndex(r.t, "sqlite", "file:"+filepath.Join(r.Dir, "index.db")+"?mode=ro&_pragma=busy_timeout(10000)")
}

func openIndex(t testing.TB, driver, dsn string) *Index {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(2)
	t.Cleanup(func() { _ = db.Close() }) // an error of closing affects no result
	return &Index{t: t, db: db}
}

// Work counts the work of a snapshot.
type Work struct {
	State                                                          string
	TasksAnnounced, TasksSettled, BatchesAnnounced, BatchesSettled int64
}

// Settled returns the number of tasks and batches that are settled.
func (w Work) Settled() int64 { return w.TasksSettled + w.BatchesSettled }

// Work returns the Work of the newest snapshot, zero if there is none.
func (x *Index) Work() Work {
	x.t.Helper()
	return x.work("ORDER BY started DESC LIMIT 1")
}

// WorkOf returns the Work of a snapshot of a Postgres index.
func (x *Index) WorkOf(snapshot string) Work {
	x.t.Helper()
	return x.work("WHERE id = $1::uuid", snapshot)
}

func (x *Index) work(which string, args ...any) (w Work) {
	x.t.Helper()
	rows, err := x.db.Query("SELECT state, tasks_announced, tasks_settled, batches_announced, batches_settled FROM snapshots "+which, args...)
	if err != nil {
		x.t.Fatal(err)
	}
	defer rows.Close()
	if rows.Next() {
		err = rows.Scan(&w.State, &w.TasksAnnounced, &w.TasksSettled, &w.BatchesAnnounced, &w.BatchesSettled)
	}
	if err != nil || rows.Err() != nil {
		x.t.Fatal(err, rows.Err())
	}
	return w
}

// Snapshots returns the ids of all snapshots. The value is true if the snapshot has ended.
func (x *Index) Snapshots() map[string]bool {
	x.t.Helper()
	ids := map[string]bool{}
	for _, row := range x.strings("SELECT id || ' ' || state FROM snapshots") {
		id, state, _ := strings.Cut(row, " ")
		ids[plain(id)] = state != "running"
	}
	return ids
}

// Packs returns the registered packs as the names of their objects.
func (x *Index) Packs() map[string]bool {
	x.t.Helper()
	names := map[string]bool{}
	for _, row := range x.strings("SELECT snapshot || '/' || pack FROM packs") {
		names["packs/"+plain(row)] = true
	}
	return names
}

// plain returns a UUID without hyphens, as bctl writes it.
func plain(id string) string { return strings.ReplaceAll(id, "-", "") }

func (x *Index) strings(query string, args ...any) (list []string) {
	x.t.Helper()
	rows, err := x.db.Query(query, args...)
	if err != nil {
		x.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			x.t.Fatal(err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		x.t.Fatal(err)
	}
	return list
}

// Count returns the result of a query for one number.
func (x *Index) Count(query string, args ...any) (n int64) {
	x.t.Helper()
	if err := x.db.QueryRow(query, args...).Scan(&n); err != nil {
		x.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// DB returns the connection, for other queries.
func (x *Index) DB() *sql.DB { return x.db }

// EndConnections ends all connections to the index but its own, and returns their number.
func (x *Index) EndConnections() int64 {
	x.t.Helper()
	return x.Count(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()`)
}

// CheckSettled fails the test unless no work is left of snapshots that have ended,
// and the store has their commit records.
func (x *Index) CheckSettled() {
	x.t.Helper()
	Await(x.t, "commit records", func() bool {
		return x.Count("SELECT count(*) FROM snapshots WHERE ended IS NOT NULL AND NOT recorded") == 0
	})
	for _, table := range []string{"walk_tasks", "read_batches", "slice_parts"} {
		if n := x.Count("SELECT count(*) FROM " + table); n != 0 {
			x.t.Errorf("%d rows are left in %s", n, table)
		}
	}
	if n := x.Count("SELECT count(*) FROM chunks WHERE pack NOT IN (SELECT id FROM packs)"); n != 0 {
		x.t.Errorf("%d chunks are in packs that are not registered", n)
	}
}
