// Command migratediff writes the next migration of the index's entities. It replays the existing
// migrations into an empty database, and writes the difference between that and the entities. If
// there is none, it writes nothing. It ignores tables that are not entities: their migrations are
// written by hand.
//
//	go run ./internal/index/ent/migratediff -name add_policies
//
// The SQLite migration is made with an in-memory database. The Postgres one needs an empty
// development database in BCTL_DEV_POSTGRES (postgres://…), and is skipped with a message if that
// is not set.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/sqltool"
	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/schema"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/bctl/bctl/internal/index/ent/migrate"
)

func main() {
	name := flag.String("name", "entities", "what the migration is called")
	directory := flag.String("migrations", "migrations", "directory of the migrations")
	flag.Parse()
	if err := run(context.Background(), *directory, *name); err != nil {
		fmt.Fprintln(os.Stderr, "migratediff:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, directory, name string) error {
	version, err := nextVersion(directory)
	if err != nil {
		return err
	}
	name = fmt.Sprintf("%05d_%s", version, name)
	const inMemory = "file:migratediff?mode=memory&cache=shared&_pragma=foreign_keys(1)"
	if err := diff(ctx, filepath.Join(directory, "sqlite"), name, "sqlite", dialect.SQLite, inMemory); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	dsn := os.Getenv("BCTL_DEV_POSTGRES")
	if dsn == "" {
		fmt.Fprintln(os.Stderr, "migratediff: BCTL_DEV_POSTGRES is not set: no Postgres migration is made")
		return nil
	}
	if err := diff(ctx, filepath.Join(directory, "postgres"), name, "pgx", dialect.Postgres, dsn); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// nextVersion returns the version after that of the last migration of any dialect. A dialect may
// lack the versions that only another one needs.
func nextVersion(directory string) (int, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*", "*.sql"))
	if err != nil {
		return 0, err
	}
	last := 0
	for _, file := range files {
		digits, _, _ := strings.Cut(filepath.Base(file), "_")
		version, err := strconv.Atoi(digits)
		if err != nil {
			return 0, fmt.Errorf("%s has no version: %w", file, err)
		}
		last = max(last, version)
	}
	return last + 1, nil
}

// diff writes the migration as name.sql.
func diff(ctx context.Context, directory, name, driver, dialectName, dsn string) error {
	before, err := filepath.Glob(filepath.Join(directory, "*.sql"))
	if err != nil {
		return err
	}
	goose, err := sqltool.NewGooseDir(directory)
	if err != nil {
		return err
	}
	// Atlas requires a sum file beside the migrations. It is not kept: the migrations are embedded,
	// and git already versions them.
	sum, err := goose.Checksum()
	if err != nil {
		return err
	}
	if err := atlas.WriteSumFile(goose, sum); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(directory, atlas.HashFileName))
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	err = migrate.NewSchema(entsql.OpenDB(dialectName, db)).NamedDiff(ctx, name,
		schema.WithDir(goose), schema.WithFormatter(sqltool.GooseFormatter),
		schema.WithMigrationMode(schema.ModeReplay), schema.WithDropColumn(true), schema.WithDropIndex(true))
	if err != nil {
		return err
	}
	after, err := filepath.Glob(filepath.Join(directory, "*.sql"))
	switch {
	case err != nil:
		return err
	case len(after) == len(before):
		return nil
	case len(after) != len(before)+1:
		return errors.New("more than one new migration")
	}
	// Atlas names the file by the clock, which sorts it last.
	return os.Rename(after[len(after)-1], filepath.Join(directory, name+".sql"))
}
