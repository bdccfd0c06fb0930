package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
	"github.com/bctl/bctl/services/bctl/open"
)

type initCommand struct {
	app        *app
	recipients []string
	ifMissing  bool
}

func newInit(a *app) *cobra.Command {
	c := &initCommand{app: a}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create a repository and its key",
		Long: `Creates a repository: its index, its store, the worker key and the committer
key, which backups need, and the identity, which restores need. It prints the
path of the identity. If you lose that file, you lose the backups; anyone who
has it can read them.

To finish an interrupted init, run it again. If key files are lost, run it where
the identity is; it writes them again. With --if-missing, an existing repository
is not an error: its index is migrated to this version.

With --object-lock, the store keeps objects from being deleted for as long as
snapshots need them. It must be an S3 bucket in which object lock is enabled.
Use the same setting for backups and prunes (docs/retention.md).`,
		Example: `  bctl init --repo /backup
  bctl init --repo /backup --identity /media/usb/backup-key.txt
  bctl init --config fleet.yaml --recipient age1…
  bctl init --repo /backup --store s3://backups/repo --object-lock governance`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.storeAdvice(c.run(cmd.Context())) },
	}
	cmd.Flags().StringArrayVar(&c.recipients, "recipient", nil, "additional age `RECIPIENT` that can restore (may be repeated)")
	cmd.Flags().BoolVar(&c.ifMissing, "if-missing", false, "if the repository exists, only migrate its index")
	return cmd
}

// initRetry is how long a store may take to answer. Somebody waits, and may have mistyped its name.
const initRetry = 10 * time.Second

func (c *initCommand) run(ctx context.Context) error {
	a := c.app
	a.cfg = briefly(a.cfg)
	o := repo.Options{
		WorkerKeyPath: a.cfg.WorkerKey, CommitterKeyPath: a.cfg.CommitterKey, IdentityPath: a.cfg.Identity,
		Recipients: append(a.cfg.Recipients, c.recipients...),
		Chunker:    chunk.DefaultCutter, Codec: a.cfg.Codec, Now: time.Now(), Ask: a.ask(ctx),
	}
	if err := c.check(ctx, &o); err != nil {
		return err
	}
	i, err := open.Index(ctx, a.cfg, true)
	if err != nil {
		return wrongSetting(err)
	}
	defer i.Close()
	if err := c.lostStore(ctx, i); err != nil {
		return err
	}
	s, err := open.Store(ctx, a.cfg, true, a.log)
	if err != nil {
		return wrongSetting(err)
	}
	defer s.Close()
	if bucket, ok := s.(*s3store.Store); ok && a.cfg.ObjectLock() {
		if err := bucket.CheckLock(ctx); err != nil {
			return err
		}
	}
	made, err := repo.Init(ctx, s, i, o)
	if c.ifMissing && errors.Is(err, backup.ErrExists) && isWhole(ctx, s, i) {
		a.log.Info("the repository exists and its index is up to date", "repository", made.Repository.ID.String())
		return nil
	}
	if err != nil {
		return err
	}
	return c.report(&made, s)
}

// briefly returns settings with which requests to the store are not retried for long.
func briefly(c *config.Config) *config.Config {
	brief := *c
	brief.Store.Retry = min(c.Store.Retry, initRetry)
	return &brief
}

// storeAdvice adds to the error of a bucket what to do about it.
func (c *initCommand) storeAdvice(err error) error {
	of, ok := errors.AsType[*store.Error](err)
	if _, local := c.app.cfg.StorePath(); !ok || local {
		return err
	}
	switch {
	case errors.Is(of, fs.ErrPermission):
		return fmt.Errorf("%w (set store.access_key and store.secret_key to credentials that may list, read and write the bucket, then run bctl init again; bctl doctor tests them)", err)
	case errors.Is(of, backup.ErrNoRepository):
		return fmt.Errorf("%w (create the bucket, or correct its name in store.url, then run bctl init again)", err)
	case errors.Is(of, backup.StoreAway):
		return fmt.Errorf("%w (check store.url and store.endpoint, and whether the server runs, then run bctl init again)", err)
	}
	return err
}

// check returns an error if anything prevents the creation of the repository, before anything is
// created. If the store holds backups that no index knows, a new index would conflict with the
// right one.
func (c *initCommand) check(ctx context.Context, o *repo.Options) error {
	err := c.app.withIndex(ctx, toRead, func(index.Index) error { return nil })
	switch {
	case err == nil: // it exists, and is not changed
		return nil
	case errors.Is(err, repo.ErrIndexLost):
		return err
	}
	if err := c.lostObject(ctx); err != nil {
		return err
	}
	// Other problems with the index are reported when it is opened.
	if _, err := pack.NewCompressor(o.Codec); err != nil {
		return wrongSetting(err)
	}
	if err := o.Check(); err != nil {
		return wrongSetting(err)
	}
	return nil
}

// lostObject returns an error if the store has backups of a repository of which nothing else is
// left. A store that cannot be opened is reported by the caller that creates it.
func (c *initCommand) lostObject(ctx context.Context) error {
	s, err := open.Store(ctx, c.app.cfg, false, c.app.log)
	if err != nil {
		return nil
	}
	defer s.Close()
	return repo.LostObject(ctx, s)
}

// lostStore returns an error if the index belongs to a repository whose store is missing: a new
// store would conflict with it when it is mounted.
func (c *initCommand) lostStore(ctx context.Context, i index.Index) error {
	s, err := open.Store(ctx, c.app.cfg, false, c.app.log)
	if err == nil {
		return s.Close()
	}
	return c.app.storeGone(ctx, i, err) // nil: it is to be created
}

// report prints what was created, and which files to keep elsewhere.
func (c *initCommand) report(made *repo.Created, s store.Store) error {
	a := c.app
	if made.FoundKeys {
		a.note("the committer key %s existed, so the repository has its id, %v. If another repository has this key, do not use this one: "+
			"two repositories of one id take each other's work. Delete its index and store, and run bctl init without the keys of the other", made.CommitterKeyPath, made.Repository.ID)
	}
	if a.json {
		return a.print(struct {
			Repository   string   `json:"repository"`
			Store        string   `json:"store"`
			Identity     string   `json:"identity"`
			WorkerKey    string   `json:"worker_key"`
			CommitterKey string   `json:"committer_key"`
			Signer       string   `json:"signer"`
			Recipients   []string `json:"recipients"`
		}{
			made.Repository.ID.String(), s.String(), made.IdentityPath, made.WorkerKeyPath, made.CommitterKeyPath,
			made.Signer.String(), made.Repository.Recipients,
		})
	}
	fmt.Fprintf(a.out, `repository     %v
store          %v
worker key     %s
committer key  %s
identity       %s

Keep a copy of the identity somewhere else: without it nothing can be restored,
and anyone who has it can read all backups.
`, made.Repository.ID, s, made.WorkerKeyPath, made.CommitterKeyPath, made.IdentityPath)
	if made.SignerNote {
		fmt.Fprintf(a.out, `
The identity already existed. Add this line to it, so that bctl refuses a store
that was replaced, even if all other files are lost:

%s
`, seal.SignerComment(made.Repository.ID, made.Signer))
	}
	if path, local := a.cfg.IndexPath(); local {
		fmt.Fprintf(a.out, `
The index is %s.
Backups put copies of it into the store.
`, path)
	}
	return nil
}

// isWhole reports whether the store and the index hold the same repository, so that no step of init
// is left.
func isWhole(ctx context.Context, s store.Store, i index.Index) bool {
	stored, err := repo.ReadObject(ctx, s)
	if err != nil {
		return false
	}
	indexed, err := i.Repository(ctx)
	return err == nil && indexed.ID == stored.ID
}
