package sqliteindex_test

import (
	"database/sql"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/migrations"
)

func TestDowngrade(t *testing.T) {
	path, db := database(t)
	files, err := migrations.FS(migrations.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	tables := func() (names []string) {
		rows, err := db.QueryContext(t.Context(), "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
		if err != nil {
			t.Fatal(err)
		}
		return collect(t, rows)
	}
	indextest.Downgrade(t, goose.DialectSQLite3, files, db, tables, func() index.Index { return open(t, path) })
}

func TestParityOfBefore(t *testing.T) {
	path, db := database(t)
	files, err := migrations.FS(migrations.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	indextest.ParityOfBefore(t, goose.DialectSQLite3, files, db, func() index.Index { return open(t, path) })
}

// collect returns the rows of a query with one text column.
func collect(t *testing.T, rows *sql.Rows) (texts []string) {
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return texts
}

func TestNewerIndex(t *testing.T) {
	path, db := database(t)
	indextest.Newer(t, db, func() index.Index { return open(t, path) })
}
