package pgindex_test

import (
	"database/sql"
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/migrations"
)

func TestDowngrade(t *testing.T) {
	dsn, db := database(t)
	files, err := migrations.FS(migrations.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	tables := func() (names []string) {
		err := db.QueryRowContext(t.Context(), "SELECT array_agg(relname::text) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')").Scan(pgtype.NewMap().SQLScanner(&names))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	indextest.Downgrade(t, goose.DialectPostgres, files, db, tables, func() index.Index { return open(t, dsn) })
}

func TestParityOfBefore(t *testing.T) {
	dsn, db := database(t)
	files, err := migrations.FS(migrations.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	indextest.ParityOfBefore(t, goose.DialectPostgres, files, db, func() index.Index { return open(t, dsn) })
}

func TestNewerIndex(t *testing.T) {
	dsn, db := database(t)
	indextest.Newer(t, db, func() index.Index { return open(t, dsn) })
}

// A migration that waits for a table soon gives up, because services would wait behind it, and
// tries again.
func TestMigrateTriesAgain(t *testing.T) {
	dsn, db := database(t)
	files, err := migrations.FS(migrations.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), 1); err != nil { // the next migration writes schema_versions
		t.Fatal(err)
	}
	reader, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Rollback()
	if _, err := reader.ExecContext(t.Context(), "LOCK TABLE schema_versions IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("lock_timeout", "300ms")
	address.RawQuery = query.Encode()
	x, migrated := open(t, address.String()), make(chan error, 1)
	go func() { _, _, err := x.Migrate(t.Context()); migrated <- err }()
	for waits := map[string]bool{}; len(waits) < 2; {
		select {
		case err := <-migrated:
			t.Fatalf("migrated while another reads: %v", err)
		default:
		}
		var since string
		err := db.QueryRowContext(t.Context(), "SELECT waitstart::text FROM pg_locks WHERE relation = 'schema_versions'::regclass AND NOT granted AND waitstart IS NOT NULL").Scan(&since)
		if err == nil {
			waits[since] = true
		} else if !errors.Is(err, sql.ErrNoRows) {
			t.Fatal(err)
		}
	}
	if err := reader.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	if err := x.CheckSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// database returns a new database, and a connection to it for the test.
func database(t *testing.T) (dsn string, db *sql.DB) {
	dsn = testenv.Postgres(t)
	return dsn, connect(t, dsn)
}
