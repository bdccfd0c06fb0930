package sqliteindex_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

func TestIndex(t *testing.T) { indextest.Run(t, fresh) }

func fresh(t testing.TB) indextest.Database {
	path := filepath.Join(t.TempDir(), "index.db")
	return indextest.Database{
		Open: func() index.Index { return open(t, path) },
		Rows: func(table string) (n int) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

func open(t testing.TB, path string) *sqliteindex.Index {
	t.Helper()
	x, err := sqliteindex.Open(t.Context(), path)
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
