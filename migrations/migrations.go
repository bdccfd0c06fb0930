// Package migrations is the versioned schema of the index, a directory a
// dialect, in goose's form: NNNNN_name.sql. A released migration never changes.
//
// Tables of entities come from internal/index/ent/migratediff. The hot tables
// (pages, chunks, pack_dependencies) are written by hand.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// A Dialect is the name of a directory of migrations.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres"
	SQLite   Dialect = "sqlite"
)

// FS returns the migrations of a dialect.
func FS(d Dialect) (fs.FS, error) { return fs.Sub(files, string(d)) }

// SelectVersion reads the version of a database from goose's table, which is
// not there before the first migration. It returns no row after all were undone.
const SelectVersion = "SELECT version_id FROM goose_db_version WHERE is_applied ORDER BY id DESC LIMIT 1"

// Version returns the version of the schema that this binary needs: that of
// the dialect's last migration.
func Version(d Dialect) (int64, error) {
	entries, err := files.ReadDir(string(d))
	if err != nil || len(entries) == 0 {
		return 0, fmt.Errorf("no migrations of %s: %w", d, err)
	}
	digits, _, _ := strings.Cut(entries[len(entries)-1].Name(), "_")
	return strconv.ParseInt(digits, 10, 64)
}
