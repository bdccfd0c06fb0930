package cli

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/stdin"
)

type backupCommand struct {
	app *app

	exclusions  exclusions
	allowShrink bool
	newRoot     bool
	reread      bool
	tags        []string
	filer       string
	shards      []string
	labels      []string
	all         bool
	detach      bool
	verbose     bool
	dryRun      bool
	list        fileList
	stream      stream

	selection backup.Selection // parsed from exclusions
}

const backupHelp = `Creates a snapshot of each PATH, a directory or a file of this machine. Files
that have not changed since the last snapshot are not read again, and content
that is already stored is not stored again. After an interrupted backup, the
next one walks the whole tree again and reuses the content that is stored.

--filer, --label and --all select shards that bctl shard add has registered: all
shards of a filer (with --shard: only these), all shards of the filers with a
label, or all shards of all filers.

In a fleet (--nats or the setting nats.url) the services do the work. They back
up all shards at once, within the limits of their filers, and bctl shows the
progress until all have ended. Interrupting bctl does not interrupt the
snapshots; use bctl cancel for that. If a shard is already being backed up, bctl
follows that snapshot; if it is the only shard, the exit status is 11.

On one machine, --reread reads every file again, whether it has changed or not.
Use it after the store has lost packs (bctl check names them): it stores their
content again. --reread is not available in a fleet, where a file is read again
when its times change (touch).

--exclude and the related flags add to the exclusions of the filer and the
shard.

On one machine, --stdin backs up the standard input as one file, NAME, in a
shard of its own, stdin:NAME. The input is first copied to the directory locks
of the repository, which needs the space. If it cannot be read, there is no
snapshot. A program that fails only ends its output: use set -o pipefail, and
check the status before you rely on the snapshot.`

func newBackup(a *app) *cobra.Command {
	c := &backupCommand{app: a}
	cmd := &cobra.Command{
		Use:   "backup [PATH…]",
		Short: "Back up directories and files",
		Long:  backupHelp,
		Example: `  bctl backup /home
  bctl backup --exclude '*.o' --exclude-if-present CACHEDIR.TAG /home /etc
  bctl backup /etc/fstab
  bctl backup nfs://vault.example/export/home
  bctl backup --one-file-system --exclude-larger-than 2GB --tag nightly /
  bctl backup --filer etc-list --files-from list /etc
  bctl backup --filer nas1 --shard /export/home
  bctl backup --filer nas1 --tag nightly
  bctl backup --label env=prod --detach
  bctl backup --all --json
  pg_dump … | bctl backup --stdin --stdin-filename db.sql`,
		RunE: func(cmd *cobra.Command, paths []string) (err error) {
			if c.selection, err = c.exclusions.apply(cmd, backup.Selection{}); err != nil {
				return err
			}
			if err := checkTags(c.tags); err != nil {
				return err
			}
			c.stream.in = cmd.InOrStdin()
			return c.run(cmd.Context(), paths)
		},
	}
	flags := cmd.Flags()
	c.exclusions.flags(cmd, "PATH")
	flags.BoolVar(&c.allowShrink, "allow-shrink", false, "commit even if the tree has far fewer files than last time")
	flags.BoolVar(&c.newRoot, "new-root", false, "accept that the shard is another tree now, for instance on a file system that was restored or migrated")
	flags.BoolVar(&c.reread, "reread", false, "on one machine: read every file again, whether it has changed or not")
	flags.StringArrayVar(&c.tags, "tag", nil, "give the snapshot a `TAG` (may be repeated)")
	flags.StringVar(&c.list.file, "files-from", "", "back up only the paths listed in `FILE` (-: stdin), one per line, relative to PATH; needs exactly one PATH")
	flags.BoolVarP(&c.list.nul, "null", "0", false, "with --files-from: paths end with NUL, as find -print0 writes them")
	c.stream.flags(cmd)
	flags.StringVar(&c.filer, "filer", "", "back up the shards of `FILER`; with PATH: record the snapshot under this filer (default: this machine, or the host of nfs://)")
	flags.StringArrayVar(&c.shards, "shard", nil, "with --filer: only this `SHARD` (may be repeated)")
	labelFlag(cmd, &c.labels)
	flags.BoolVar(&c.all, "all", false, "back up all shards of all filers")
	flags.BoolVar(&c.dryRun, "dry-run", false, "on one machine: walk, compare and report, without writing anything")
	flags.BoolVarP(&c.verbose, "verbose", "v", false, "print each new or changed file (on one machine), all errors, and the time per stage")
	flags.BoolVar(&c.detach, "detach", false, "in a fleet: do not wait until the snapshots end")
	a.completeFlag(cmd, "filer", a.filerNames)
	a.completeFlag(cmd, "shard", a.shardNames)
	a.completeFlag(cmd, "tag", a.tagNames)
	return cmd
}

// check fails unless the arguments define what to back up.
func (c *backupCommand) check(paths []string) error {
	fleet := c.app.cfg.Fleet()
	registered := c.filer != "" || len(c.labels) > 0 || c.all || c.stream.wanted
	if err := c.checkStream(paths); err != nil {
		return err
	}
	switch {
	case c.reread && fleet:
		return usage("--reread is not available in a fleet: there, a file is read again when its times change (touch)")
	case c.dryRun && fleet:
		return usage("--dry-run is not available in a fleet, where the services walk the trees")
	case slices.Contains(paths, ""):
		return usage("PATH is empty: name a directory (. is the current one) or a file")
	case c.detach && !fleet:
		return usage("--detach needs a fleet (--nats): without one, this process does the work")
	case len(c.shards) > 0 && c.filer == "":
		return usage("--shard SHARD needs the filer of the shard (--filer FILER); to back up a directory of this machine, give PATH without --shard")
	case c.list.file != "" && len(paths) != 1:
		return usage("--files-from needs exactly one PATH: the directory that contains all listed paths")
	case c.list.nul && c.list.file == "":
		return usage("-0 needs --files-from")
	case c.all && (c.filer != "" || len(c.labels) > 0):
		return usage("--all selects all shards of all filers and cannot be combined with --filer, --shard or --label")
	case len(paths) > 0 && (c.all || len(c.labels)+len(c.shards) > 0):
		return usage("name either directories or registered shards (--filer, --label, --all), not both")
	case len(paths) > 0 && fleet:
		return usage("a fleet backs up registered shards: register this one with bctl shard add FILER %s, then run bctl backup --filer FILER --shard %[1]s", argument(paths[0]))
	case len(paths) == 0 && !registered && fleet:
		return usage("there is nothing to back up: give --filer FILER [--shard SHARD], --label KEY=VALUE or --all")
	case len(paths) == 0 && !registered:
		return usage("there is nothing to back up: give a directory or a file, or registered shards with --filer, --label or --all")
	}
	return nil
}

// registered returns the shards that the flags name.
func (c *backupCommand) registered(ctx context.Context, i index.Catalog) ([]target, error) {
	labels, err := parseLabels(c.labels)
	if err != nil {
		return nil, err
	}
	found, err := i.ListShards(ctx, index.ShardFilter{Filer: c.filer, Labels: labels})
	if err != nil {
		return nil, err
	}
	var targets []target
	for n := range found {
		if !stdin.IsURL(found[n].Source) {
			targets = append(targets, target{filer: found[n].Filer.Name, shard: found[n].Shard})
		}
	}
	switch {
	case len(c.shards) > 0:
		return c.named(ctx, i, targets)
	case len(targets) > 0:
		return targets, nil
	case c.filer != "" && len(labels) == 0:
		f, err := findFiler(ctx, i, c.filer)
		if err != nil {
			return nil, err
		}
		if f.Retired {
			return nil, retiredFiler(c.filer)
		}
		return nil, absent("filer %s has no shards (register one with bctl shard add %[1]s PATH)", display(c.filer))
	case len(labels) > 0:
		return nil, absent("no filer with %s has a shard (bctl filer ls shows labels)", labelText(labels))
	}
	return nil, absent("no shard is registered (register a filer with bctl filer add NAME, then its shards with bctl shard add FILER PATH)")
}

// named returns the given filer's shards that --shard names.
func (c *backupCommand) named(ctx context.Context, i index.Catalog, of []target) (targets []target, err error) {
	byName := map[string]target{}
	for _, t := range of {
		byName[t.shard.Name] = t
	}
	for _, name := range c.shards {
		if filepath.IsAbs(name) {
			name = filepath.Clean(name)
		}
		t, ok := byName[name]
		if !ok {
			return nil, c.notThere(ctx, i, name)
		}
		targets = append(targets, t)
		delete(byName, name) // a second backup of it would fail with ErrRunning
	}
	return targets, nil
}

// notThere returns an error that explains why a shard cannot be backed up, with advice.
func (c *backupCommand) notThere(ctx context.Context, i index.Catalog, name string) error {
	s, err := findShard(ctx, i, c.filer, name)
	switch {
	case err != nil:
		return err
	case s.Filer.Retired:
		return retiredFiler(c.filer)
	case s.Retired:
		return absent("shard %s of filer %s is retired (register it again with bctl shard add %[2]s %[1]s)", argument(name), argument(c.filer))
	}
	if stdin.IsURL(s.Source) {
		return usage("shard %s is a standard input: back it up with bctl backup --stdin", display(name))
	}
	return usage("shard %s is named twice, or its filer has none of the labels", display(name))
}

func (c *backupCommand) run(ctx context.Context, paths []string) error {
	if err := c.check(paths); err != nil {
		return err
	}
	if err := c.readList(paths); err != nil {
		return err
	}
	if c.dryRun {
		return c.forecast(ctx, paths)
	}
	r, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	report := newReport(c.app, r.index, len(paths))
	report.verbose = c.verbose
	report.unmatched = c.given() // until a snapshot shows otherwise
	targets, err := c.targets(ctx, r.index, paths, report)
	if err != nil {
		return err
	}
	if c.app.cfg.Fleet() {
		return c.backUpInFleet(ctx, r, targets, report)
	}
	return c.backUpHere(ctx, r, targets, report)
}

func (c *backupCommand) open(ctx context.Context) (*repository, error) {
	if c.detach {
		return c.app.openToRegister(ctx)
	}
	return c.app.openRepository(ctx, toWrite)
}

// targets returns the shards to back up.
func (c *backupCommand) targets(ctx context.Context, i index.Catalog, paths []string, r *report) (targets []target, err error) {
	if len(paths) > 0 {
		return c.ofPaths(ctx, i, paths, r)
	}
	if c.stream.wanted {
		targets, err = c.ofStream(ctx, i)
	} else {
		targets, err = c.registered(ctx, i)
	}
	r.asked = len(targets)
	return targets, err
}

// readList reads the list of --files-from. Patterns of --exclude come after those of the list, and
// therefore exclude listed paths, too.
func (c *backupCommand) readList(paths []string) error {
	if c.list.file == "" {
		return nil
	}
	s, err := c.shardAt(paths[0])
	if err != nil {
		return err
	}
	if len(s.Selection.Exclude) > 0 {
		return usage("%s is not a directory, and --files-from needs the directory that contains all listed paths", display(paths[0]))
	}
	if err := c.list.read(c.app, c.stream.in, s.Name); err != nil {
		return err
	}
	c.selection.Exclude = slices.Concat(c.list.patterns, c.selection.Exclude)
	return nil
}

// request returns the request for BeginSnapshot.
func (c *backupCommand) request() backup.Snapshot {
	return backup.Snapshot{ID: backup.NewSnapshotID(), Selection: c.selection, AllowShrink: c.allowShrink, NewRoot: c.newRoot, Tags: c.tags}
}

// given returns the exclusions that should match something. Patterns in files apply to many trees,
// and need not match in each.
func (c *backupCommand) given() given {
	return given{notEmpty(c.exclusions.patterns), notEmpty(c.exclusions.ifPresent)}
}
