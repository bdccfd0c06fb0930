package pgindex_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/e2e/testenv"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/pgindex"
)

func TestIndex(t *testing.T) { indextest.Run(t, fresh) }

func fresh(t testing.TB) indextest.Database {
	dsn := testenv.Postgres(t)
	return indextest.Database{
		Open: func() index.Index { return open(t, dsn) },
		Rows: func(table string) (n int) {
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
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
