package pgindex

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/internal/testenv"
)

// A lost fixture is an index, and an administrator's connection to its database.
type lost struct {
	*testing.T
	x     *Index
	admin *pgx.Conn
}

func newLost(t *testing.T) *lost {
	dsn := testenv.Postgres(t)
	x, err := Open(t.Context(), dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(t.Context())) })
	return &lost{t, x, admin}
}

// count counts the other connections that satisfy a condition on pg_stat_activity.
func (l *lost) count(condition string) (n int) {
	l.Helper()
	err := l.admin.QueryRow(l.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "+condition).Scan(&n)
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// until waits until done holds for the number of other connections that satisfy a condition.
func (l *lost) until(condition string, done func(n int) bool) {
	l.Helper()
	for !done(l.count(condition)) {
		select {
		case <-l.Context().Done():
			l.Fatal(l.Context().Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (l *lost) exec(query string) {
	l.Helper()
	if _, err := l.admin.Exec(l.Context(), query); err != nil {
		l.Fatal(err)
	}
}

// A server whose disk is full is away for those who write, until some time after the last failure.
func TestFullDisk(t *testing.T) {
	l := newLost(t)
	l.exec(`CREATE FUNCTION extend() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN RAISE EXCEPTION ''could not extend file: No space left on device'' USING ERRCODE = ''53100''; END'`)
	l.exec("CREATE TRIGGER extend BEFORE INSERT ON filers FOR EACH ROW EXECUTE FUNCTION extend()")
	_, err := l.x.AddFiler(t.Context(), backup.Filer{Name: "nas1"})
	if !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("a write to a full disk: %v", err)
	}
	if err := l.x.Writable(t.Context()); !errors.Is(err, backup.IndexAway) || !strings.Contains(err.Error(), "its disk is full: ") {
		t.Errorf("its disk is full: %v", err)
	}
	full := &l.x.backend.full
	if now := time.Now(); full.refused(now.Add(fullFor-time.Second)) == nil || full.refused(now.Add(fullFor+time.Second)) != nil {
		t.Error("a failure does not count for as long as it should")
	}
}

// A server that accepts no writes is away for those who write.
func TestWritable(t *testing.T) {
	l := newLost(t)
	if err := l.x.Writable(t.Context()); err != nil {
		t.Error(err)
	}
	for range 10 { // on each connection of the pool
		if _, err := l.x.backend.pool.Exec(t.Context(), "SET default_transaction_read_only = on"); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.x.Writable(t.Context()); !errors.Is(err, errNotWritable) || !errors.Is(err, backup.IndexAway) {
		t.Errorf("it is read-only: %v", err)
	}
}

// A server on which another session has locked tables is away for those who write, after some time.
func TestLockedTables(t *testing.T) {
	l := newLost(t)
	for mode, locks := range map[string]bool{"ACCESS EXCLUSIVE": true, "SHARE": true, "SHARE UPDATE EXCLUSIVE": false, "ROW EXCLUSIVE": false} {
		tx, err := l.admin.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "LOCK TABLE snapshots, packs IN "+mode+" MODE")
		}
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if locks {
			want = []string{"packs", "snapshots"}
		}
		if tables, err := l.x.lockedTables(t.Context()); err != nil || !slices.Equal(tables, want) {
			t.Errorf("%s: locked: %q, %v, want %q", mode, tables, err, want)
		}
		if err := l.x.Writable(t.Context()); err != nil {
			t.Errorf("%s: locked for a moment: %v", mode, err)
		}
		if locks {
			l.x.backend.locked.since = time.Now().Add(-lockedFor)
			if err := l.x.Writable(t.Context()); !errors.Is(err, backup.IndexAway) || !strings.Contains(err.Error(), "locked tables (packs, snapshots)") {
				t.Errorf("%s: locked: %v", mode, err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.x.Writable(t.Context()); err != nil {
			t.Errorf("%s: not locked any more: %v", mode, err)
		}
	}
}

// When the server ends connections, idle or in the middle of a transaction, each causes at most one
// error, which reports it. After that, calls succeed.
func TestConnectionsThatTheServerEnds(t *testing.T) {
	l := newLost(t)
	const endOthers = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
	claim := index.Claim{Lease: time.Minute, Limit: 1, Now: time.Now()}

	// A claim that waits for its turn loses its connection.
	l.exec("BEGIN")
	l.exec("SELECT pg_advisory_xact_lock(1650684012, 1)")
	failed := make(chan error, 1)
	go func() {
		_, err := l.x.ClaimTasks(t.Context(), claim)
		failed <- err
	}()
	l.until("wait_event = 'advisory'", func(n int) bool { return n == 1 })
	l.exec(endOthers)
	if err := <-failed; !errors.Is(err, backup.ErrUnavailable) {
		t.Fatalf("error %v, want that the index is unavailable", err)
	}
	l.exec("COMMIT")

	// All connections of the pool are gone: each may cause one error.
	if _, err := l.x.ClaimTasks(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	l.exec(endOthers)
	l.until("true", func(n int) bool { return n == 0 })
	for range 10 {
		if _, err := l.x.Snapshots(t.Context(), index.SnapshotFilter{}); err == nil {
			break
		} else if !errors.Is(err, backup.ErrUnavailable) {
			t.Fatalf("error %v, want that the index is unavailable", err)
		}
	}
	if _, err := l.x.ClaimTasks(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}

// A connection that is idle in a transaction is ended, which releases its locks.
func TestSleepInATransaction(t *testing.T) {
	l := newLost(t)
	for setting, want := range map[string]string{"idle_in_transaction_session_timeout": "5s", "tcp_user_timeout": "5000", "tcp_keepalives_idle": "2", "client_connection_check_interval": "1s"} {
		var got string
		if err := l.x.backend.pool.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %s", setting, got, err, want)
		}
	}
	err := l.x.backend.Update(t.Context(), entindex.Durable, func(ctx context.Context, tx *entindex.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET idle_in_transaction_session_timeout = 1"); err != nil {
			return err
		}
		l.until("state = 'idle in transaction'", func(n int) bool { return n == 0 })
		_, err := tx.ExecContext(ctx, "SELECT 1")
		return err
	})
	if !errors.Is(err, backup.ErrUnavailable) {
		t.Fatalf("error %v, want that the index is unavailable", err)
	}
	if _, err := l.x.EnsureFiler(t.Context(), "filer"); err != nil {
		t.Fatal(err)
	}
}
