package pgindex_test

import (
	"database/sql"
	"testing"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/testenv"
)

func TestIndex(t *testing.T) {
	dsn := testenv.Postgres(t)
	x, err := pgindex.Open(t.Context(), dsn, pgindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	// A copy takes a tenth of the time of all migrations.
	migrated := func(t testing.TB) indextest.Database { return databaseAt(t, testenv.PostgresCopy(t, dsn)) }
	indextest.Run(t, fresh, migrated)
}

func fresh(t testing.TB) indextest.Database { return databaseAt(t, testenv.Postgres(t)) }

func databaseAt(t testing.TB, dsn string) indextest.Database {
	return indextest.Database{Open: func() index.Index { return open(t, dsn) }, SQL: connect(t, dsn), UUIDs: true}
}

func connect(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // all writes are committed by now
	return db
}

func open(t testing.TB, dsn string) *pgindex.Index {
	t.Helper()
	x, err := pgindex.Open(t.Context(), dsn, pgindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func BenchmarkIndex(b *testing.B) { indextest.Bench(b, fresh) }
