package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/services/bctl/open"
)

func newMigrate(a *app) *cobra.Command {
	finish := false
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Upgrade the index to this version of bctl",
		Long: `Migrates the schema of the index to this version of bctl. You can run it at any
time, from several processes at once, and while services run.

To upgrade a fleet, run this with the new bctl first, then restart the services
one after another. Services of the previous release work with the new schema
until then. A schema that is newer than this bctl is not changed.

When all services of the fleet have been upgraded, and all machines that
restore, run this with --finish. Older versions are then refused, and the index
stores changed directories as patches, which older versions cannot read.`,
		Example: `  bctl migrate --config fleet.yaml
  bctl migrate --config fleet.yaml --finish`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return migrate(cmd.Context(), a, finish) },
	}
	cmd.Flags().BoolVar(&finish, "finish", false, "all services have been upgraded: refuse older versions from now on")
	return cmd
}

func migrate(ctx context.Context, a *app, finish bool) error {
	i, err := open.Index(ctx, a.cfg, false)
	if err != nil {
		return a.noIndex(ctx, err)
	}
	defer i.Close()
	from, to, err := i.Migrate(ctx)
	if err != nil {
		return err
	}
	if _, err := i.Repository(ctx); errors.Is(err, backup.ErrNoRepository) {
		if lost := a.noIndex(ctx, err); errors.Is(lost, repo.ErrIndexLost) {
			return lost // it was not created just now
		}
	}
	if finish {
		if err := i.RequireNewest(ctx); err != nil {
			return err
		}
	}
	type migratedJSON struct {
		From int64 `json:"from"`
		To   int64 `json:"to"`
	}
	if from == to {
		return a.result(migratedJSON{from, to}, "the index is already at version %d\n", to)
	}
	return a.result(migratedJSON{from, to}, "the index was migrated from version %d to %d\n", from, to)
}
