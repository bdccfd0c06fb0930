package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Postgres returns the DSN (postgres://…) of a fresh, empty database, which is dropped when the
// test ends. It is in the server of TEST_POSTGRES_DSN, whose user must be allowed to create
// databases, or in a private cluster that all tests of the binary share. Commits are not durable
// there: a test that crashes the server needs PostgresServer.
func Postgres(t testing.TB) string {
	t.Helper()
	skipIfShort(t)
	dsn := os.Getenv("TEST_POSTGRES_DSN")
	if dsn == "" {
		cluster, err := sharedCluster()
		if err != nil {
			t.Fatalf("%v", err)
		}
		dsn = cluster.DSN()
	}
	return newDatabase(t, dsn, "template1")
}

// ShiftClock shifts the clock of a database for all later connections. With a negative by, the
// clocks of its clients appear to be ahead.
func ShiftClock(t testing.TB, dsn string, by time.Duration) {
	t.Helper()
	shiftClock(t, dsn, by, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = "+shiftedPath+"', current_database()); END $$")
}

// ShiftedClock returns a DSN for the same database whose connections have a shifted clock. With a
// negative by, the clock of the client that uses this DSN appears to be ahead of the others.
func ShiftedClock(t testing.TB, dsn string, by time.Duration) string {
	t.Helper()
	shiftClock(t, dsn, by)
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("search_path", shiftedPath)
	address.RawQuery = query.Encode()
	return address.String()
}

// shiftedPath is a search path with the shifted functions before those of pg_catalog.
const shiftedPath = "shifted,public,pg_catalog"

func shiftClock(t testing.TB, dsn string, by time.Duration, more ...string) {
	t.Helper()
	for _, statement := range append([]string{
		"CREATE SCHEMA IF NOT EXISTS shifted",
		fmt.Sprintf("CREATE OR REPLACE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "+
			"$$ SELECT pg_catalog.clock_timestamp() + interval '%d microseconds' $$", by.Microseconds()),
		"GRANT USAGE ON SCHEMA shifted TO PUBLIC",
	}, more...) {
		if err := executeOn(dsn, statement); err != nil {
			t.Fatalf("shift the clock of the database: %v", err)
		}
	}
}

// PostgresCopy returns the DSN of a copy of a database that Postgres returned. No client may be
// connected to the original.
func PostgresCopy(t testing.TB, dsn string) string {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	template := strings.TrimPrefix(address.Path, "/")
	address.Path = "/postgres"
	return newDatabase(t, address.String(), template)
}

// sharedCluster lives as long as the test binary: the server dies with it, and its janitor then
// tidies up.
var sharedCluster = sync.OnceValues(func() (*Cluster, error) { return OpenCluster(Fast) })

// newDatabase makes a copy of the template in the server of dsn.
func newDatabase(t testing.TB, dsn, template string) string {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil || (address.Scheme != "postgres" && address.Scheme != "postgresql") {
		t.Fatal("TEST_POSTGRES_DSN must be a postgres:// URL")
	}
	name := "test_" + randomName()
	CopyDatabase(t, dsn, template, name)
	address.Path = "/" + name
	return address.String()
}

// CopyDatabase makes a copy of a database in the server of dsn, and drops it when the test ends. No
// client may be connected to the original.
func CopyDatabase(t testing.TB, dsn, original, name string) {
	t.Helper()
	if err := executeOn(dsn, "CREATE DATABASE "+name+" TEMPLATE "+original); err != nil {
		t.Fatalf("make a database in the server of TEST_POSTGRES_DSN, or in the test's own: %v", err)
	}
	t.Cleanup(func() {
		// FORCE: a pool that the test forgot to close shall not keep the database.
		if err := executeOn(dsn, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
}

// executeOn runs one statement over a connection of its own.
func executeOn(dsn, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		_, err = conn.Exec(ctx, statement)
		var failure *pgconn.PgError
		// object_in_use: somebody else copies the template at this moment.
		if !errors.As(err, &failure) || failure.Code != "55006" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}

// ClusterServer is a Postgres server of one test's own, with fsync on, for tests that stop and
// start it.
type ClusterServer struct {
	cluster *Cluster
	dsn     string
}

// PostgresServer starts a Postgres server for this test alone, and makes one empty database in it.
func PostgresServer(t testing.TB) *ClusterServer {
	t.Helper()
	skipIfShort(t)
	cluster, err := OpenCluster(Durable)
	if err != nil {
		t.Fatalf("%v", err)
	}
	cluster.process.fail = t.Fatalf
	server := &ClusterServer{cluster: cluster}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("postgres wrote:\n%s", cluster.process.Output())
		}
		if err := cluster.Close(); err != nil {
			t.Errorf("remove the cluster: %v", err)
		}
	})
	address, err := url.Parse(cluster.DSN())
	if err != nil {
		t.Fatal(err)
	}
	if err := executeOn(cluster.DSN(), "CREATE DATABASE test"); err != nil {
		t.Fatalf("make a database: %v", err)
	}
	address.Path = "/test"
	server.dsn = address.String()
	return server
}

// DSN returns where the test's database is. It stays the same over restarts.
func (s *ClusterServer) DSN() string { return s.dsn }

// Kill ends the server without a checkpoint: its next start recovers from the log, as after a
// crash. It sends SIGQUIT: after SIGKILL, backends remain, and the server cannot start while they
// use the shared memory.
func (s *ClusterServer) Kill() { s.cluster.process.stop(syscall.SIGQUIT) }

// Stop ends the server cleanly, without waiting for its clients.
func (s *ClusterServer) Stop() { s.cluster.process.stop(syscall.SIGINT) }

// Restart kills the server if it runs, starts it again on the same port, and waits until it takes
// connections.
func (s *ClusterServer) Restart() {
	s.Kill()
	s.cluster.process.Restart()
}

// Pause stops the server, with the processes of its connections, until Resume: nothing is answered.
func (s *ClusterServer) Pause() {
	s.cluster.process.Pause()
	s.signalConnections(syscall.SIGSTOP)
}

// Resume lets a paused server go on.
func (s *ClusterServer) Resume() {
	s.signalConnections(syscall.SIGCONT)
	s.cluster.process.Resume()
}

// signalConnections sends a signal to the children of the server, which lead groups of their own.
func (s *ClusterServer) signalConnections(signal syscall.Signal) {
	pid := strconv.Itoa(s.cluster.process.PID())
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		return // it has ended
	}
	for _, child := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, signal) // it may end at this moment
		}
	}
}

// Process gives the server's process, to hang it (SIGSTOP) or read its output.
func (s *ClusterServer) Process() *Process { return s.cluster.process }
