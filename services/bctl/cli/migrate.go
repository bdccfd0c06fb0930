package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/services/bctl/open"
)

func newMigrate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Upgrade the index to this version of bctl",
		Long: `Brings the schema of the index up to this version of bctl. It may be run at any
time, by several processes at once, and while services run.

To upgrade a fleet, run this with the new bctl first, and then restart the
services one after another. Until then those of the release before work with the
new schema. A schema that is newer than this bctl is left as it is.`,
		Example: `  bctl migrate --config fleet.yaml`,
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return migrate(cmd.Context(), a) },
	}
}

func migrate(ctx context.Context, a *app) error {
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
	if a.json {
		return a.print(struct {
			From int64 `json:"from"`
			To   int64 `json:"to"`
		}{from, to})
	}
	if from == to {
		_, err = fmt.Fprintf(a.out, "the index is at version %d already\n", to)
	} else {
		_, err = fmt.Fprintf(a.out, "the index went from version %d to %d\n", from, to)
	}
	return err
}
