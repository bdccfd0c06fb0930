package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
)

// A which restricts the snapshots to which a command applies.
type which struct {
	filer, shard string
}

func (w *which) flags(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.filer, "filer", "", "only snapshots of this `FILER`")
	shardFlag(cmd.Flags(), &w.shard, "only snapshots of this `SHARD`")
	a.completeFlag(cmd, "filer", a.filerNames)
	a.completeFlag(cmd, "shard", a.shardNames)
}

// shardFlag adds a flag for a shard, whose path the user may write in any form.
func shardFlag(flags *pflag.FlagSet, to *string, usage string) {
	flags.Var(&parsed[string]{to, "", "string", func(text string) (string, error) {
		if filepath.IsAbs(text) {
			text = filepath.Clean(text)
		}
		return text, nil
	}}, "shard", usage)
}

// absent returns a backup.ErrNotFound whose message does not include "not found".
func absent(format string, args ...any) error { return &absentError{fmt.Sprintf(format, args...)} }

type absentError struct{ text string }

func (e *absentError) Error() string        { return e.text }
func (e *absentError) Is(target error) bool { return target == backup.ErrNotFound }

// present returns an error that is backup.ErrExists and has only the given text.
func present(format string, args ...any) error { return &presentError{fmt.Sprintf(format, args...)} }

type presentError struct{ text string }

func (e *presentError) Error() string        { return e.text }
func (e *presentError) Is(target error) bool { return target == backup.ErrExists }

// listAll returns the shards that are meant, also those that are retired, after a check that there
// are such a filer and shard.
func (w *which) listAll(ctx context.Context, i index.Catalog) ([]index.ShardStatus, error) {
	if err := w.exists(ctx, i); err != nil {
		return nil, err
	}
	return i.ListShards(ctx, index.ShardFilter{Filer: w.filer, Name: w.shard, Retired: true})
}

// exists fails if no filer or shard has these names, as distinct from one without snapshots.
func (w *which) exists(ctx context.Context, c index.Catalog) error {
	if w.filer != "" {
		if _, err := findFiler(ctx, c, w.filer); err != nil {
			return err
		}
	}
	if w.shard == "" {
		return nil
	}
	found, err := c.ListShards(ctx, index.ShardFilter{Filer: w.filer, Name: w.shard, Retired: true})
	if err == nil && len(found) == 0 {
		err = absent("no shard %s%s%s (bctl shard ls lists the shards)", display(w.shard), (&which{filer: w.filer}).String(), nearShard(ctx, c, w))
	}
	return err
}

// nearShard asks whether the user meant another shard of the filer.
func nearShard(ctx context.Context, c index.Catalog, w *which) string {
	shards, err := c.ListShards(ctx, index.ShardFilter{Filer: w.filer, Retired: true})
	if err != nil {
		return "" // the error that is being reported matters more
	}
	var names []string
	for i := range shards {
		names = append(names, shards[i].Name)
	}
	return didYouMean(w.shard, names)
}

// onlyRunning is a filter of states.
var onlyRunning = []backup.State{backup.Running}

// maxCandidates is the maximum number of snapshots listed for an ambiguous prefix.
const maxCandidates = 10

// committed returns the named snapshots; nil: none is named. It fails if one is not committed: what
// is the participle of what only committed snapshots can be.
func (w *which) committed(ctx context.Context, c index.Catalog, given []string, what string) (list []backup.Snapshot, err error) {
	for _, arg := range given {
		s, err := w.snapshot(ctx, c, arg)
		if err != nil {
			return nil, err
		}
		if s.State != backup.Committed {
			return nil, usage("snapshot %s is %s: only committed snapshots can be %s", arg, s.State, what)
		}
		list = append(list, s)
	}
	return list, nil
}

// snapshot returns the snapshot that arg names: an id, a unique prefix of one, or "latest", which
// is the last good snapshot of the only shard that has any.
func (w *which) snapshot(ctx context.Context, c index.Catalog, arg string) (backup.Snapshot, error) {
	if arg == "latest" {
		return w.latest(ctx, c)
	}
	if arg == "" {
		return backup.Snapshot{}, usage("the snapshot's name is empty: give its id, the beginning of its id, or latest")
	}
	prefix := strings.ToLower(arg)
	if !isIDPrefix(prefix) {
		return backup.Snapshot{}, usage("no such snapshot %q%s (a snapshot is named by its id, the beginning of its id, or latest)", arg, didYouMean(arg, []string{"latest"}))
	}
	found, err := c.Snapshots(ctx, index.SnapshotFilter{Filer: w.filer, Shard: w.shard, IDPrefix: prefix, Limit: maxCandidates + 1})
	switch {
	case err != nil:
		return backup.Snapshot{}, err
	case len(found) == 0:
		return backup.Snapshot{}, absent("no snapshot%s has an id that begins with %s (bctl snapshot ls lists the snapshots)", w, arg)
	case len(found) > 1:
		return backup.Snapshot{}, ambiguous(arg, found)
	}
	return found[0], nil
}

// isIDPrefix reports whether an id may begin with prefix.
func isIDPrefix(prefix string) bool {
	return len(prefix) <= 32 && strings.Trim(prefix, "0123456789abcdef") == ""
}

// latest returns the last committed snapshot of a shard that is not marked bad. It compares
// numbers, because a clock may have been set back.
func (w *which) latest(ctx context.Context, c index.Catalog) (backup.Snapshot, error) {
	found, err := c.ListShards(ctx, index.ShardFilter{Filer: w.filer, Name: w.shard, Retired: true})
	if err != nil {
		return backup.Snapshot{}, err
	}
	found = withSnapshots(found)
	switch len(found) {
	case 0:
		return backup.Snapshot{}, w.nothing(ctx, c)
	case 1:
		return c.Snapshot(ctx, found[0].LastGood)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d shards%s have snapshots: select one with --shard and --filer, or give the id of the snapshot", len(found), w)
	candidates(&b, found)
	return backup.Snapshot{}, usage("%s", b.String())
}

// candidates writes the first of the shards that have snapshots, as flags that select them.
func candidates(b *strings.Builder, found []index.ShardStatus) {
	for i := range found[:min(len(found), maxCandidates)] {
		s := &found[i]
		fmt.Fprintf(b, "\n  %s  %s  --filer %s --shard %s", s.LastGood.Short(), zoned(s.Time), display(s.Filer.Name), display(s.Name))
	}
	if len(found) > maxCandidates {
		b.WriteString("\n  …")
	}
}

// nothing returns the error that no snapshot matches. It lists the shards that have some: if a
// filer is named, only those of that filer.
func (w *which) nothing(ctx context.Context, c index.Catalog) error {
	if w.filer != "" {
		if _, err := findFiler(ctx, c, w.filer); err != nil {
			return err
		}
	}
	bad, err := c.Snapshots(ctx, index.SnapshotFilter{Filer: w.filer, Shard: w.shard, States: []backup.State{backup.Committed}, Limit: 1})
	if err == nil && len(bad) > 0 {
		err = absent("all committed snapshots%s are marked bad (bctl snapshot ls lists them): name one by its id, or remove the mark with bctl snapshot mark-good", w)
	}
	if err != nil {
		return err
	}
	found, err := c.ListShards(ctx, index.ShardFilter{Filer: w.filer, Retired: true})
	if err != nil {
		return err
	}
	of := ""
	if w.filer != "" {
		of = " --filer " + display(w.filer)
	}
	if found = withSnapshots(found); len(found) == 0 {
		return absent("there is no committed snapshot%s (create one with bctl backup%s)", &which{filer: w.filer}, of)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "there is no committed snapshot%s; these shards%s have some:", w, &which{filer: w.filer})
	candidates(&b, found)
	return absent("%s", b.String())
}

func withSnapshots(found []index.ShardStatus) []index.ShardStatus {
	return slices.DeleteFunc(found, func(s index.ShardStatus) bool { return s.LastGood == backup.SnapshotID{} })
}

func (w *which) String() string {
	s := ""
	if w.filer != "" {
		s += " of filer " + w.filer
	}
	if w.shard != "" {
		s += " of shard " + w.shard
	}
	return s
}

func ambiguous(prefix string, found []backup.Snapshot) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is the beginning of several snapshots:", prefix)
	for i := range found[:min(len(found), maxCandidates)] {
		s := &found[i]
		fmt.Fprintf(&b, "\n  %v  %s  %s %s", s.ID, zoned(s.Started), display(s.Filer.Name), display(s.Shard.Name))
	}
	if len(found) > maxCandidates {
		b.WriteString("\n  …")
	}
	return usage("%s", b.String())
}

// readable returns a snapshot that can be read.
func (w *which) readable(ctx context.Context, a *app, c index.Catalog, arg string) (backup.Snapshot, error) {
	s, err := w.snapshot(ctx, c, arg)
	if err != nil {
		return s, err
	}
	if s.State != backup.Committed {
		return s, absent("snapshot %s is %s: only a committed snapshot can be read", s.ID.Short(), a.shownState(ctx, c, s))
	}
	a.noteBad(&s)
	return s, nil
}

// place returns a snapshot that can be read, and the entry at a path in it.
func (w *which) place(ctx context.Context, a *app, c index.Catalog, arg string) (s backup.Snapshot, path string, e backup.Entry, err error) {
	id, given, _ := strings.Cut(arg, ":")
	if _, err = browse.CleanPath(given); err != nil {
		return s, "", e, usage("%v", err)
	}
	if s, err = w.readable(ctx, a, c, id); err != nil {
		return s, "", e, err
	}
	path, e, err = lookup(ctx, c, &s, given)
	return s, path, e, err
}

// lookup returns the path in a snapshot that a user means by given, and its entry.
func lookup(ctx context.Context, c index.Catalog, s *backup.Snapshot, given string) (path string, e backup.Entry, err error) {
	if path, err = browse.CleanPath(given); err != nil {
		return "", e, err
	}
	if e, err = browse.Lookup(ctx, c, s.ID, path); err == nil || !filepath.IsAbs(given) || !errors.Is(err, backup.ErrNotFound) {
		return path, e, noPath(s, given, err)
	}
	// The path is not in the tree, but may be a path as it is on the filer.
	root := rootOf(s)
	if below, ok := strings.CutPrefix("/"+path+"/", strings.TrimSuffix(root, "/")+"/"); ok {
		path = strings.TrimSuffix(below, "/")
		e, err = browse.Lookup(ctx, c, s.ID, path)
		return path, e, noPath(s, given, err)
	}
	return "", e, absent("no %q in snapshot %s, which is of %s: give a path below that, or relative to it", given, s.ID.Short(), display(root))
}

// noPath names the command that lists a snapshot, if err is that the snapshot does not have a path.
func noPath(s *backup.Snapshot, given string, err error) error {
	if !errors.Is(err, backup.ErrNotFound) {
		return err
	}
	return absent("no %q in snapshot %s (bctl ls %[2]s lists what it has)", given, s.ID.Short())
}

// rootOf returns the path from which workers read a snapshot, on their machine or the NFS server.
func rootOf(s *backup.Snapshot) string {
	source, _, _ := strings.Cut(sourceOf(s), "?")
	_, root, err := treeAt(source)
	if err != nil {
		return s.Shard.Name
	}
	return root
}
