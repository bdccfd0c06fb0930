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

// Migrate implements entindex.Backend. Goose has no lock for SQLite, and needs
// none: a migration and its row in goose's table are one transaction, which is the only one that
// writes. Of two processes at the same migration one fails, because the
// tables are there already; it sees that the version has moved on, and tries again.
func (b *backend) Migrate(ctx context.Context) (from, to int64, err error) {
	files, err := migrations.FS(migrations.SQLite)
	if err != nil {
		return 0, 0, err
	}
	from, want, err := b.SchemaVersion(ctx)
	if err != nil || from == want {
		return from, from, err
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
		to, _, versionErr := b.SchemaVersion(ctx)
		switch {
		case versionErr != nil:
			return from, from, versionErr
		case err == nil:
			return from, to, nil
		case to == last:
			return from, to, b.Wrap(fmt.Errorf("migrate: %w", err))
		}
		last = to
	}
}

// SchemaVersion implements entindex.Backend. It reads goose's table itself,
// because goose would make one, and takes its time.
func (b *backend) SchemaVersion(ctx context.Context) (have, want int64, err error) {
	if want, err = migrations.Version(migrations.SQLite); err != nil {
		return 0, 0, err
	}
	err = b.readers.QueryRowContext(ctx, migrations.SelectVersion).Scan(&have)
	if errors.Is(err, sql.ErrNoRows) || err != nil && strings.Contains(err.Error(), "no such table") {
		return 0, want, nil
	}
	return have, want, b.Wrap(err)
}
