package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/index"
)

// completionTimeout is how long a shell waits for names. An index that does not respond must not
// block the shell.
const completionTimeout = 2 * time.Second

// names returns the possible values at one position of the command line. given are the arguments
// before it.
type names func(ctx context.Context, i index.Catalog, cmd *cobra.Command, given []string) ([]string, error)

// complete reads names from the index. On an error there are none, because a shell cannot display
// errors.
func (a *app) complete(cmd *cobra.Command, given []string, list names) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	var found []string
	err := a.configure(cmd)
	if err == nil {
		err = a.withIndex(ctx, toRead, func(i index.Index) (err error) {
			found, err = list(ctx, i, cmd, given)
			return err
		})
	}
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeArgs completes the arguments of a command, each from its own list.
func (a *app) completeArgs(lists ...names) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(given) >= len(lists) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, given, lists[len(given)])
	}
}

// completeFlag completes the value of a flag.
func (a *app) completeFlag(cmd *cobra.Command, flag string, list names) {
	// It fails only if the flag does not exist, or has a completion already.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.complete(cmd, given, list)
	})
}

func (a *app) filerNames(ctx context.Context, i index.Catalog, _ *cobra.Command, _ []string) ([]string, error) {
	filers, err := i.ListFilers(ctx, index.FilerFilter{})
	var found []string
	for n := range filers {
		found = append(found, filers[n].Name)
	}
	return found, err
}

// shardNames returns the shards of the filer given as an argument or with --filer, or those of all
// filers.
func (a *app) shardNames(ctx context.Context, i index.Catalog, cmd *cobra.Command, given []string) ([]string, error) {
	var filter index.ShardFilter
	if f := cmd.Flags().Lookup("filer"); f != nil {
		filter.Filer = f.Value.String()
	} else if len(given) > 0 {
		filter.Filer = given[0]
	}
	shards, err := i.ListShards(ctx, filter)
	var found []string
	for n := range shards {
		found = append(found, shards[n].Name)
	}
	return found, err
}

// runningIDs returns the running snapshots, each described by its shard.
func (a *app) runningIDs(ctx context.Context, i index.Catalog, _ *cobra.Command, _ []string) ([]string, error) {
	running, err := i.Snapshots(ctx, index.SnapshotFilter{States: onlyRunning})
	var found []string
	for n := range running {
		s := &running[n]
		found = append(found, s.ID.Short()+"\t"+s.Filer.Name+" "+s.Shard.Name)
	}
	return found, err
}
