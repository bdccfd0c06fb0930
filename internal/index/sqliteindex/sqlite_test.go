package sqliteindex_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

func TestIndex(t *testing.T) { indextest.Run(t, fresh, fresh) }

func fresh(t testing.TB) indextest.Database {
	path, db := database(t)
	return indextest.Database{Open: func() index.Index { return open(t, path) }, SQL: db}
}

// database returns a new database, and a connection to it for the test.
func database(t testing.TB) (path string, db *sql.DB) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "index.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_fk=1&_time_format=sqlite&_timezone=UTC&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // all writes are committed by now
	return path, db
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
