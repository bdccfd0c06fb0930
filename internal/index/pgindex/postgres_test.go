package pgindex_test

import (
	"database/sql"
	"testing"

	"github.com/bctl/bctl/e2e/testenv"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/pgindex"
)

func TestIndex(t *testing.T) { indextest.Run(t, fresh) }

func fresh(t testing.TB) indextest.Database {
	dsn := testenv.Postgres(t)
	return indextest.Database{Open: func() index.Index { return open(t, dsn) }, SQL: connect(t, dsn), UUIDs: true}
}

func connect(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is written by then
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
