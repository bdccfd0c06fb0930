package installation

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/testenv"
)

// database is an installation with its Postgres server, set up with roles.sql and the other
// generated files.
type database struct {
	*Installation
	server *testenv.Locked
}

func withDatabase(t *testing.T) *database {
	t.Helper()
	server := testenv.PostgresServer(t)
	dir := filepath.Join(t.TempDir(), "fleet")
	p := testPlan(dir, "127.0.0.1:4222")
	_, port := server.Address()
	p.Postgres.Port = int(port)
	if err := Init(dir, p, time.Now()); err != nil {
		t.Fatal(err)
	}
	return &database{opened(t, dir), server.Lock(t, filepath.Join(dir, "postgres"))}
}

// dsn returns the DSN with which the holder of a folder's certificate connects as a role.
func (d *database) dsn(folder string, role Role, change ...string) string {
	file := func(name string) string { return filepath.Join(d.dir, folder, name) }
	query := url.Values{
		"sslmode": {"verify-full"}, "sslrootcert": {filepath.Join(d.dir, "ca", "ca.pem")},
		"sslcert": {file("cert.pem")}, "sslkey": {file("key.pem")},
	}
	for i := 0; i < len(change); i += 2 {
		query.Set(change[i], change[i+1])
	}
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?%s", d.Plan.databaseRole(role), d.Plan.Postgres.Port, d.Plan.Postgres.Name, query.Encode())
}

func (d *database) connect(t *testing.T, folder string, role Role, change ...string) (*pgx.Conn, error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.dsn(folder, role, change...))
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

func (d *database) must(t *testing.T, folder string, role Role) *pgx.Conn {
	t.Helper()
	conn, err := d.connect(t, folder, role)
	if err != nil {
		t.Fatalf("%s as %s: %v", folder, role, err)
	}
	return conn
}

// Only holders of a certificate of a live generation can connect, as the role of their identity.
func TestPostgresConnections(t *testing.T) {
	d := withDatabase(t)
	for _, i := range d.Plan.newest() {
		if !i.Role.usesIndex() {
			if _, err := d.connect(t, i.home(), i.Role); err == nil {
				t.Errorf("%s connects to the index, which it does not use", i.Name())
			}
			continue
		}
		conn := d.must(t, i.home(), i.Role)
		var version string
		if err := conn.QueryRow(t.Context(), "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&version); err != nil || version < "TLSv1.2" {
			t.Errorf("%s: TLS %q, %v", i.Name(), version, err)
		}
	}
	other := made(t, "127.0.0.1:4222")
	foreign := func(name string) string { return filepath.Join(other.dir, "admin", name) }
	for _, test := range []struct {
		name, folder string
		role         Role
		change       []string
	}{
		{"another role", "walker@paris", Committer, nil},
		{"another role", "reader@oslo", Admin, nil},
		{"another role", "operator", Committer, nil},
		{"no TLS", "committer", Committer, []string{"sslmode", "disable"}},
		{"no certificate", "committer", Committer, []string{"sslmode", "require", "sslcert", "", "sslkey", ""}},
		{"another authority's certificate", "admin", Admin, []string{"sslcert", foreign("cert.pem"), "sslkey", foreign("key.pem")}},
		{"a server's certificate", "postgres", Admin, []string{"sslcert", filepath.Join(d.dir, "s3", "server.pem"), "sslkey", filepath.Join(d.dir, "s3", "server.key")}},
	} {
		if _, err := d.connect(t, test.folder, test.role, test.change...); err == nil {
			t.Errorf("%s: %s came in as %s", test.name, test.folder, test.role)
		}
	}
	// Roles on the superuser's database, which is not the index's.
	for _, user := range []string{"postgres", "bctl_walker"} {
		u, err := url.Parse(d.dsn("admin", Admin))
		if err != nil {
			t.Fatal(err)
		}
		u.User, u.Path = url.User(user), "/postgres"
		if _, err := pgx.Connect(t.Context(), u.String()); err == nil {
			t.Errorf("%s came in", u.Redacted())
		}
	}
	config, err := pgx.ParseConfig(d.dsn("committer", Committer))
	if err != nil {
		t.Fatal(err)
	}
	config.TLSConfig.MinVersion, config.TLSConfig.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, err := pgx.ConnectConfig(t.Context(), config); err == nil {
		t.Error("came in by TLS 1.1")
	}
}

// While old and new generations are accepted, both can connect. A retired generation cannot, and
// its sessions are closed.
func TestPostgresRotation(t *testing.T) {
	d := withDatabase(t)
	old := filepath.Join(t.TempDir(), "old")
	if err := os.CopyFS(old, os.DirFS(filepath.Join(d.dir, "walker@paris"))); err != nil {
		t.Fatal(err)
	}
	first := []string{"sslcert", filepath.Join(old, "cert.pem"), "sslkey", filepath.Join(old, "key.pem")}
	if err := os.Chmod(filepath.Join(old, "key.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Rotate(time.Now(), "walker@paris"); err != nil {
		t.Fatal(err)
	}
	d.server.Reload(t)
	d.must(t, "walker@paris", Walker)
	session, err := d.connect(t, "walker@paris", Walker, first...)
	if err != nil {
		t.Fatalf("the old generation, not retired yet: %v", err)
	}
	if err := d.Retire("walker@paris"); err != nil {
		t.Fatal(err)
	}
	d.server.Reload(t)
	if _, err := d.connect(t, "walker@paris", Walker, first...); err == nil {
		t.Error("a retired generation came in")
	}
	kept := d.must(t, "walker@paris", Walker)
	d.server.Roles(t)
	if err := session.Ping(t.Context()); err == nil {
		t.Error("a session of a retired generation goes on")
	}
	if err := kept.Ping(t.Context()); err != nil {
		t.Errorf("a session of a live generation was ended: %v", err)
	}
}

// seed inserts one row into each table, as the owner.
const seed = `
INSERT INTO repositories (id, repository, version, created, chunker, codec, recipients, signer) VALUES (1, gen_random_uuid(), 1, now(), 'c', 'z', '[]', '');
INSERT INTO filers (name) VALUES ('filer');
INSERT INTO policies (name, schedule, retention, selection) VALUES ('nightly', '@daily', '{}', '{}');
INSERT INTO shards (shard_key, filer_id, name, source, last_number) VALUES (gen_random_uuid(), 1, 'shard', 'posix:///srv', 2);
INSERT INTO snapshots (id, shard_id, filer_id, number, state, started, sort_time, ended, root, selection, tasks_announced) VALUES
    ('00000000-0000-0000-0000-000000000001', 1, 1, 1, 'committed', '2026-01-01', '2026-01-01', '2026-01-01', 'inode=2', '{}', 1),
    ('00000000-0000-0000-0000-000000000002', 1, 1, 2, 'running', '2026-01-02', '2026-01-02', NULL, 'inode=2', '{}', 1);
INSERT INTO problems (snapshot_id, path, op, error) VALUES ('00000000-0000-0000-0000-000000000001', 'p', 'open', 'no');
INSERT INTO walk_tasks (snapshot_id, filer_id, generation, lease_until, directories) VALUES ('00000000-0000-0000-0000-000000000002', 1, 0, '1970-01-01', '\x01010000');
INSERT INTO read_batches (snapshot_id, filer_id, lease_until, names, pages) VALUES ('00000000-0000-0000-0000-000000000002', 1, '1970-01-01', '', '\x010000');
INSERT INTO slice_parts (snapshot_id, task_id, attempt, part, result) VALUES ('00000000-0000-0000-0000-000000000002', 1, 1, 1, '');
INSERT INTO packs (pack, snapshot, object, stored_bytes, frame_bytes, chunks) VALUES (gen_random_uuid(), '00000000-0000-0000-0000-000000000001', gen_random_uuid(), 1, '', 1);
INSERT INTO chunks VALUES (gen_random_uuid(), 1, 1, 1, 1);
INSERT INTO chunk_copies VALUES (gen_random_uuid(), 1, 1, 1, 1);
INSERT INTO chunk_lists VALUES (gen_random_uuid(), false, '');
INSERT INTO catalogs VALUES (1, '', 0);
INSERT INTO pages (shard, page, first_snapshot, inode, directory, fingerprint, digest, path_key, listing) VALUES (1, 0, 1, 1, gen_random_uuid(), gen_random_uuid(), '', '', '');
INSERT INTO interrupted_pages VALUES (1, 0, gen_random_uuid(), '');
INSERT INTO prunes (ended, took, packs, deleted_bytes, freed_bytes, copied_bytes, snapshots) VALUES (0, 0, 0, 0, 0, 0, 0);
INSERT INTO leaders (role, holder, epoch, until) VALUES ('keeper', 'somebody', 1, 0);`

// seeded returns a database with the schema, created by admin, and a row in each table.
func seeded(t *testing.T) *database {
	t.Helper()
	d := withDatabase(t)
	x, err := pgindex.Open(t.Context(), d.dsn("admin", Admin), pgindex.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.must(t, "admin", Admin).Exec(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
	return d
}

// tables returns all tables of the index, including partitions, each with a column that can be set
// to its own value.
func tables(t *testing.T, conn *pgx.Conn) map[string]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT c.relname, min(a.attname::text) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') GROUP BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	var table, column string
	if _, err := pgx.ForEachRow(rows, []any{&table, &column}, func() error { found[table] = column; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(found) < 18+16 {
		t.Fatalf("tables %v", found)
	}
	return found
}

func refused(err error) bool {
	var failure *pgconn.PgError
	return errors.As(err, &failure) && failure.Code == "42501"
}

// try runs a statement in a transaction that is rolled back.
func try(t *testing.T, conn *pgx.Conn, statement string) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), statement)
	return errors.Join(err, tx.Rollback(context.WithoutCancel(t.Context())))
}

// Tests the permissions of each role on each table and row, both those that the server reports and
// the actual ones.
func TestPostgresRoles(t *testing.T) {
	d := seeded(t)
	t.Run("privileges", d.testPrivileges)
	t.Run("forbidden", d.testForbidden)
	t.Run("made anew", d.testMadeAnew)
}

// The roles that may select from, insert into, update and delete from each table. The lists cover
// every existing table: no role has access to a new table until it is added here and in
// migrations.Privileges.
func (d *database) testPrivileges(t *testing.T) {
	owner := d.must(t, "admin", Admin)
	everyone := []string{"goose_db_version", "repositories", "schema_versions"}
	work := []string{"interrupted_pages", "pages", "read_batches", "slice_parts", "walk_tasks"}
	written := append([]string{"catalogs", "chunk_copies", "chunk_lists", "chunks", "leaders", "packs", "problems", "snapshots"}, work...)
	names := []string{"name_blocks", "name_groups", "names_incomplete"}
	deleted := []string{"chunk_copies", "chunk_lists", "chunks", "packs", "pages", "snapshots"}
	for _, test := range []struct {
		folder                         string
		role                           Role
		sees, adds, changes, takesFrom []string
	}{
		{"walker@paris", Walker, append([]string{"interrupted_pages", "pages", "reread_pages"}, everyone...), nil, nil, nil},
		{"reader@paris", Reader, append([]string{"chunk_copies", "chunks", "filers", "packs", "pages", "read_batches", "reread_pages"}, everyone...), nil, nil, nil},
		{
			"committer", Committer, append(append([]string{"amendments", "brake", "catalog_numbers", "confirmations", "drills", "filers", "holds", "log", "lost_snapshots", "policies", "readings", "removed_snapshots", "reread_pages", "scrub", "shards", "stops"}, everyone...), append(written, names...)...),
			append([]string{"holds", "log", "name_blocks", "name_groups", "stops"}, written...), append([]string{"catalog_numbers", "chunk_lists", "chunks", "filers", "leaders", "name_groups", "packs", "shards", "snapshots"}, work...), append([]string{"name_blocks", "name_groups", "reread_pages", "stops"}, work...),
		},
		{
			"operator", Operator,
			append([]string{"amendments", "brake", "catalog_numbers", "catalogs", "lost_packs", "lost_snapshots", "object_locks", "chunk_copies", "chunk_lists", "chunks", "confirmations", "drills", "filers", "holds", "interrupted_pages", "journal_proofs", "log", "packs", "pages", "parity_groups", "policies", "problems", "prunes", "purges", "purge_chunks", "purge_objects", "put_back", "read_batches", "readings", "removed_snapshots", "reread_pages", "restores", "restore_refusals", "restore_tasks", "scrub", "shards", "snapshots", "stops", "walk_tasks"}, append(everyone, names...)...),
			[]string{"confirmations", "drills", "filers", "holds", "log", "policies", "readings", "restores", "restore_tasks", "shards", "snapshots", "stops", "walk_tasks"},
			[]string{"brake", "filers", "policies", "readings", "restore_tasks", "scrub", "shards", "snapshots", "stops"},
			[]string{"confirmations", "drills", "filers", "holds", "policies", "readings", "restores", "shards", "stops"},
		},
		{
			"pruner", Pruner,
			append(append([]string{"amendments", "brake", "catalog_numbers", "catalogs", "holds", "lost_packs", "lost_snapshots", "object_locks", "confirmations", "drills", "filers", "leaders", "parity_groups", "policies", "prunes", "put_back", "readings", "removed_snapshots", "shards", "stops", "sweep", "problems", "interrupted_pages"}, append(everyone, names...)...), deleted...),
			append([]string{"leaders", "log", "object_locks", "packs", "parity_groups", "prunes", "removed_snapshots", "stops", "sweep"}, names...), append([]string{"brake", "catalog_numbers", "object_locks", "chunk_copies", "chunk_lists", "chunks", "leaders", "packs", "pages", "parity_groups", "put_back", "shards", "snapshots", "sweep"}, names...),
			append(append([]string{"amendments", "catalogs", "object_locks", "parity_groups", "problems", "prunes", "readings", "interrupted_pages", "stops"}, deleted...), names...),
		},
		{
			"scrubber", Scrubber, append([]string{"chunk_copies", "chunks", "journal_proofs", "leaders", "packs", "parity_groups", "put_back", "scrub"}, everyone...),
			[]string{"leaders"}, []string{"journal_proofs", "leaders", "packs", "parity_groups", "scrub"}, nil,
		},
		{
			"restorer", Restorer, append([]string{"chunk_copies", "chunks", "packs", "pages", "readings", "reread_pages", "restores", "restore_refusals", "restore_tasks", "snapshots"}, everyone...),
			[]string{"restore_refusals"}, []string{"readings", "restore_refusals", "restore_tasks", "restores"}, nil,
		},
		{"prometheus", Monitor, []string{"filers", "read_batches", "walk_tasks"}, nil, nil, nil},
	} {
		conn := d.must(t, test.folder, test.role)
		for table := range tables(t, owner) {
			for privilege, of := range map[string][]string{"SELECT": test.sees, "INSERT": test.adds, "UPDATE": test.changes} {
				var has bool
				err := conn.QueryRow(t.Context(), "SELECT has_any_column_privilege($1, $2)", table, privilege).Scan(&has)
				if err != nil || has != slices.Contains(of, table) {
					t.Errorf("%s has %s of %s: %v, %v", test.role, privilege, table, has, err)
				}
			}
			for _, privilege := range []string{"DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"} {
				var has bool
				err := conn.QueryRow(t.Context(), "SELECT has_table_privilege($1, $2)", table, privilege).Scan(&has)
				if err != nil || has != (privilege == "DELETE" && slices.Contains(test.takesFrom, table)) {
					t.Errorf("%s has %s of %s: %v, %v", test.role, privilege, table, has, err)
				}
			}
		}
		for _, statement := range []string{
			"CREATE TABLE public.mine (a int)", "CREATE SCHEMA mine", "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"ALTER TABLE pages ADD COLUMN mine int", "DROP TABLE pages", "TRUNCATE pages", "SELECT lo_create(0)",
			"SELECT lo_from_bytea(0, 'x')", "SELECT pg_read_file('/etc/passwd')", "COPY pages TO PROGRAM 'true'",
			"SET ROLE bctl_admin", "SET SESSION AUTHORIZATION bctl_admin", "CREATE ROLE mine",
		} {
			if err := try(t, conn, statement); !refused(err) {
				t.Errorf("%s: %s: %v", test.role, statement, err)
			}
		}
		if test.role == Committer {
			continue
		}
		// Statements that change nothing, but use space or block others.
		for _, statement := range []string{
			"CREATE TEMP TABLE mine (a int)", "SELECT pg_advisory_lock(1650684012, 1)", "SELECT pg_advisory_xact_lock(1650684012, 1)",
			"SELECT pg_try_advisory_lock_shared(1)", "LOCK TABLE pages IN ACCESS EXCLUSIVE MODE", "SELECT pg_logical_emit_message(false, 'a', 'b')",
		} {
			if test.role == Pruner && strings.HasPrefix(statement, "LOCK TABLE") {
				continue // a role that may delete rows may lock the table
			}
			if err := try(t, conn, statement); !refused(err) {
				t.Errorf("%s: %s: %v", test.role, statement, err)
			}
		}
	}
}

// Forbidden reads and writes of tables fail when they are tried, and not only according to the
// catalogs.
func (d *database) testForbidden(t *testing.T) {
	all := tables(t, d.must(t, "admin", Admin))
	for folder, role := range map[string]Role{"walker@paris": Walker, "reader@oslo": Reader, "prometheus": Monitor} {
		conn := d.must(t, folder, role)
		for table, column := range all {
			for _, statement := range []string{
				"INSERT INTO " + table + " DEFAULT VALUES", "UPDATE " + table + " SET " + column + " = " + column, "DELETE FROM " + table,
				"SELECT " + column + " FROM " + table + " FOR UPDATE",
			} {
				if err := try(t, conn, statement); !refused(err) {
					t.Errorf("%s: %s: %v", role, statement, err)
				}
			}
		}
	}
	const running, committed = "'00000000-0000-0000-0000-000000000002'", "'00000000-0000-0000-0000-000000000001'"
	// The row of the next snapshot, with some columns changed or added.
	begin := func(change ...string) string {
		row := map[string]string{
			"id": "gen_random_uuid()", "shard_id": "1", "filer_id": "1", "number": "3", "state": "'running'", "base": "1", "base_id": committed,
			"started": "'2026-01-03'", "sort_time": "'2026-01-03'", "root": "'inode=2'", "selection": "'{}'", "tasks_announced": "1",
		}
		for i := 0; i < len(change); i += 2 {
			row[change[i]] = change[i+1]
		}
		var columns, values []string
		for column, value := range row {
			columns, values = append(columns, column), append(values, value)
		}
		return "INSERT INTO snapshots (" + strings.Join(columns, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")"
	}
	const end = "UPDATE snapshots SET state = 'failed', ended = now() WHERE id = " + running
	for folder, statements := range map[string][]string{
		"walker@paris": {"SELECT * FROM snapshots", "SELECT * FROM chunks", "SELECT * FROM packs", "SELECT * FROM walk_tasks", "SELECT * FROM filers", "SELECT * FROM chunk_lists"},
		"reader@oslo": {
			"SELECT * FROM snapshots", "SELECT frame_bytes FROM packs", "SELECT pages FROM read_batches", "SELECT name FROM filers", "SELECT * FROM chunks_0", "SELECT * FROM shards",
			"SELECT * FROM chunk_lists", "SELECT * FROM interrupted_pages", "SELECT * FROM catalogs",
		},
		"prometheus": {"SELECT name FROM filers", "SELECT directories FROM walk_tasks", "SELECT pages FROM read_batches", "SELECT * FROM pages", "SELECT * FROM snapshots"},
		"committer": {
			"DELETE FROM snapshots", "DELETE FROM packs", "DELETE FROM chunks", "DELETE FROM problems", "UPDATE repositories SET recipients = '[]'",
			"INSERT INTO repositories SELECT * FROM repositories", "UPDATE filers SET site = 'elsewhere'", "UPDATE shards SET source = 'posix:///etc'",
			"UPDATE packs SET pack = gen_random_uuid()", "DELETE FROM filers", "DELETE FROM policies", "UPDATE policies SET paused = true",
			"UPDATE goose_db_version SET version_id = 1", "UPDATE schema_versions SET oldest = 1",
			"UPDATE shards SET shard_key = gen_random_uuid()", "UPDATE packs SET object_offset = 7", "UPDATE repositories SET signer = ''",
			"DELETE FROM chunk_copies", "UPDATE chunk_copies SET pack = 7", "DELETE FROM chunk_lists", "UPDATE chunk_lists SET chunks = ''",
			"UPDATE brake SET bytes = 100", "UPDATE brake SET operators = 1", "UPDATE stops SET rejected = 'x'", "UPDATE stops SET bytes = 7", "INSERT INTO confirmations VALUES (1, 'alice', 0)",
			"DELETE FROM catalogs", "UPDATE catalogs SET digest = ''", "UPDATE interrupted_pages SET shard = 7",
		},
		"operator": {
			"UPDATE snapshots SET state = 'committed' WHERE id = " + running, "UPDATE snapshots SET committed = now()", "UPDATE snapshots SET tasks_settled = 1",
			"UPDATE snapshots SET segment = NULL WHERE id = " + committed, "UPDATE snapshots SET pages = 7", "UPDATE snapshots SET recorded = true", "UPDATE snapshots SET commit_until = 7", "DELETE FROM snapshots", "UPDATE shards SET last_good = NULL",
			"UPDATE shards SET last_good_started = now()", "UPDATE shards SET last_good_files = 7", "UPDATE shards SET last_good_bytes = 7, last_good_number = 0", "UPDATE shards SET name = 'another'", "UPDATE filers SET name = 'another'",
			"INSERT INTO shards (shard_key, filer_id, name, source, last_good_started) VALUES (gen_random_uuid(), 1, 'new', 's', now())",
			"UPDATE shards SET shard_key = gen_random_uuid()", "UPDATE shards SET interrupted = true", "UPDATE shards SET checkpoint_bytes = 7",
			"UPDATE brake SET operators = 1", "UPDATE brake SET window_began = 0", "UPDATE stops SET bytes = 7", "UPDATE stops SET snapshots = ''",
			"INSERT INTO stops (id, shard, by, snapshots, of_snapshots, bytes, of_bytes, earlier_bytes, since) VALUES (1, 0, 'x', '', 0, 1, 1, 0, 0)",
			"UPDATE confirmations SET identity = 'alice'", "UPDATE log SET by = 'x'", "DELETE FROM log",
			"UPDATE packs SET locked_until = 0", "UPDATE object_locks SET locked_until = 0", "INSERT INTO catalogs VALUES (7, '', 0)", "DELETE FROM prunes",
			"DELETE FROM pages", "UPDATE pages SET last_snapshot = 1", "DELETE FROM chunks", "UPDATE chunks SET pack = 2", "UPDATE packs SET condemned = true",
			"DELETE FROM walk_tasks", "UPDATE walk_tasks SET directories = ''", "DELETE FROM read_batches", "SELECT * FROM slice_parts",
			"DELETE FROM problems", "UPDATE leaders SET epoch = 7", "UPDATE repositories SET recipients = '[]'", "INSERT INTO packs SELECT * FROM packs",
			begin("state", "'committed'"), begin("tasks_settled", "1"), begin("tasks_announced", "0"), begin("batches_announced", "1"), begin("batches_settled", "1"),
			begin("number", "4"), begin("base", "2"), begin("base", "0"), begin("base_id", running), begin("base_id", "NULL"),
			begin("committed", "now()"), begin("ended", "now()"), begin("recorded", "true"), begin("committer", "'x'"), begin("commit_until", "7"), begin("files", "1"), begin("problems_stored", "1"), begin("bad", "'x'"),
			begin("segment", "gen_random_uuid()"), begin("segment_parts", "1"), begin("checkpoint", "true"), begin("pages", "1"), begin("pages_sum", "''"),
			// A new root is requested, and not named.
			begin("root", "'inode=3'"), begin("root", "''"), begin("new_root", "true"),
			begin("sort_time", "'2026-01-04'"), begin("sort_time", "'2026-01-02'"), begin("started", "'2026-01-01'", "sort_time", "'2026-01-01'"),
			"INSERT INTO walk_tasks (snapshot_id, filer_id, generation, lease_until, directories) VALUES (" + running + ", 1, 0, now(), '\\x01010000')",
		},
	} {
		role := Role(strings.Split(strings.Replace(folder, "prometheus", "monitor", 1), "@")[0])
		conn := d.must(t, folder, role)
		for _, statement := range statements {
			if err := try(t, conn, statement); !refused(err) {
				t.Errorf("%s: %s: %v", role, statement, err)
			}
		}
	}
	// After the running snapshot has ended, an operator can start the next one, and set its root
	// once.
	if _, err := d.must(t, "admin", Admin).Exec(t.Context(), end+"; DELETE FROM walk_tasks"); err != nil {
		t.Fatal(err)
	}
	conn := d.must(t, "operator", Operator)
	good := begin()
	root := func(rows int, generation, directories string) string {
		return good + "; INSERT INTO walk_tasks (snapshot_id, filer_id, generation, lease_until, directories)" +
			fmt.Sprintf(" SELECT id, 1, %s, now(), %s FROM snapshots, generate_series(1, %d) WHERE state = 'running'", generation, directories, rows)
	}
	for statement, want := range map[string]bool{
		good: true, begin("new_root", "true", "root", "''"): true, begin("started", "'2026-01-01'", "sort_time", "'2026-01-02'"): true, root(1, "0", `'\x01010000'`): true, root(2, "0", `'\x01010000'`): false, root(1, "1", `'\x01010000'`): false, root(1, "0", `'\x0101016100'`): false,
	} {
		if err := try(t, conn, statement); want && err != nil || !want && !refused(err) {
			t.Errorf("operator: %s: %v", statement, err)
		}
	}
	var failure *pgconn.PgError
	if err := try(t, conn, "UPDATE shards SET last_number = 1"); !errors.As(err, &failure) || failure.Code != "23514" {
		t.Errorf("a number came back: %v", err)
	}
	if err := try(t, conn, "DELETE FROM shards"); !errors.As(err, &failure) || failure.Code != "23503" {
		t.Errorf("a shard with snapshots was deleted: %v", err)
	}
}
