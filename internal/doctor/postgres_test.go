package doctor_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
)

// inPostgres returns the settings of a repository with its index in Postgres and its store in a
// directory.
func inPostgres(t testing.TB, dsn string) settings {
	dir := t.TempDir()
	s := settings{"BCTL_INDEX": dsn, "BCTL_STORE": filepath.Join(dir, "store"), "BCTL_WORKER_KEY": filepath.Join(dir, "worker.key"), "BCTL_COMMITTER_KEY": filepath.Join(dir, "committer.key")}
	initialize(t, s)
	return s
}

func execute(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(context.WithoutCancel(t.Context()), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// as returns the DSN for another user.
func as(t testing.TB, dsn, user, password string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

func TestPostgresHealthy(t *testing.T) {
	t.Parallel()
	s := inPostgres(t, testenv.PostgresServer(t).DSN())
	found := examine(t, s, "", "index")
	found.onlyFails(t)
	for _, id := range []string{"index.server", "index.latency", "index.clock", "index.connections", "index.timeouts", "index.session", "index.schema", "index.privileges"} {
		found.want(t, id, doctor.OK)
	}
	found.want(t, "index.pooler", doctor.OK, "without a pooler")
	found.want(t, "index.tls", doctor.Warning, "to this machine")
	found.want(t, "index.user", doctor.Warning, "superuser")
	found.want(t, "index.memory", doctor.Warning, "shared_buffers is 128 MiB")
	found.want(t, "index.durability", doctor.Warning, "data_checksums", "fsync on", "WAL is not archived", "dump the index every day")
}

func TestPostgresBroken(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t)
	t.Run("not durable", func(t *testing.T) { // like the tests' shared server
		found := examine(t, settings{"BCTL_INDEX": dsn}, "", "index")
		if os.Getenv("TEST_POSTGRES_DSN") == "" {
			found.want(t, "index.durability", doctor.Failure, "fsync is off", "full_page_writes is off", "synchronous_commit is off")
		}
		found.want(t, "index.schema", doctor.Failure, "bctl migrate")
		found.want(t, "index.privileges", doctor.NotTested)
	})
	t.Run("wrong password", func(t *testing.T) {
		found := examine(t, settings{"BCTL_INDEX": as(t, dsn, "bctl", "tell-nobody")}, "", "index")
		found.want(t, "index.server", doctor.Failure, "password authentication failed", "correct the user")
		found.want(t, "index.schema", doctor.NotTested)
		found.hides(t, "tell-nobody")
	})
	t.Run("no database", func(t *testing.T) {
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/nothing"
		found := examine(t, settings{"BCTL_INDEX": u.String()}, "", "index")
		found.want(t, "index.server", doctor.Failure, `database "nothing" does not exist`, "create the database")
	})
	t.Run("nobody there", func(t *testing.T) {
		found := examine(t, settings{"BCTL_INDEX": "postgres://u:tell-nobody@127.0.0.1:1/d?sslmode=disable"}, "", "index")
		found.want(t, "index.server", doctor.Failure, "connection refused", "start Postgres")
		found.hides(t, "tell-nobody")
	})
	t.Run("no TLS there", func(t *testing.T) {
		found := examine(t, settings{"BCTL_INDEX": strings.Replace(dsn, "sslmode=disable", "sslmode=require", 1)}, "", "index")
		found.want(t, "index.server", doctor.Failure, "enable TLS on the server")
	})
	t.Run("time limits", func(t *testing.T) {
		dsn := testenv.Postgres(t)
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		execute(t, dsn, "ALTER DATABASE "+u.Path[1:]+" SET statement_timeout = '30s'")
		found := examine(t, settings{"BCTL_INDEX": dsn}, "", "index")
		found.want(t, "index.timeouts", doctor.Warning, "statement_timeout is 30 s")
	})
	t.Run("old schema", func(t *testing.T) {
		dsn := testenv.Postgres(t)
		s := inPostgres(t, dsn)
		examine(t, s, "", "index").want(t, "index.schema", doctor.OK)
		execute(t, dsn, "DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)")
		examine(t, s, "", "index").want(t, "index.schema", doctor.Failure, "run bctl migrate")
	})
	t.Run("poolers", func(t *testing.T) {
		found := examine(t, settings{"BCTL_INDEX": pooled(t, dsn, true)}, "", "index")
		found.want(t, "index.pooler", doctor.Failure, "to other clients between transactions", "session mode")
		found = examine(t, settings{"BCTL_INDEX": pooled(t, dsn, false)}, "", "index")
		found.want(t, "index.pooler", doctor.OK, "session mode")
	})
}

// The roles of an installation have exactly the privileges that they need.
func TestPostgresRoles(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t)
	prefix := "r" + strings.ToLower(rand.Text()[:8])
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	roles := []installation.Role{installation.Walker, installation.Reader, installation.Committer, installation.Operator, installation.Pruner, installation.Scrubber, installation.Restorer}
	statements := []string{"ALTER DATABASE " + u.Path[1:] + " SET bctl.roles = '" + prefix + "'", "REVOKE TEMPORARY ON DATABASE " + u.Path[1:] + " FROM PUBLIC"}
	for _, role := range append(roles, installation.Admin, installation.Monitor) {
		statements = append(statements, "CREATE ROLE "+prefix+"_"+string(role)+" LOGIN PASSWORD 'p'")
	}
	execute(t, dsn, append(statements, "GRANT TEMPORARY ON DATABASE "+u.Path[1:]+" TO "+prefix+"_committer")...)
	t.Cleanup(func() {
		for _, role := range append(roles, installation.Admin, installation.Monitor) {
			execute(t, dsn, "DROP OWNED BY "+prefix+"_"+string(role), "DROP ROLE "+prefix+"_"+string(role))
		}
	})
	s := inPostgres(t, dsn)
	login := func(role installation.Role) settings {
		return s.with(settings{"BCTL_INDEX": as(t, dsn, prefix+"_"+string(role), "p")})
	}
	for _, role := range roles {
		found := examine(t, login(role), role, "index")
		found.want(t, "index.privileges", doctor.OK, "tables checked")
		found.want(t, "index.schema", doctor.OK)
		found.want(t, "index.session", doctor.OK)
		found.want(t, "index.user", doctor.OK, prefix)
	}
	t.Run("older than the store", func(t *testing.T) {
		pruner := login(installation.Pruner)
		examine(t, pruner, installation.Pruner, "index").want(t, "index.current", doctor.OK, "all snapshots")
		record := filepath.Join(s["BCTL_STORE"], store.CommitName(backup.NewSnapshotID()))
		if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o700), os.WriteFile(record, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		examine(t, pruner, installation.Pruner, "index").want(t, "index.current", doctor.Failure, "older than its store", "bctl index catchup")
		if err := os.Remove(record); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("one as another", func(t *testing.T) {
		found := examine(t, login(installation.Walker), installation.Reader, "index")
		found.want(t, "index.privileges", doctor.Failure, "lacks SELECT of chunk_copies", "SELECT of chunks", "has more privileges than a reader needs: SELECT of interrupted_pages")
		found = examine(t, login(installation.Reader), installation.Walker, "index")
		found.want(t, "index.privileges", doctor.Failure, "lacks SELECT of interrupted_pages", "has more privileges than a walker needs: SELECT of chunk_copies", "SELECT of chunks")
	})
	t.Run("a column, and temporary tables", func(t *testing.T) {
		execute(t, dsn, "REVOKE UPDATE (condemned) ON packs FROM "+prefix+"_committer", "REVOKE TEMPORARY ON DATABASE "+u.Path[1:]+" FROM "+prefix+"_committer")
		found := examine(t, login(installation.Committer), installation.Committer, "index")
		found.want(t, "index.privileges", doctor.Failure, "UPDATE of packs (condemned)", "TEMPORARY of the database", "bctl migrate")
	})
	t.Run("too much", func(t *testing.T) {
		execute(t, dsn, "GRANT DELETE, TRUNCATE ON packs TO "+prefix+"_reader")
		found := examine(t, login(installation.Reader), installation.Reader, "index")
		found.want(t, "index.privileges", doctor.Warning, "DELETE of packs", "TRUNCATE of packs")
	})
	t.Run("nothing", func(t *testing.T) {
		execute(t, dsn, "REVOKE ALL ON goose_db_version, repositories FROM "+prefix+"_operator")
		found := examine(t, login(installation.Operator), installation.Operator, "index")
		found.want(t, "index.schema", doctor.Failure, "permission denied", "as the admin")
	})
}

// pooled returns the DSN of a pooler in front of a server. Either all clients share one connection
// to the server, or each has its own, with a process number from the pooler.
func pooled(t testing.TB, dsn string, share bool) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() { // ends with the listener
		var shared net.Conn
		var active atomic.Pointer[net.Conn] // the last sender, which gets the responses
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if !share || shared == nil {
				back, err := net.Dial("tcp", server)
				if err != nil {
					client.Close()
					return
				}
				shared = back
				to := &active
				if !share {
					to = &atomic.Pointer[net.Conn]{}
				}
				to.Store(&client)
				go answer(back, to, share)
				go ask(client, back, to, !share)
				continue
			}
			greet(client)
			go ask(client, shared, &active, false)
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

// answer forwards the server's messages to the active client. If connections are not shared, it
// replaces the number of the server's process.
func answer(from net.Conn, to *atomic.Pointer[net.Conn], keepNumber bool) {
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if at := bytes.Index(buf[:n], []byte("K\x00\x00\x00\x0c")); at >= 0 && !keepNumber {
			binary.BigEndian.PutUint32(buf[at+5:], 1<<30)
		}
		if _, err := (*to.Load()).Write(buf[:n]); err != nil && !keepNumber {
			return
		}
	}
}

// ask forwards a client's messages to the server, except the final one if other clients use the
// connection.
func ask(client, to net.Conn, active *atomic.Pointer[net.Conn], own bool) {
	defer client.Close()
	if own {
		defer to.Close()
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if buf[0] == 'X' && n == 5 && !own {
			return
		}
		active.Store(&client)
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// greet accepts a client, as a pooler with an established connection does.
func greet(client net.Conn) {
	var length [4]byte
	if _, err := io.ReadFull(client, length[:]); err != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, client, int64(binary.BigEndian.Uint32(length[:]))-4); err != nil {
		return
	}
	message := func(kind byte, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
	}
	hello := message('R', "\x00\x00\x00\x00")
	for _, parameter := range []string{"client_encoding\x00UTF8\x00", "standard_conforming_strings\x00on\x00"} {
		hello = append(hello, message('S', parameter)...)
	}
	hello = append(append(hello, message('K', "\x00\x00\x00\x07\x00\x00\x00\x07")...), message('Z', "I")...)
	_, _ = client.Write(hello)
}
