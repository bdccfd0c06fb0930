package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/wire"
)

func newIndex(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "index", Short: "Make a lost index again"})
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
		Short: "Make the index of this machine again, from the copy in the store",
		Long: `Makes the index file again that was lost or damaged, from the newest copy in the
store that is whole. Each backup on one machine that changes anything puts a
copy there. The command needs the identity. A file that is there and holds a
repository stays; a damaged one is moved aside.

Snapshots that were made after the copy are named: their content is in the
store, and this release cannot bring them back. The status is 3 then.`,
		Example: `  bctl index rebuild --repo /backup
  bctl index rebuild --repo /backup --identity /media/usb/backup-key.txt`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&c.signer, "signer", "", "believe this `SIGNER`, where no file on this machine names the repository's")
	return cmd
}

func (c *indexRebuild) run(ctx context.Context) error {
	a := c.app
	path, local := a.cfg.IndexPath()
	if !local {
		return usage("the index is in Postgres: restore the database from its last dump (bctl index rebuild is for a SQLite index)")
	}
	if path == "" {
		return usage("say which repository is meant: --repo DIR")
	}
	s, err := wire.OpenStore(ctx, a.cfg, false, a.log)
	if err != nil {
		return err
	}
	defer s.Close()
	trust, err := c.trust(ctx, s)
	if err != nil {
		return err
	}
	aside, err := c.moveAside(ctx, path)
	if err != nil {
		return err
	}
	if aside != "" {
		a.note("%s was moved to %s", path, aside)
	}
	made, err := embedded.RebuildIndex(ctx, s, trust, path)
	for _, damaged := range made.Damaged {
		a.note("not taken: %v", damaged)
	}
	if err != nil {
		return err
	}
	return c.conclude(ctx, s, trust, made.Written)
}

// trust finds out who signs what the store has, and what opens it.
func (c *indexRebuild) trust(ctx context.Context, s store.Store) (t journal.Trust, err error) {
	object, err := repo.ReadObject(ctx, s)
	if err != nil {
		return t, err
	}
	identity, err := repo.FindIdentity(c.app.cfg.Identity, object.ID)
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
		return t, fmt.Errorf("no file on this machine says who signs the objects of repository %v. The store names %v: if you know from elsewhere that this is right, say so with --signer: %w",
			object.ID, object.Signer(), backup.ErrWrongKey)
	}
	return journal.Trust{Repository: object.ID, Signer: signer, Opener: identity.Opener}, object.CheckSigner(signer, from)
}

// moveAside makes room at path for a new index. One that holds a repository
// stays where it is.
func (c *indexRebuild) moveAside(ctx context.Context, path string) (aside string, err error) {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	i, err := sqliteindex.OpenReadOnly(ctx, path)
	if err == nil {
		_, err = i.Repository(ctx)
		if closing := i.Close(); err == nil {
			err = closing
		}
		if err == nil {
			return "", fmt.Errorf("%s holds a repository, and stays: %w (bctl doctor looks whether it is damaged; move it away if you do not want it)", path, backup.ErrExists)
		}
	}
	if errors.Is(err, backup.ErrUnavailable) {
		return "", err
	}
	aside = fmt.Sprintf("%s.%s", path, time.Now().UTC().Format("20060102T150405Z"))
	for _, file := range []string{"-wal", "-shm", ""} { // its log may have what the file lacks
		if err := os.Rename(path+file, aside+file); err != nil && (file == "" || !errors.Is(err, os.ErrNotExist)) {
			return "", err
		}
	}
	return aside, nil
}

// conclude says what the index has, and what the store has beyond that.
func (c *indexRebuild) conclude(ctx context.Context, s store.Store, trust journal.Trust, written time.Time) error {
	i, err := c.app.openIndex(ctx, toWrite)
	if err != nil {
		return err
	}
	defer i.Close()
	found, err := i.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for n := range found {
		known[found[n].ID.String()] = true
	}
	later, err := laterSnapshots(ctx, s, trust, known)
	if err != nil {
		return err
	}
	if c.app.json {
		err = c.app.print(struct {
			Written   *string  `json:"written"` // the copy
			Snapshots int      `json:"snapshots"`
			Missing   []string `json:"missing"`
		}{jsonTime(written), len(found), append([]string{}, later...)})
	} else {
		_, err = fmt.Fprintf(c.app.out, "the index has %d snapshots again; it is the copy of %s\n", len(found), localTime(written))
	}
	if err != nil || len(later) == 0 {
		return err
	}
	c.app.note("%d later snapshots are in the store and not in the index: %s", len(later), some(later, ", "))
	return errIncomplete
}

// laterSnapshots returns the committed snapshots that changed something and are not known.
func laterSnapshots(ctx context.Context, s store.Store, trust journal.Trust, known map[string]bool) (later []string, err error) {
	for o, err := range s.List(ctx, store.CommitsPrefix) {
		if err != nil {
			return nil, err
		}
		text := o.Name[len(store.CommitsPrefix):]
		id, err := backup.ParseSnapshotID(text)
		if err != nil || known[text] {
			continue
		}
		data, err := s.Get(ctx, o.Name, maxRecordBytes)
		if err != nil {
			return nil, err
		}
		record, _, err := journal.OpenCommit(data, id, trust)
		if err != nil {
			return nil, err
		}
		if record.State == backup.Committed && record.Segment != nil {
			later = append(later, id.Short())
		}
	}
	return later, nil
}

// maxRecordBytes is more than a commit record has.
const maxRecordBytes = 64 << 20
