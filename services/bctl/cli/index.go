package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

func newIndex(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "index", Short: "Rebuild a lost index"})
	cmd.AddCommand(newIndexRebuild(a))
	return cmd
}

type indexRebuild struct {
	app    *app
	signer string
}

func newIndexRebuild(a *app) *cobra.Command {
	c := &indexRebuild{app: a}
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Rebuild this machine's index from its copy in the store",
		Long: `Rebuilds a lost or damaged index file from the newest undamaged copy in the
store. Each backup on one machine that changes anything puts a copy there. The
command needs the identity.

An index that is damaged, or older than the store, is moved aside. An undamaged
index that knows all snapshots in the store, and has made the newest copy there,
is not changed.

Snapshots made after the copy are listed, and the exit status is 3: their
content is in the store, but this release cannot recover them. The exit status
is also 3 if pages of directories are damaged; the directories are listed.
Backups work afterwards.

While a backup runs, or another command writes to the index, the exit status is
11.`,
		Example: `  bctl index rebuild --repo /backup
  bctl index rebuild --repo /backup --identity /media/usb/backup-key.txt`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&c.signer, "signer", "", "trust this `SIGNER`, if no file on this machine names the repository's")
	return cmd
}

func (c *indexRebuild) run(ctx context.Context) error {
	a := c.app
	path, local := a.cfg.IndexPath()
	if !local {
		return usage("the index is in Postgres: restore the database from its last dump (bctl index rebuild is for a SQLite index)")
	}
	if path == "" {
		return usage("name the repository: --repo DIR")
	}
	s, err := open.Store(ctx, a.cfg, false, a.log)
	if err != nil {
		return err
	}
	defer s.Close()
	trust, err := c.trust(ctx, s)
	if err != nil {
		return err
	}
	if err := a.lockIndex(true); err != nil {
		return err
	}
	r := &rebuild{app: a, store: s, trust: trust, path: path}
	if err := r.run(ctx); err != nil {
		return err
	}
	return r.report(ctx)
}

// trust determines the signer of the store's objects, and the identity that opens them.
func (c *indexRebuild) trust(ctx context.Context, s store.Store) (t journal.Trust, err error) {
	object, err := repo.ReadObject(ctx, s)
	if err != nil {
		return t, err
	}
	if err := c.checkKeys(object.ID); err != nil {
		return t, err
	}
	identity, err := repo.FindIdentity(c.app.cfg.Identity, object.ID, c.app.ask(ctx))
	if err != nil {
		return t, err
	}
	signer, from := identity.Signer, identity.Path
	if signer == (seal.Signer{}) {
		if key, err := repo.ReadCommitterKey(c.app.cfg.CommitterKey, object.ID); err == nil {
			signer, from = key.Signing.Signer(), c.app.cfg.CommitterKey
		} else if key, err := repo.ReadWorkerKey(c.app.cfg.WorkerKey, object.ID); err == nil {
			signer, from = key.Signer, c.app.cfg.WorkerKey
		}
	}
	if c.signer != "" {
		if signer, err = seal.ParseSigner(c.signer); err != nil {
			return t, usage("%v", err)
		}
		from = "--signer"
	}
	if signer == (seal.Signer{}) {
		return t, fmt.Errorf("no file on this machine names the signer of repository %v. The store names %v: if you know from another source that this is right, pass it with --signer: %w",
			object.ID, object.Signer(), backup.ErrWrongKey)
	}
	if err := object.CheckSigner(signer, from); err != nil {
		return t, err
	}
	opener := rewrap.Opener(ctx, s, &object, identity.Opener)
	return journal.Trust{Repository: object.ID, Signer: signer, Opener: opener}, object.LoadRecipients(ctx, s)
}

// checkKeys returns an error if a key file on this machine belongs to another repository: the
// rebuilt index would then not match the keys, or the store is the wrong one.
func (c *indexRebuild) checkKeys(id backup.RepositoryID) error {
	keys := map[string]func(path string) error{
		c.app.cfg.WorkerKey:    func(path string) error { _, err := repo.ReadWorkerKey(path, id); return err },
		c.app.cfg.CommitterKey: func(path string) error { _, err := repo.ReadCommitterKey(path, id); return err },
	}
	for path, read := range keys {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := read(path); errors.Is(err, backup.ErrWrongKey) {
			return fmt.Errorf("%w. The store %s belongs to the latter: correct --store or --repo, or name the right key files", err, c.app.cfg.Store.URL)
		}
	}
	return nil // without key files, bctl init recreates them
}
