// Package migrations is the versioned schema of the index, a directory a
// dialect, in goose's form: NNNNN_name.sql. A released migration never changes.
//
// Tables of entities come from internal/index/ent/migratediff. The hot tables
// (pages, chunks and what belongs to them) are written by hand.
//
// # Old binaries beside a new schema
//
// A fleet is upgraded by migrating its index first and then restarting its services one by one. Until the last of them
// is new, old ones work with the new schema, and are started with it. So each migration
// says in table schema_versions which binaries can:
//
//	INSERT INTO schema_versions (version, oldest) VALUES (7, 4);
//
// and its Down deletes the row: to the tables as version 7 leaves them binaries can write and read that were
// built for version 4, or any later one. A migration that only adds (tables, columns with a default, indexes) keeps the
// number that its predecessor has. One that takes away (an index of SQLite's pages as well, for queries name
// them), renames, or adds what an old binary would violate raises it, to the first version whose binaries do without; and is released no earlier than one
// release after those. A binary refuses a schema that is too new for it, or does not say.
//
// Services go on while a migration runs: it must not keep a table locked for long. An index on a hot table
// is made CONCURRENTLY (with "-- +goose NO TRANSACTION"), and rows are not rewritten. One that alters tables of Postgres
// begins with SET LOCAL lock_timeout = '5s': while it waits for somebody who reads a table for long (pg_dump), all services would wait
// behind it. Then it is undone, and tried again.
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

// SelectOldest reads the newest version that says which binaries can work with it, and the oldest of these
// binaries' versions. The first migration makes the table.
const SelectOldest = "SELECT max(version), max(oldest) FROM schema_versions"

// A Schema is that of a database, as this binary sees it.
type Schema struct {
	Version int64 // of the database; 0: it has none
	Needed  int64 // of this binary: that of the dialect's last migration
	// Oldest is the version of the oldest binaries that can work with a schema that is newer than this one's; 0:
	// the schema does not say, or is not newer.
	Oldest int64
}

// Compatible reports whether this binary can work with the schema.
func (s Schema) Compatible() bool {
	return s.Version == s.Needed || s.Newer() && s.Oldest > 0 && s.Oldest <= s.Needed
}

// Newer reports whether the schema is newer than this binary.
func (s Schema) Newer() bool { return s.Version > s.Needed }

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
