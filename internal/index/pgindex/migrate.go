package pgindex

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/migrations"
)

// Migrate implements entindex.Backend. Concurrent calls wait for each other on a session advisory
// lock.
func (b *backend) Migrate(ctx context.Context) (from, to int64, err error) {
	files, err := migrations.FS(migrations.Postgres)
	if err != nil {
		return 0, 0, err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600))
	if err != nil {
		return 0, 0, err
	}
	before, err := b.Schema(ctx)
	if err != nil {
		return 0, 0, err
	}
	from = before.Version
	provider, err := goose.NewProvider(goose.DialectPostgres, b.db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return from, from, err
	}
	up := func() error { _, err := provider.Up(ctx); return err }
	if err = entindex.Retry(ctx, lostTurn, up); err != nil {
		return from, from, b.Wrap(fmt.Errorf("migrate: %w", err))
	}
	if from == 0 { // no older services work with it
		if _, err := b.pool.Exec(ctx, migrations.RequirePatches); err != nil {
			return from, from, b.Wrap(fmt.Errorf("migrate: %w", err))
		}
	}
	if err := entindex.Retry(ctx, lostConflict, func() error { return b.grant(ctx) }); err != nil {
		return from, from, b.Wrap(fmt.Errorf("migrate: %w", err))
	}
	after, err := b.Schema(ctx)
	return from, after.Version, err
}

// lostTurn reports that a migration was undone because services or other readers had its tables
// locked: it lost a deadlock with them, or exceeded its own lock timeout. It may be tried again.
func lostTurn(err error) bool {
	return lostConflict(err) || isCode(err, "55P03") // lock_not_available
}

// Schema implements entindex.Backend. It reads goose's table itself, because goose would create it.
func (b *backend) Schema(ctx context.Context) (s migrations.Schema, err error) {
	if s.Needed, err = migrations.Version(migrations.Postgres); err != nil {
		return s, err
	}
	err = b.pool.QueryRow(ctx, migrations.SelectVersion).Scan(&s.Version)
	if errors.Is(err, pgx.ErrNoRows) || isCode(err, "42P01") {
		return s, nil // undefined_table
	}
	if err != nil || !s.Newer() {
		return s, b.Wrap(err)
	}
	var version, oldest *int64
	err = b.pool.QueryRow(ctx, migrations.SelectOldest).Scan(&version, &oldest)
	if err == nil && version != nil && *version == s.Version {
		s.Oldest = *oldest
	}
	return s, b.Wrap(err)
}

// grant gives the roles of an installation, if the database has any, the privileges that this
// version of the schema requires.
func (b *backend) grant(ctx context.Context) error {
	var name string
	if err := b.pool.QueryRow(ctx, migrations.SelectRoles).Scan(&name); err != nil || name == "" {
		return err
	}
	grants, err := migrations.Grants(name)
	if err != nil {
		return fmt.Errorf("setting %s of the database: %w", migrations.RolesSetting, err)
	}
	_, err = b.pool.Exec(ctx, grants) // without arguments: one transaction
	switch {
	case isCode(err, "42704"): // undefined_object
		return fmt.Errorf("privileges of the roles %s_… (run the roles.sql that this version's bctl deploy refresh writes, and migrate again): %w", name, err)
	case err != nil:
		return fmt.Errorf("privileges of the roles %s_…: %w", name, err)
	}
	return nil
}
