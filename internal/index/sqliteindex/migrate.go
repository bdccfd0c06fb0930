package sqliteindex

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/migrations"
)

// Migrate implements entindex.Backend. Goose has no lock for SQLite, and needs none: a migration
// and its row in goose's table are one transaction, and only one transaction writes at a time. If
// two processes run the same migration, one fails because the tables exist already. It finds that
// the version has advanced, and tries again.
func (b *backend) Migrate(ctx context.Context) (from, to int64, err error) {
	files, err := migrations.FS(migrations.SQLite)
	if err != nil {
		return 0, 0, err
	}
	before, err := b.Schema(ctx)
	from = before.Version
	if err != nil || from == before.Needed {
		return from, from, err
	}
	if b.writer == nil {
		return from, from, errReadOnly
	}
	db, err := sql.Open("sqlite", b.dsn("immediate", ""))
	if err != nil {
		return from, from, err
	}
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return from, from, err
	}
	for last := int64(-1); ; {
		_, err = provider.Up(ctx)
		after, schemaErr := b.Schema(ctx)
		switch {
		case schemaErr != nil:
			return from, from, schemaErr
		case err == nil:
			return from, after.Version, nil
		case after.Version == last:
			return from, after.Version, b.Wrap(fmt.Errorf("migrate: %w", err))
		}
		last = after.Version
	}
}

// Schema implements entindex.Backend. It reads goose's table itself, because goose is slow, and
// would create the table.
func (b *backend) Schema(ctx context.Context) (s migrations.Schema, err error) {
	if s.Needed, err = migrations.Version(migrations.SQLite); err != nil {
		return s, err
	}
	err = b.readers.QueryRowContext(ctx, migrations.SelectVersion).Scan(&s.Version)
	if errors.Is(err, sql.ErrNoRows) || err != nil && strings.Contains(err.Error(), "no such table") {
		return s, nil
	}
	if err != nil || !s.Newer() {
		return s, b.Wrap(err)
	}
	var version, oldest sql.NullInt64
	err = b.readers.QueryRowContext(ctx, migrations.SelectOldest).Scan(&version, &oldest)
	if err == nil && version.Int64 == s.Version {
		s.Oldest = oldest.Int64
	}
	return s, b.Wrap(err)
}
