package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/mount"
	"github.com/bctl/bctl/internal/repo"
)

// mountGCPercent is the amount of garbage, in percent of live memory, at which the collector runs.
// Most of what a mount has in memory is what it keeps, so that running it often costs little. A
// limit of memory would cost all processors when what is kept comes close to it.
const mountGCPercent = 20

type mountCommand struct {
	app        *app
	allowOther bool
}

func newMount(a *app) *cobra.Command {
	c := &mountCommand{app: a}
	cmd := &cobra.Command{
		Use:   "mount MOUNTPOINT",
		Short: "Show all snapshots as a read-only file system",
		Long: `Mounts all snapshots, read-only, at MOUNTPOINT, an empty directory, until it is
interrupted or unmounted (umount, or fusermount3 -u). It needs FUSE.

  filers/FILER/SHARD/TIME/   a snapshot of a shard, by its start in UTC
  filers/FILER/SHARD/latest  a symlink to the last good one
  ids/ID/                    a snapshot by its id, or the beginning of it

Nothing is read before it is looked at. What is read is verified: damaged
content is an input/output error, and the log names the path. A snapshot that is
being read is not forgotten meanwhile.

Only the user who mounts can use the mount, and reads everything there. With
--allow-other, all users can, with the permissions that the files have.`,
		Example: `  bctl mount /mnt/backup
  ls /mnt/backup/filers/nas1/export%2Fhome/latest/alice
  cp -a /mnt/backup/ids/3f2a/alice/letters /tmp`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given[0]) },
	}
	cmd.Flags().BoolVar(&c.allowOther, "allow-other", false, "let other users use the mount, with the files' permissions")
	return cmd
}

func (c *mountCommand) run(ctx context.Context, at string) error {
	mountpoint, err := config.ExpandHome(at, c.app.env)
	if err == nil {
		mountpoint, err = filepath.Abs(mountpoint)
	}
	if err != nil {
		return usage("mountpoint %v", err)
	}
	r, err := c.app.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	o := mount.Options{
		Mountpoint: mountpoint, Catalog: r.index, Store: r.store, Repository: r.object.ID, AllowOther: c.allowOther,
		Patience: c.app.cfg.Store.Retry, Log: c.app.log,
		Hold: func(ctx context.Context, id backup.SnapshotID) (func(), error) {
			return c.app.beginReading(ctx, r.index, id)
		},
	}
	if c.app.hasNoIdentity(r) {
		c.app.note("there is no identity: names and attributes are shown, and content is refused (permission denied)")
	} else if o.Opener, o.HashKey, err = c.app.openSealed(ctx, r); err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(mountGCPercent))
	c.app.interruptible.Store(true)
	return wrongSetting(mount.Run(ctx, o, func() error {
		object := struct {
			Type       string `json:"type"`
			Mountpoint string `json:"mountpoint"`
			Content    bool   `json:"content"`
		}{"mounted", mountpoint, o.Opener != nil}
		return c.app.result(object, "mounted at %s; Ctrl-C, or umount %[1]s, ends it\n", argument(mountpoint))
	}))
}

// hasNoIdentity reports whether no identity is named, and none is at its default path.
func (a *app) hasNoIdentity(r *repository) bool {
	if a.cfg.Identity != "" {
		return false
	}
	path, err := repo.DefaultIdentityPath(r.object.ID)
	if err != nil {
		return true
	}
	_, err = os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
