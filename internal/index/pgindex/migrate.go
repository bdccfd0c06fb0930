package pgindex

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/bctl/bctl/migrations"
)

// Migrate implements entindex.Backend. A session advisory lock makes
// concurrent calls wait for each other.
func (b *backend) Migrate(ctx context.Context) (from, to int64, err error) {
	files, err := migrations.FS(migrations.Postgres)
	if err != nil {
		return 0, 0, err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600))
	if err != nil {
		return 0, 0, err
	}
	if from, _, err = b.SchemaVersion(ctx); err != nil {
		return 0, 0, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, b.db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return from, from, err
	}
	if _, err = provider.Up(ctx); err != nil {
		return from, from, b.Wrap(fmt.Errorf("migrate: %w", err))
	}
	to, _, err = b.SchemaVersion(ctx)
	return from, to, err
}

// SchemaVersion implements entindex.Backend. It reads goose's table itself,
// because goose would make one.
func (b *backend) SchemaVersion(ctx context.Context) (have, want int64, err error) {
	if want, err = migrations.Version(migrations.Postgres); err != nil {
		return 0, 0, err
	}
	err = b.pool.QueryRow(ctx, migrations.SelectVersion).Scan(&have)
	var failure *pgconn.PgError
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, &failure) && failure.Code == "42P01" {
		return 0, want, nil // undefined_table
	}
	return have, want, b.Wrap(err)
}
