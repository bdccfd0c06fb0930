package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/installation"
)

func newDeployRotate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate DIR [NAME…]",
		Short: "Create the next generation of certificates and keys",
		Long: `Makes new certificates and keys of the named identities and servers (bctl deploy
show lists them), or of all but the authority. Servers accept an identity's old
generation as well, until bctl deploy retire. In between: first the servers get
their new folders and read them, then the machines of the identities get theirs.
Services take a new certificate with their next connection; a new key of the
store, with a restart.

ca is rotated alone. Then every machine gets its folder, which trusts both
authorities, before anything else is rotated: that will be signed by the new
one.`,
		Example: "  bctl deploy rotate fleet\n  bctl deploy rotate fleet reader@paris nats/nats1\n  bctl deploy rotate fleet ca",
		Args:    onlyDir(-1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeInstallation(args[0], func(i *installation.Installation) error { return i.Rotate(time.Now(), args[1:]...) })
		},
	}
}

func newDeployRetire(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "retire DIR [NAME…]",
		Short: "Make servers accept only the newest generation",
		Long: `Takes the old generations of the named identities, or of all, out of the
configurations. NATS ends their connections when it reads its own again
(nats-server --signal reload); Postgres refuses new ones, and roles.sql says how
those that are open are ended.

ca: the old authority is trusted no longer. That is refused while anything is
signed by it.`,
		Example: "  bctl deploy retire fleet\n  bctl deploy retire fleet reader@paris\n  bctl deploy retire fleet ca",
		Args:    onlyDir(-1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeInstallation(args[0], func(i *installation.Installation) error { return i.Retire(args[1:]...) })
		},
	}
}

func newDeployRefresh(a *app) *cobra.Command {
	var sites []string
	cmd := &cobra.Command{
		Use:   "refresh DIR",
		Short: "Rewrite the configuration files for this version of bctl",
		Long: `Writes all configurations and settings again: after an upgrade of bctl, or with
a new site. Certificates and keys that exist stay.`,
		Example: "  bctl deploy refresh fleet\n  bctl deploy refresh fleet --site lima",
		Args:    onlyDir(0),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeInstallation(args[0], func(i *installation.Installation) error { return i.Refresh(time.Now(), sites...) })
		},
	}
	cmd.Flags().StringSliceVar(&sites, "site", nil, "add this `SITE` (may be repeated)")
	return cmd
}

// changeInstallation changes an installation and then shows it.
func (a *app) changeInstallation(dir string, do func(*installation.Installation) error) error {
	if err := inInstallation(dir, do); err != nil {
		return err
	}
	return a.showInstallation(dir)
}
