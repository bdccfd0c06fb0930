package pgindex_test

import (
	"database/sql"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/e2e/testenv"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/migrations"
)

func TestUpgrade(t *testing.T) {
	dsn := testenv.Postgres(t)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	files, err := migrations.FS(migrations.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	indextest.Upgrade(t, goose.DialectPostgres, files, db, func() index.Index { return open(t, dsn) })
}
