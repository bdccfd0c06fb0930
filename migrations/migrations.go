// Package migrations is the versioned schema of the index: one directory per dialect, in goose's
// format NNNNN_name.sql. A released migration never changes.
//
// Migrations of filers, shards and snapshots come from internal/index/ent/migratediff. Those of all
// other tables are written by hand, although migratediff wrote the first version of some of them
// (docs/decisions/0025-what-ent-atlas-and-goose-own.md).
//
// # Old binaries beside a new schema
//
// To upgrade a fleet, its index is migrated first, and then its services are restarted one by one.
// Until the last service is new, old ones run and are started with the new schema. Therefore each
// migration declares compatible binaries in table schema_versions:
//
//	INSERT INTO schema_versions (version, oldest) VALUES (7, 4);
//
// Its Down deletes the row. This row means that binaries built for version 4 or later can write and
// read the tables that version 7 leaves. A migration that only adds (tables, columns with a
// default, indexes) keeps the number of its predecessor. The number is raised by a migration that
// removes something (also an index of SQLite's pages, because queries name these indexes), renames
// something, or adds something that an old binary would violate. It is raised to the first version
// whose binaries work after that, and such a migration is released no earlier than one release
// after those binaries. A binary refuses a schema that is too new for it, or that does not declare
// compatible binaries.
//
// Services continue while a migration runs, so it must not lock a table for long. An index on a hot
// table is created CONCURRENTLY (with "-- +goose NO TRANSACTION"), and rows are not rewritten. A
// migration that alters tables of Postgres begins with SET LOCAL lock_timeout = '5s': while it
// waits for a long reader of a table (pg_dump), all services would wait behind it. After that time
// it is undone, and tried again.
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

// SelectVersion reads the version of a database from goose's table, which does not exist before the
// first migration. It returns no row after all migrations were undone.
const SelectVersion = "SELECT version_id FROM goose_db_version WHERE is_applied ORDER BY id DESC LIMIT 1"

// SelectOldest reads the newest version that declares its compatible binaries, and the version of
// the oldest of these binaries. The first migration creates the table.
const SelectOldest = "SELECT max(version), max(oldest) FROM schema_versions"

// Binaries of version 11 or later read pages that are stored as patches. They write such pages once
// the schema does not declare older binaries compatible.
const (
	// RequirePatches makes Postgres declare that: it is run for a new database, and by bctl migrate
	// --finish. SQLite has a migration for it.
	RequirePatches = "UPDATE schema_versions SET oldest = 11 WHERE version = 11 AND oldest < 11"
	// WritesPatches is the condition that the schema declares it.
	WritesPatches = "coalesce((SELECT max(oldest) FROM schema_versions) >= 11, false)"
)

// A Schema is the schema of a database, as this binary sees it.
type Schema struct {
	Version int64 // of the database; 0: it has none
	Needed  int64 // by this binary: the dialect's last migration
	// Oldest is the version of the oldest binaries that can work with the schema, if that is newer
	// than this binary's. It is 0 if the schema is not newer, or does not declare it.
	Oldest int64
}

// Compatible reports whether this binary can work with the schema.
func (s Schema) Compatible() bool {
	return s.Version == s.Needed || s.Newer() && s.Oldest > 0 && s.Oldest <= s.Needed
}

// Newer reports whether the schema is newer than this binary.
func (s Schema) Newer() bool { return s.Version > s.Needed }

// Version returns the version of the schema that this binary needs: that of the dialect's last
// migration.
func Version(d Dialect) (int64, error) {
	entries, err := files.ReadDir(string(d))
	if err != nil || len(entries) == 0 {
		return 0, fmt.Errorf("no migrations of %s: %w", d, err)
	}
	digits, _, _ := strings.Cut(entries[len(entries)-1].Name(), "_")
	return strconv.ParseInt(digits, 10, 64)
}
