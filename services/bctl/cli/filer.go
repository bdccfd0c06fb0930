package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/settings"
)

func newFiler(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "filer", Short: "Manage file servers and their limits", Aliases: []string{"filers"},
		Long: `A filer is a file server: the shards on it are what is backed up. Its limits
hold for all workers together, and a change of them holds at once, for what is
running as well.`,
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
	flags.StringVar(&f.site, "site", backup.DefaultSite, "`SITE` whose workers can reach it")
	numberFlag(flags, &f.walkTasks, "walk-tasks", 0, 0, maxInHand, fmt.Sprintf("walk tasks in hand at a time, most; 0: %d", backup.DefaultWalkTasks))
	numberFlag(flags, &f.readBatches, "read-batches", 0, 0, maxInHand, fmt.Sprintf("read batches in hand at a time, most; 0: %d", backup.DefaultReadBatches))
	flags.Var(&parsed[int64]{&f.readRate, "", "string", func(text string) (int64, error) { return parseSize(strings.TrimSuffix(text, "/s")) }},
		"read-rate", "read no more than `SIZE` a second (50MB); 0: no limit")
	numberFlag(flags, &f.floor, "floor", 0, 0, 100, "`PERCENT` of these limits that the governor leaves in any case; 0: as its policy says")
	flags.StringVar(&f.compare, "compare", backup.CompareAll.String(), "`ATTRIBUTES` that must be equal, beside the size, for a file to count as unchanged")
	flags.StringArrayVar(&f.labels, "label", nil, "`KEY=VALUE` to find it by (may be repeated)")
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
	if given("walk-tasks") {
		filer.Limits.WalkTasks = f.walkTasks
	}
	if given("read-batches") {
		filer.Limits.ReadBatches = f.readBatches
	}
	if given("read-rate") {
		filer.Limits.ReadBytesPerSecond = f.readRate
	}
	if given("floor") {
		filer.Limits.Floor = f.floor
	}
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
		Use:   "add NAME",
		Short: "Register a filer",
		Long: `Registers a filer. Nothing of it is backed up until bctl shard add says which
trees. One that was retired is back, with the settings that are given now.

--compare says what tells a changed file, beside its size: leave ctime out where
a filer changes it without a reason, and inode where inode numbers do not last.
Sites tell which workers can reach a filer: those with the setting worker.site.

--if-absent leaves one that is registered as it is, and succeeds: for scripts.
bctl apply makes settings what a file declares.`,
		Example: `  bctl filer add nas1
  bctl filer add nas2 --site vienna --label env=prod \
    --walk-tasks 8 --read-batches 16 --read-rate 200MB
  bctl filer add nas3 --compare mtime,ctime \
    --exclude '*.tmp' --exclude-if-present .nobackup
  bctl filer add nas4 --if-absent`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if _, err := parseLabels(f.labels); err != nil {
				return err
			}
			filer, err := f.apply(cmd, backup.Filer{Name: given[0], Site: backup.DefaultSite})
			if err != nil {
				return err
			}
			return a.addFiler(cmd.Context(), filer, ifAbsent)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&ifAbsent, "if-absent", false, "leave a filer that is registered as it is")
	return cmd
}

func (a *app) addFiler(ctx context.Context, filer backup.Filer, ifAbsent bool) error {
	return a.withIndex(ctx, toWrite, func(i index.Index) error {
		if err := checkFilerName(ctx, i, filer.Name); err != nil {
			return err
		}
		_, err := i.AddFiler(ctx, filer)
		switch {
		case errors.Is(err, backup.ErrExists) && ifAbsent:
			return a.tellFiler(ctx, i, filer.Name, "filer %s is registered already, and stays as it is (bctl filer set %[1]s changes it)\n")
		case errors.Is(err, backup.ErrExists):
			return fmt.Errorf("filer %s is registered (bctl filer set %[1]s changes it): %[2]w", display(filer.Name), backup.ErrExists)
		case err != nil:
			return wrongSetting(err)
		}
		err = a.tellFiler(ctx, i, filer.Name, "filer %s is registered; bctl shard add %[1]s PATH says what of it to back up\n")
		a.noteSite(ctx, i, filer.Site)
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

// tellFiler prints a filer after a change: an object, or one line of text.
func (a *app) tellFiler(ctx context.Context, i index.Catalog, name, format string) error {
	f, err := findFiler(ctx, i, name)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(newFilerJSON(&f))
	}
	_, err = fmt.Fprintf(a.out, format, display(name))
	return err
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
		return index.FilerStatus{}, absent("no filer %s%s (bctl filer ls lists the filers, bctl filer add %[1]s registers it)", display(name), nearFiler(ctx, i, name))
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
		Long: `Changes what the flags name, and nothing else. Limits hold at once, for what is
running as well; exclusions and --compare from the next snapshot on.

--label KEY- removes a label. A list of exclusions takes the place of the one
that was there; --exclude '', --exclude-if-present '' and --exclude-larger-than
0 empty it.`,
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
				if err := i.SetFiler(cmd.Context(), filer); err != nil {
					return wrongSetting(err)
				}
				err = a.tellFiler(cmd.Context(), i, filer.Name, "filer %s is changed\n")
				if filer.Site != found.Site {
					a.noteSite(cmd.Context(), i, filer.Site)
				}
				return err
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
		Long: `Retires a filer with its shards. Its snapshots stay, and can be restored. A
filer that never had one is forgotten.`,
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
		err = i.RetireFiler(ctx, f.ID)
		switch {
		case errors.Is(err, backup.ErrRunning):
			return fmt.Errorf("filer %s is being backed up (bctl cancel --filer %[1]s ends that): %[2]w", display(name), backup.ErrRunning)
		case err != nil:
			return err
		}
		left, err := i.ListFilers(ctx, index.FilerFilter{Name: name, Retired: true})
		if err != nil {
			return err
		}
		if a.json {
			return a.print(removedJSON{Filer: name, Kept: len(left) > 0})
		}
		if len(left) == 0 {
			_, err = fmt.Fprintf(a.out, "filer %s is removed; it never had a snapshot\n", display(name))
			return err
		}
		_, err = fmt.Fprintf(a.out, "filer %s is retired: nothing of it is backed up any more. Its snapshots stay.\n"+
			"bctl filer add %[1]s, and bctl shard add for its shards, bring it back.\n", display(name))
		return err
	})
}

// removedJSON is the output of filer rm and shard rm.
type removedJSON struct {
	Filer string `json:"filer"`
	Shard string `json:"shard,omitempty"`
	Kept  bool   `json:"kept"` // retired, with its snapshots; otherwise nothing of it is left
}
