package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

func newIndex(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "index", Short: "Rebuild a lost index, or bring an old one up to date"})
	cmd.AddCommand(newIndexRebuild(a), newIndexCatchup(a))
	return cmd
}

// An indexCommand makes an index what the store describes.
type indexCommand struct {
	app    *app
	signer string
	// withoutCopy: the copies of the index in the store are not used.
	withoutCopy bool
	// copied: the index had the settings of a catalog before.
	copied bool
	// acceptLoss is how many snapshots that cannot be recovered are lost for good.
	acceptLoss int
}

func newIndexRebuild(a *app) *cobra.Command {
	c := &indexCommand{app: a}
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Rebuild a lost index from the store",
		Long: `Rebuilds a lost or damaged index from the store and the identity alone: filers,
shards, policies, holds, snapshots, and where all content is. An index in
Postgres must be empty: create the database, and run the command as its owner.
An index file that is older than the store is brought up to date in a copy. The
old file stays beside the new one.

Each backup on one machine puts a copy of the index file into the store, which
saves time. What happened after the newest undamaged copy is added to it.

An interrupted rebuild can be run again. Until it is complete, no backup or
prune is made with the index.

Snapshots that cannot be rebuilt, because the store lacks a part of them, are
listed, and the exit status is 10: the rebuild is not complete. If the store is
incomplete, complete it, and run the command again. If they are lost, run it
with --accept-loss and their number. Backups work afterwards, and a prune
deletes what only those snapshots have. The exit status is 3 then, and whenever
something else is lost.

While a backup runs, or another command writes to the index, the exit status is
11.`,
		Example: `  bctl index rebuild --repo /backup
  bctl index rebuild --repo /backup --identity /media/usb/backup-key.txt
  bctl index rebuild --config fleet.yaml --identity backup-key.txt`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.rebuild(cmd.Context()) },
	}
	c.flags(cmd)
	cmd.Flags().BoolVar(&c.withoutCopy, "without-copy", false, "do not use copies of the index file")
	return cmd
}

func newIndexCatchup(a *app) *cobra.Command {
	c := &indexCommand{app: a}
	cmd := &cobra.Command{
		Use:   "catchup",
		Short: "Bring an index up to date that was restored from an older copy",
		Long: `Brings an index up to date that is older than its store: it was restored from a
dump, or from an older copy of its file. It adds the snapshots, settings and
holds that the store has and the index lacks, and removes what was removed
since. It needs the identity.

No backup, prune or change of settings is made with an index that is older than
its store. Stop the services of a fleet first.

An interrupted run can be repeated. Until it is complete, the index counts as
older than its store.

Snapshots that cannot be added are listed, and the exit status is 10: the index
still counts as older. If the store is incomplete, complete it, and run the
command again. If they are lost, run it with --accept-loss and their number: the
exit status is 3 then.

An index that is not older than its store is not changed, and the exit status is
1. While another command prunes or changes the index, it is 11.`,
		Example: `  bctl index catchup --config fleet.yaml --identity backup-key.txt
  bctl index catchup --repo /backup`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.catchup(cmd.Context()) },
	}
	c.flags(cmd)
	return cmd
}

func (c *indexCommand) flags(cmd *cobra.Command) {
	numberFlag(cmd.Flags(), &c.acceptLoss, "accept-loss", 0, 0, most, "accept that `N` snapshots are lost: as many as it has named")
	cmd.Flags().StringVar(&c.signer, "signer", "", "trust this `SIGNER`, if no file on this machine names the repository's")
}

// An origin is a store from which an index is rebuilt.
type origin struct {
	store  store.Store
	object repo.Object
	trust  journal.Trust
	dedup  seal.DedupKey
}

// origin opens the store, and finds the keys with which its content is believed and opened.
func (c *indexCommand) origin(ctx context.Context) (s origin, err error) {
	if c.app.cfg.Index.URL == "" {
		return s, usage("name the repository: --repo DIR, or --config FILE")
	}
	if s.store, err = open.Store(ctx, c.app.cfg, false, c.app.log); err != nil {
		return s, err
	}
	if s.object, err = repo.ReadObject(ctx, s.store); err == nil {
		s.trust, err = c.trust(ctx, s.store, &s.object)
	}
	if err == nil {
		var key seal.WorkerKey
		key, err = s.object.WorkerKey(s.trust.Opener)
		s.dedup = key.Dedup
	}
	if err != nil {
		return s, errors.Join(err, s.store.Close())
	}
	return s, nil
}

// run makes the index what the store describes.
func (c *indexCommand) run(ctx context.Context, s *origin, i index.Index, anew bool) (rebuild.Result, error) {
	var line progressText
	stop := c.app.animate(line.get)
	defer stop()
	result, err := rebuild.Run(ctx, rebuild.Options{
		Index: i, Store: s.store, Trust: s.trust, Dedup: s.dedup, Holder: backup.NewPackID().String(), By: operator(), Anew: anew, AcceptLoss: c.acceptLoss,
		Progress: func(p rebuild.Progress) {
			line.set(fmt.Sprintf("%d of %s, %d of %s", p.Objects, counted(p.AllObjects, "pack"), p.Snapshots, counted(p.AllSnapshots, "snapshot")))
		},
	})
	if incomplete, ok := errors.AsType[*rebuild.IncompleteError](err); ok {
		return result, c.refuse(incomplete)
	}
	return result, whilePruned(err)
}

// rebuild implements bctl index rebuild.
func (c *indexCommand) rebuild(ctx context.Context) error {
	s, err := c.origin(ctx)
	if err != nil {
		return err
	}
	defer s.store.Close()
	path, local := c.app.cfg.IndexPath()
	if !local {
		return c.rebuildDatabase(ctx, &s)
	}
	if err := c.app.lockIndex(true); err != nil {
		return err
	}
	return (&fileRebuild{indexCommand: c, from: &s, path: path}).run(ctx)
}

// rebuildDatabase rebuilds an index in Postgres, which must be empty.
func (c *indexCommand) rebuildDatabase(ctx context.Context, s *origin) error {
	i, err := open.Index(ctx, c.app.cfg, true)
	if err != nil {
		return wrongSetting(err)
	}
	defer i.Close()
	if _, _, err := i.Migrate(ctx); err != nil {
		return err
	}
	switch of, err := i.Repository(ctx); {
	case errors.Is(err, backup.ErrNoRepository):
		if err := i.CreateRepository(ctx, s.object.Repository); err != nil {
			return err
		}
	case err != nil:
		return err
	case of.ID != s.object.ID:
		return c.otherRepository(of.ID, s)
	default:
		complete, err := c.isComplete(ctx, i, s)
		if err != nil {
			return err
		}
		if complete {
			return fmt.Errorf("the index in Postgres has all snapshots that the store has, so it was not rebuilt: %w", backup.ErrExists)
		}
	}
	return c.fillDatabase(ctx, s, i)
}

// errNotOlder: there is nothing to catch up with.
var errNotOlder = fmt.Errorf("the index has all snapshots that the store has, so it was not changed: %w", backup.ErrExists)

// isComplete reports whether an index is not older than its store.
func (c *indexCommand) isComplete(ctx context.Context, i index.Index, s *origin) (bool, error) {
	err := checkCurrent(ctx, i, s.store)
	if errors.Is(err, repo.ErrIndexOld) {
		return false, nil
	}
	return err == nil, err
}

func (c *indexCommand) otherRepository(of backup.RepositoryID, s *origin) error {
	name := "the index in Postgres"
	if path, local := c.app.cfg.IndexPath(); local {
		name = path
	}
	return fmt.Errorf("%s is the index of repository %v, but %v holds %v: %w", name, of, s.store, s.object.ID, backup.ErrWrongKey)
}

// catchup implements bctl index catchup.
func (c *indexCommand) catchup(ctx context.Context) error {
	s, err := c.origin(ctx)
	if err != nil {
		return err
	}
	defer s.store.Close()
	if path, local := c.app.cfg.IndexPath(); local {
		if err := c.app.lockIndex(true); err != nil {
			return err
		}
		return (&fileRebuild{indexCommand: c, from: &s, path: path, catchesUp: true}).run(ctx)
	}
	i, err := c.app.openIndex(ctx, toWrite)
	if err != nil {
		return err
	}
	defer i.Close()
	of, err := i.Repository(ctx)
	if err != nil {
		return err
	}
	if of.ID != s.object.ID {
		return c.otherRepository(of.ID, &s)
	}
	current, err := c.isComplete(ctx, i, &s)
	if err != nil {
		return err
	}
	if current {
		return errNotOlder
	}
	return c.fillDatabase(ctx, &s, i)
}

// fillDatabase makes an index in Postgres what the store describes. Until that is complete, and
// accepted, it counts as older than the store.
func (c *indexCommand) fillDatabase(ctx context.Context, s *origin, i index.Index) error {
	written, err := i.WrittenCatalog(ctx)
	if err != nil {
		return err
	}
	c.copied = written.Sequence > 0
	newest, err := repo.NewestCatalog(ctx, s.store, &s.object.Repository)
	if err == nil {
		err = i.MarkOld(ctx, newest)
	}
	if err != nil {
		return err
	}
	result, err := c.run(ctx, s, i, false)
	if err != nil {
		return err
	}
	return c.finish(ctx, s, i, &result)
}

// trust determines the signer of the store's objects, and the identity that opens them.
func (c *indexCommand) trust(ctx context.Context, s store.Store, object *repo.Object) (t journal.Trust, err error) {
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
	opener := rewrap.Opener(ctx, s, object, identity.Opener)
	return journal.Trust{Repository: object.ID, Signer: signer, Opener: opener}, object.LoadRecipients(ctx, s)
}

// checkKeys returns an error if a key file on this machine belongs to another repository: the
// rebuilt index would then not match the keys, or the store is the wrong one.
func (c *indexCommand) checkKeys(id backup.RepositoryID) error {
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
