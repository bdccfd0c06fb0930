package sqliteindex_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/migrations"
)

func TestUpgrade(t *testing.T) {
	path, db := database(t)
	files, err := migrations.FS(migrations.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	indextest.Upgrade(t, goose.DialectSQLite3, files, db, func() index.Index { return open(t, path) })
}

func TestNewerIndex(t *testing.T) {
	path, db := database(t)
	indextest.Newer(t, db, func() index.Index { return open(t, path) })
}

// database returns a new database, and a connection to it beside the index.
func database(t *testing.T) (path string, db *sql.DB) {
	path = filepath.Join(t.TempDir(), "index.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_fk=1&_time_format=sqlite&_timezone=UTC&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is written by then
	return path, db
}
