package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/store"
)

func newDeployRotate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate DIR [NAME…]",
		Short: "Create the next generation of certificates and keys",
		Long: `Creates new certificates and keys for the named identities and servers (bctl
deploy show lists them), or for all except the authority. Servers accept both
generations of an identity until bctl deploy retire. Before that, copy the new
folders to the servers and reload them; then copy the new folders to the
machines of the identities. Services use a new certificate for their next
connection. They use a new key of the store after a restart.

Rotate the authority (ca) alone. Copy every machine's folder, which then trusts
both authorities, before you rotate anything else: later certificates are signed
by the new authority.`,
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
		Long: `Removes the old generations of the named identities, or of all, from the
configurations. When NATS reloads its configuration (nats-server --signal
reload), it closes their connections. Postgres refuses new connections;
roles.sql describes how to end open ones.

With ca, the old authority is no longer trusted. The command refuses this while
a certificate in use is signed by it.`,
		Example: "  bctl deploy retire fleet\n  bctl deploy retire fleet reader@paris\n  bctl deploy retire fleet ca",
		Args:    onlyDir(-1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeInstallation(args[0], func(i *installation.Installation) error { return i.Retire(args[1:]...) })
		},
	}
}

func newDeployRefresh(a *app) *cobra.Command {
	var r installation.Refreshing
	cmd := &cobra.Command{
		Use:   "refresh DIR",
		Short: "Rewrite the configuration files for this version of bctl",
		Long: `Writes all configurations and settings again, after an upgrade of bctl or to add
a site or an operator. Existing certificates and keys are not changed.

With --object-lock, objects are locked from now on. This is possible only at
Amazon, and only if they were not locked before: in all other cases the command
explains why it changes nothing.`,
		Example: `  bctl deploy refresh fleet
  bctl deploy refresh fleet --site lima
  bctl deploy refresh fleet --operator alice --operator bob
  bctl deploy refresh fleet --object-lock governance`,
		Args: onlyDir(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			// A settings file is that of another process, and off is its default.
			if text, _ := a.env("BCTL_STORE_OBJECT_LOCK"); text != "" || cmd.Flags().Changed("object-lock") {
				mode, err := store.ParseLockMode(a.cfg.Store.ObjectLock)
				if err != nil {
					return wrongSetting(fmt.Errorf("--object-lock: %w", err))
				}
				r.ObjectLock = &mode
			}
			return a.changeInstallation(args[0], func(i *installation.Installation) error { return i.Refresh(time.Now(), r) })
		},
	}
	cmd.Flags().StringSliceVar(&r.Sites, "site", nil, "add this `SITE` (may be repeated)")
	cmd.Flags().StringSliceVar(&r.Operators, "operator", nil, "add an operator's identity for this `PERSON` (may be repeated)")
	return cmd
}

// changeInstallation changes an installation and then shows it.
func (a *app) changeInstallation(dir string, do func(*installation.Installation) error) error {
	if err := inInstallation(dir, do); err != nil {
		return err
	}
	return a.showInstallation(dir)
}
