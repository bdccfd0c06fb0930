package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
)

// completionTimeout is how long a shell waits for names. An index that does not respond must not
// block the shell.
const completionTimeout = 2 * time.Second

const (
	// maxOffered is the maximum number of snapshots that a shell is offered, and read for tags.
	maxOffered = 50
	maxTagged  = 1000
	// maxPaths is the maximum number of paths that a shell is offered. Beyond it there are none:
	// the beginning that a part of them shares would be wrong.
	maxPaths = 2000
)

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

// tagNames returns the tags of the newest snapshots.
func (a *app) tagNames(ctx context.Context, i index.Catalog, _ *cobra.Command, _ []string) ([]string, error) {
	snapshots, err := i.Snapshots(ctx, index.SnapshotFilter{Limit: maxTagged})
	var found []string
	for n := range snapshots {
		found = append(found, snapshots[n].Tags...)
	}
	slices.Sort(found)
	return slices.Compact(found), err
}

// A snapshotOffer determines the snapshots that are offered for an argument.
type snapshotOffer struct {
	states []backup.State
	latest bool // also by this name
	wanted func(*backup.Snapshot) bool
}

func anySnapshot(*backup.Snapshot) bool    { return true }
func goodSnapshot(s *backup.Snapshot) bool { return s.Bad == "" }
func badSnapshot(s *backup.Snapshot) bool  { return s.Bad != "" }

var onlyCommitted = []backup.State{backup.Committed}

// completeSnapshot completes an argument that names a snapshot.
func (a *app) completeSnapshot(w *which, offer snapshotOffer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, directive := a.complete(cmd, given, offer.names(w, word))
		return found, directive | cobra.ShellCompDirectiveKeepOrder
	}
}

// completeSnapshots completes any number of arguments that name snapshots.
func (a *app) completeSnapshots(w *which) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.completeSnapshot(w, snapshotOffer{wanted: anySnapshot})(cmd, nil, word)
	}
}

// names returns the names of the snapshots that begin with word, newest first.
func (o *snapshotOffer) names(w *which, word string) names {
	return func(ctx context.Context, c index.Catalog, _ *cobra.Command, _ []string) (found []string, err error) {
		const latest = "latest"
		if _, ok := strings.CutPrefix(latest, word); ok && o.latest {
			if s, err := w.latest(ctx, c); err == nil { // with several shards there is none
				found = append(found, described(latest, &s))
			}
		}
		prefix := strings.ToLower(word)
		if !isIDPrefix(prefix) {
			return found, nil
		}
		snapshots, err := c.Snapshots(ctx, index.SnapshotFilter{Filer: w.filer, Shard: w.shard, States: o.states, IDPrefix: prefix, Limit: maxOffered})
		for _, s := range slices.Backward(snapshots) {
			name := s.ID.Short()
			if len(word) > len(name) {
				name = s.ID.String()
			}
			if o.wanted(&s) {
				found = append(found, described(name, &s))
			}
		}
		return found, err
	}
}

// described adds the time and the shard to a name of a snapshot.
func described(name string, s *backup.Snapshot) string {
	return cobra.CompletionWithDesc(name, shortTime(s.Started)+"  "+display(s.Filer.Name)+" "+display(s.Shard.Name))
}

// completePlace completes an argument SNAPSHOT[:PATH].
func (a *app) completePlace(w *which) cobra.CompletionFunc {
	offer := snapshotOffer{states: onlyCommitted, latest: true, wanted: anySnapshot}
	return func(cmd *cobra.Command, given []string, word string) ([]string, cobra.ShellCompDirective) {
		name, path, ok := strings.Cut(word, ":")
		switch {
		case len(given) > 0:
			return nil, cobra.ShellCompDirectiveNoFileComp
		case !ok: // a colon may follow
			found, directive := a.completeSnapshot(w, offer)(cmd, given, word)
			return found, directive | cobra.ShellCompDirectiveNoSpace
		}
		found, directive := a.complete(cmd, given, pathsIn(w, name, path))
		if slices.ContainsFunc(found, func(path string) bool { return strings.HasSuffix(path, "/") }) {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	}
}

// pathsIn returns the paths in a snapshot that begin with given, up to the end of the next name.
// Those of directories end with a slash.
func pathsIn(w *which, snapshot, given string) names {
	return func(ctx context.Context, c index.Catalog, _ *cobra.Command, _ []string) (found []string, err error) {
		s, err := w.snapshot(ctx, c, snapshot)
		if err != nil || s.State != backup.Committed {
			return nil, err
		}
		end := strings.LastIndexByte(given, '/') + 1
		dir, _, err := lookup(ctx, c, &s, given[:end])
		if err != nil {
			return nil, err
		}
		for e, err := range browse.Entries(ctx, c, s.ID, dir) {
			if err != nil {
				return nil, err
			}
			if !strings.HasPrefix(e.Name, given[end:]) || display(e.Name) != e.Name { // shells cannot insert control characters
				continue
			}
			path := snapshot + ":" + given[:end] + e.Name
			if e.Kind == backup.Directory {
				path += "/"
			}
			if found = append(found, path); len(found) > maxPaths {
				return nil, fmt.Errorf("more than %d names begin with %q", maxPaths, given)
			}
		}
		slices.Sort(found)
		return found, nil
	}
}
