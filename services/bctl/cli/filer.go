package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/settings"
)

func newFiler(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "filer", Short: "Manage file servers and their limits", Aliases: []string{"filers"},
		Long: `A filer is a file server. Its shards are the directory trees that are backed up.
Its limits apply to all workers together. A change of a limit takes effect at
once, for running snapshots as well.`,
	})
	cmd.AddCommand(newFilerAdd(a), newFilerLs(a), newFilerShow(a), newFilerSet(a), newFilerRm(a))
	return cmd
}

// filerFlags are the settings of a filer.
type filerFlags struct {
	site                   string
	walkTasks, readBatches int
	readRate               int64 // bytes per second
	floor                  int   // percent
	compare                string
	labels                 []string
	exclusions             exclusions
}

// maxInHand exceeds the work of one filer that any number of workers could do.
const maxInHand = settings.MaxSlots

func (f *filerFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.site, "site", backup.DefaultSite, "`SITE` of the workers that can reach the filer")
	numberFlag(flags, &f.walkTasks, "walk-tasks", 0, 0, maxInHand, fmt.Sprintf("maximum `NUMBER` of concurrent walk tasks (0: the default, %d)", backup.DefaultWalkTasks))
	numberFlag(flags, &f.readBatches, "read-batches", 0, 0, maxInHand, fmt.Sprintf("maximum `NUMBER` of concurrent read batches (0: the default, %d)", backup.DefaultReadBatches))
	flags.Var(&parsed[int64]{&f.readRate, "", "string", func(text string) (int64, error) { return parseSize(strings.TrimSuffix(text, "/s")) }},
		"read-rate", "maximum read rate, `SIZE` per second (50MB); 0: no limit")
	numberFlag(flags, &f.floor, "floor", 0, 0, 100, "minimum `PERCENT` of these limits that the governor leaves; 0: the policy's value")
	flags.StringVar(&f.compare, "compare", backup.CompareAll.String(), "a file counts as unchanged if its size and these `ATTRIBUTES` are equal")
	flags.StringArrayVar(&f.labels, "label", nil, "label `KEY=VALUE` for selection (may be repeated)")
	f.exclusions.flags(cmd, "each shard")
}

// apply returns filer with the given flags applied.
func (f *filerFlags) apply(cmd *cobra.Command, filer backup.Filer) (_ backup.Filer, err error) {
	given := cmd.Flags().Changed
	if given("site") {
		if err := backup.CheckSite(f.site); err != nil {
			return filer, usage("%v", err)
		}
		filer.Site = f.site
	}
	limits := &filer.Limits
	setIf(given("walk-tasks"), &limits.WalkTasks, f.walkTasks)
	setIf(given("read-batches"), &limits.ReadBatches, f.readBatches)
	setIf(given("read-rate"), &limits.ReadBytesPerSecond, f.readRate)
	setIf(given("floor"), &limits.Floor, f.floor)
	if given("compare") {
		if filer.Compare, err = backup.ParseCompare(f.compare); err != nil {
			return filer, usage("--compare %v", err)
		}
	}
	if given("label") {
		if filer.Labels, err = changeLabels(filer.Labels, f.labels); err != nil {
			return filer, err
		}
	}
	filer.Selection, err = f.exclusions.apply(cmd, filer.Selection)
	return filer, err
}

func newFilerAdd(a *app) *cobra.Command {
	f := &filerFlags{}
	var ifAbsent bool
	cmd := &cobra.Command{
		Use:   "add NAME [URL]",
		Short: "Register a filer",
		Long: `Registers a filer. Nothing on it is backed up until bctl shard add registers a
tree. A retired filer becomes active again, with the settings given now.

With URL, nfs://HOST/PATH, the tree there is registered, too: the workers read
the NFS server, which need not be mounted.

--compare names the attributes that reveal a changed file, in addition to its
size. Omit ctime if the filer changes it for other reasons, and inode if inode
numbers are not stable. --site names the workers that can reach the filer: those
with the same setting worker.site.

With --if-absent, a filer that is already registered is not changed and the
command succeeds, which suits scripts. To make settings match a file, use bctl
apply.`,
		Example: `  bctl filer add nas1
  bctl filer add vault nfs://vault.example/export
  bctl filer add nas2 --site vienna --label env=prod \
    --walk-tasks 8 --read-batches 16 --read-rate 200MB
  bctl filer add nas3 --compare mtime,ctime \
    --exclude '*.tmp' --exclude-if-present .nobackup
  bctl filer add nas4 --if-absent`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			shard, err := shardOfFiler(given)
			if err != nil {
				return err
			}
			if _, err := parseLabels(f.labels); err != nil {
				return err
			}
			filer, err := f.apply(cmd, backup.Filer{Name: given[0], Site: backup.DefaultSite})
			if err != nil {
				return err
			}
			if shard.Name == "" {
				return a.addFiler(cmd.Context(), filer, ifAbsent, "; add the trees to back up with bctl shard add %[1]s PATH")
			}
			if err := a.addFiler(cmd.Context(), filer, ifAbsent, ""); err != nil {
				return err
			}
			return a.addShard(cmd.Context(), filer.Name, shard, ifAbsent)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&ifAbsent, "if-absent", false, "do nothing if the filer is registered")
	return cmd
}

// shardOfFiler returns the shard that the URL of bctl filer add stands for. Without a URL, it has
// no name.
func shardOfFiler(given []string) (s backup.Shard, err error) {
	if len(given) < 2 {
		return s, nil
	}
	if !isNFS(given[1]) {
		return s, usage("%s is not nfs://HOST/PATH; register other trees with bctl shard add %s PATH", display(given[1]), argument(given[0]))
	}
	if s, err = nfsShard(given[1]); err != nil {
		return s, wrongSetting(err)
	}
	return s, nil
}

// addFiler registers a filer. next is the advice that follows.
func (a *app) addFiler(ctx context.Context, filer backup.Filer, ifAbsent bool, next string) error {
	return a.withIndex(ctx, toWrite, func(i index.Index) error {
		if err := checkFilerName(ctx, i, filer.Name); err != nil {
			return err
		}
		_, err := i.AddFiler(ctx, filer)
		switch {
		case errors.Is(err, backup.ErrExists) && ifAbsent:
			return a.tellFiler(ctx, i, filer.Name, false, "filer %s is already registered; it was not changed (change it with bctl filer set %[1]s)\n")
		case errors.Is(err, backup.ErrExists):
			return present("filer %s is already registered (change it with bctl filer set %[1]s)", display(filer.Name))
		case err != nil:
			return wrongSetting(err)
		}
		err = a.tellFiler(ctx, i, filer.Name, true, "filer %s is registered"+next+"\n")
		a.noteSites(ctx, i, filer.Site)
		return err
	})
}

// checkFilerName refuses a name that is invalid for a new filer. A name that an earlier version
// registered can be registered again.
func checkFilerName(ctx context.Context, i index.Filers, name string) error {
	wrong := backup.CheckPlainName("filer", name)
	if wrong == nil {
		return nil
	}
	found, err := i.ListFilers(ctx, index.FilerFilter{Name: name, Retired: true})
	if err == nil && len(found) == 0 {
		err = wrongSetting(wrong)
	}
	return err
}

// tellFiler prints a filer after a command that may have changed it: an object, or one line of
// text.
func (a *app) tellFiler(ctx context.Context, i index.Catalog, name string, changed bool, format string) error {
	f, err := findFiler(ctx, i, name)
	if err != nil {
		return err
	}
	object := newFilerJSON(&f)
	object.Changed = &changed
	return a.result(object, format, display(name))
}

// findFiler returns the filer with the given name, retired or not.
func findFiler(ctx context.Context, i index.Catalog, name string) (index.FilerStatus, error) {
	var found []index.FilerStatus
	if name != "" { // a filter without a name returns all
		var err error
		if found, err = i.ListFilers(ctx, index.FilerFilter{Name: name, Retired: true}); err != nil {
			return index.FilerStatus{}, err
		}
	}
	if len(found) == 0 {
		return index.FilerStatus{}, absent("no filer %s%s (list filers with bctl filer ls, register this one with bctl filer add %[1]s)", display(name), nearFiler(ctx, i, name))
	}
	return found[0], nil
}

// nearFiler asks whether the user meant another filer.
func nearFiler(ctx context.Context, i index.Catalog, name string) string {
	filers, err := i.ListFilers(ctx, index.FilerFilter{Retired: true})
	if err != nil {
		return "" // the error that is being reported matters more
	}
	var names []string
	for i := range filers {
		names = append(names, filers[i].Name)
	}
	return didYouMean(name, names)
}

func newFilerSet(a *app) *cobra.Command {
	f := &filerFlags{}
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change a filer's settings",
		Long: `Changes the settings that the flags name and no others. New limits take effect
at once, for running snapshots as well. Exclusions and --compare take effect
with the next snapshot.

--label KEY- removes a label. A list of exclusions replaces the previous list;
--exclude '', --exclude-if-present '' and --exclude-larger-than 0 clear it.`,
		Example: `  bctl filer set nas1 --walk-tasks 4 --read-rate 50MB
  bctl filer set nas1 --label env=test --label rack-
  bctl filer set nas1 --exclude '' --one-file-system=false`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.filerNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				found, err := findFiler(cmd.Context(), i, given[0])
				if err != nil {
					return err
				}
				filer, err := f.apply(cmd, found.Filer)
				if err != nil {
					return err
				}
				if reflect.DeepEqual(filer, found.Filer) {
					return a.tellFiler(cmd.Context(), i, filer.Name, false, "filer %s is unchanged\n")
				}
				noteUncovered, err := a.watchCoverage(cmd.Context(), i)
				if err != nil {
					return err
				}
				if err := i.SetFiler(cmd.Context(), filer); err != nil {
					return wrongSetting(err)
				}
				err = a.tellFiler(cmd.Context(), i, filer.Name, true, "filer %s is changed\n")
				if filer.Site != found.Site {
					a.noteSites(cmd.Context(), i, filer.Site)
				}
				return errors.Join(err, noteUncovered())
			})
		},
	}
	f.flags(cmd)
	return cmd
}

func newFilerRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Retire a filer: stop backing it up",
		Long: `Retires a filer with its shards, so that they are no longer backed up. Its
snapshots remain and can be restored. A filer without snapshots is removed.`,
		Example:           `  bctl filer rm nas1`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeArgs(a.filerNames),
		RunE:              func(cmd *cobra.Command, given []string) error { return a.retireFiler(cmd.Context(), given[0]) },
	}
}

func (a *app) retireFiler(ctx context.Context, name string) error {
	return a.withIndex(ctx, toWrite, func(i index.Index) error {
		f, err := findFiler(ctx, i, name)
		if err != nil {
			return err
		}
		err = i.RetireFiler(ctx, f.ID, operator())
		switch {
		case errors.Is(err, backup.ErrRunning):
			return fmt.Errorf("filer %s is being backed up (wait, or run bctl cancel --filer %[1]s): %[2]w", display(name), backup.ErrRunning)
		case err != nil:
			return err
		}
		left, err := i.ListFilers(ctx, index.FilerFilter{Name: name, Retired: true})
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return a.result(removedJSON{Filer: name}, "filer %s is removed; it never had a snapshot\n", display(name))
		}
		return a.result(removedJSON{Filer: name, Kept: true}, "filer %s is retired: it is no longer backed up. Its snapshots remain.\n"+
			"To register it again: bctl filer add %[1]s, and bctl shard add for its shards.\n", display(name))
	})
}

// removedJSON is the output of filer rm and shard rm.
type removedJSON struct {
	Filer string `json:"filer"`
	Shard string `json:"shard,omitempty"`
	Kept  bool   `json:"kept"` // retired, with its snapshots; otherwise nothing of it is left
}
