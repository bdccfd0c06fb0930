package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source"
)

func newShard(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "shard", Short: "Manage the directory trees of filers", Aliases: []string{"shards"},
		Long: `A shard is a directory tree of a filer, an NFS export or a part of one, that is
backed up as a unit. Each snapshot is of one shard.`,
	})
	cmd.AddCommand(newShardAdd(a), newShardLs(a), newShardShow(a), newShardSet(a), newShardRm(a))
	return cmd
}

// shardFlags are the settings of a shard.
type shardFlags struct {
	source     string
	snapshots  string
	exclusions exclusions
}

func (f *shardFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.source, "source", "", "location for workers: an absolute `PATH` or a URL (default: NAME)")
	flags.StringVar(&f.snapshots, "snapshots", "", "`PATTERN` of the filer's own snapshots, relative to the source: the newest is backed up in its place")
	f.exclusions.flags(cmd, "the shard")
}

// apply returns shard with the given flags applied.
func (f *shardFlags) apply(cmd *cobra.Command, shard backup.Shard) (_ backup.Shard, err error) {
	given := cmd.Flags().Changed
	if given("source") {
		if shard.Source, err = parseSource(f.source); err != nil {
			return shard, wrongSetting(fmt.Errorf("--%w", err))
		}
	}
	if given("snapshots") {
		if f.snapshots != "" {
			if err := source.CheckPattern(f.snapshots); err != nil {
				return shard, usage("--snapshots: %v", err)
			}
		}
		shard.Snapshots = f.snapshots
	}
	shard.Selection, err = f.exclusions.apply(cmd, shard.Selection)
	return shard, err
}

func newShardAdd(a *app) *cobra.Command {
	f := &shardFlags{}
	cmd := &cobra.Command{
		Use:   "add FILER NAME",
		Short: "Register a directory tree of a filer",
		Long: `Registers a shard. NAME is the absolute path of the tree on the filer's workers.
With --source, NAME is free, and a later change of the path does not cause files
to be read again. A retired shard becomes active again, with the settings given
now.

The source can also be nfs://HOST/PATH: workers then read the NFS server, which
need not be mounted. As NAME, such a URL stands for its path and is the source.

If the filer makes its own snapshots, --snapshots names them, relative to the
source. Each backup reads the newest one, so the tree does not change during the
backup. Paths remain those of the tree.`,
		Example: `  bctl shard add nas1 /export/home
  bctl shard add nas1 home --source /mnt/nas1/home --exclude /lost+found
  bctl shard add vault nfs://vault.example/export/home
  bctl shard add nas1 /export/db --snapshots '.snapshot/hourly.*'
  bctl shard add tank /tank/data --snapshots '.zfs/snapshot/auto-*'`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeArgs(a.filerNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			shard, err := namedShard(given[1])
			if err != nil {
				return wrongSetting(err)
			}
			if shard, err = f.apply(cmd, shard); err != nil {
				return err
			}
			if shard.Source == "" {
				return usage("shard %s is not an absolute path; give its location with --source PATH", display(shard.Name))
			}
			return a.addShard(cmd.Context(), given[0], shard, false)
		},
	}
	f.flags(cmd)
	return cmd
}

// namedShard returns the shard that the NAME of bctl shard add stands for. It has no source if
// that has to be given.
func namedShard(name string) (backup.Shard, error) {
	switch {
	case isNFS(name):
		return nfsShard(name)
	case filepath.IsAbs(name):
		name = filepath.Clean(name)
		return backup.Shard{Name: name, Source: sourceURL(name)}, nil
	}
	return backup.Shard{Name: name}, nil
}

// addShard registers a shard. With ifAbsent, one that is registered is not changed.
func (a *app) addShard(ctx context.Context, filer string, shard backup.Shard, ifAbsent bool) error {
	return a.withIndex(ctx, toWrite, func(i index.Index) error {
		f, err := findFiler(ctx, i, filer)
		if err != nil {
			return err
		}
		if f.Retired {
			return retiredFiler(filer)
		}
		shard.Filer = f.ID
		noteUncovered, err := a.watchCoverage(ctx, i)
		if err != nil {
			return err
		}
		_, err = i.AddShard(ctx, shard)
		switch {
		case errors.Is(err, backup.ErrExists) && ifAbsent:
			return a.tellShard(ctx, i, filer, shard.Name, false, "shard %s is already registered; it was not changed (change it with bctl shard set %[2]s %[1]s)\n")
		case errors.Is(err, backup.ErrExists):
			return present("shard %s of filer %s is already registered (change it with bctl shard set %[2]s %[1]s)", argument(shard.Name), argument(filer))
		case err != nil:
			return wrongSetting(err)
		}
		if err := a.tellShard(ctx, i, filer, shard.Name, true, "shard %s is registered; back it up with bctl backup --filer %s --shard %[1]s\n"); err != nil {
			return err
		}
		if err := noteUncovered(); err != nil {
			return err
		}
		return a.noteNested(ctx, i, filer, shard.Name)
	})
}

func retiredFiler(name string) error {
	return absent("filer %s is retired (register it again with bctl filer add %[1]s)", argument(name))
}

// tellShard prints a shard after a command that may have changed it: an object, or one line of
// text.
func (a *app) tellShard(ctx context.Context, i index.Catalog, filer, name string, changed bool, format string) error {
	s, err := findShard(ctx, i, filer, name)
	if err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	object := newShardJSON(&s, now)
	object.Changed = &changed
	return a.result(object, format, argument(name), argument(filer))
}

// findShard returns the shard with the given name, retired or not.
func findShard(ctx context.Context, i index.Catalog, filer, name string) (index.ShardStatus, error) {
	if filepath.IsAbs(name) {
		name = filepath.Clean(name)
	}
	found, err := i.ListShards(ctx, index.ShardFilter{Filer: filer, Name: name, Retired: true})
	if err != nil {
		return index.ShardStatus{}, err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	if _, err := findFiler(ctx, i, filer); err != nil {
		return index.ShardStatus{}, err
	}
	return index.ShardStatus{}, unknownShard(filer, name)
}

func unknownShard(filer, name string) error {
	return fmt.Errorf("shard %s of filer %s %w: register it with bctl shard add %[2]s %[1]s, or list shards with bctl shard ls --filer %[2]s",
		argument(name), argument(filer), backup.ErrNotFound)
}

func newShardSet(a *app) *cobra.Command {
	f := &shardFlags{}
	cmd := &cobra.Command{
		Use:   "set FILER NAME",
		Short: "Change a shard's settings",
		Long: `Changes the settings that the flags name and no others, from the next snapshot
on. Paths are relative to the shard, so another --source does not cause files to
be read again. If the new source is a different tree, the next backup needs
--new-root.

--snapshots '' backs up the source itself again. A list of exclusions replaces
the previous list; --exclude '', --exclude-if-present '' and
--exclude-larger-than 0 clear it.`,
		Example: `  bctl shard set nas1 /export/home --exclude '*.iso' --exclude-larger-than 100GB
  bctl shard set nas1 /export/home --source /mnt/new/home
  bctl shard set nas1 /export/db --snapshots ''`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeArgs(a.filerNames, a.shardNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				found, err := findShard(cmd.Context(), i, given[0], given[1])
				if err != nil {
					return err
				}
				shard, err := f.apply(cmd, found.Shard)
				if err != nil {
					return err
				}
				if reflect.DeepEqual(shard, found.Shard) {
					return a.tellShard(cmd.Context(), i, given[0], shard.Name, false, "shard %s of %s is unchanged\n")
				}
				if err := i.SetShard(cmd.Context(), shard); err != nil {
					return wrongSetting(err)
				}
				if shard.Source != found.Source {
					a.note("if the source is a different tree, its next backup fails; accept it with bctl backup --filer %s --shard %s --new-root", argument(given[0]), argument(shard.Name))
				}
				if err := a.tellShard(cmd.Context(), i, given[0], shard.Name, true, "shard %s of %s is changed\n"); err != nil {
					return err
				}
				return a.noteNested(cmd.Context(), i, given[0], shard.Name)
			})
		},
	}
	f.flags(cmd)
	return cmd
}

func newShardRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm FILER NAME",
		Short: "Retire a shard: stop backing it up",
		Long: `Retires a shard, so that it is no longer backed up. Its snapshots remain and can
be restored. A shard without snapshots is removed.`,
		Example:           `  bctl shard rm nas1 /export/home`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeArgs(a.filerNames, a.shardNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.retireShard(cmd.Context(), given[0], given[1])
		},
	}
}

func (a *app) retireShard(ctx context.Context, filer, name string) error {
	return a.withIndex(ctx, toWrite, func(i index.Index) error {
		s, err := findShard(ctx, i, filer, name)
		if err != nil {
			return err
		}
		err = i.RetireShard(ctx, s.ID, operator())
		switch {
		case errors.Is(err, backup.ErrRunning):
			return fmt.Errorf("shard %s of filer %s is being backed up (wait, or run bctl cancel --filer %[2]s --shard %[1]s): %[3]w",
				argument(s.Name), argument(filer), backup.ErrRunning)
		case err != nil:
			return err
		}
		left, err := i.ListShards(ctx, index.ShardFilter{Filer: filer, Name: s.Name, Retired: true})
		if err != nil {
			return err
		}
		result := removedJSON{Filer: filer, Shard: s.Name, Kept: len(left) > 0}
		if !result.Kept {
			return a.result(result, "shard %s of %s is removed; it never had a snapshot\n", display(s.Name), display(filer))
		}
		return a.result(result, "shard %s of %s is retired: it is no longer backed up. Its snapshots remain.\n"+
			"To register it again: bctl shard add %[2]s %[1]s.\n", argument(s.Name), argument(filer))
	})
}
