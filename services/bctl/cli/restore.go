package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/selection"
)

type restoreCommand struct {
	app              *app
	which            which
	target           string
	include, exclude []string
	newer            time.Time
	overwrite        string
	owners           ownerFlags
	del              bool
	dryRun           bool
	targetAttributes bool
	verify           bool
	sync             bool
	ignoreSpace      bool
	inPlace          bool
	verbose          bool
	instant          bool
	concurrency      int
	given            *pflag.FlagSet
	fleet            fleetRestore

	many    manyFlags
	tracker *tracker

	included, excluded *selection.Matcher // nil: no patterns
	ownerMap           *ownerMap          // nil: numbers as in the snapshot
}

// maxConcurrency is more than any store or machine can use.
const maxConcurrency = 1024

const restoreHelp = `Restores into DIR, which is created if it does not exist. The contents of the
directory PATH (without PATH: of the tree that was backed up) go directly into
DIR; a file goes into DIR under its own name. Nothing outside DIR is changed. An
existing DIR keeps its own owner, mode, times and extended attributes, unless
--target-attributes is given.

Files that were unreadable or changing during the backup are named, and the exit
status is 3.

To resume an interrupted restore, run it again: files that already have their
size and time are skipped.

--include and --exclude are patterns as in .gitignore, relative to PATH.

Without SNAPSHOT, --filer, --label or --all restores the last good snapshot of
each shard that it selects (--as-of: the last one of that time), one after the
other, into DIR/FILER/SHARD. In these names, "/" is written as %2F, and the
first / is left out. --map restores one shard into another directory. If a shard
fails, the others are restored all the same.

With --instant, a new or empty DIR can be used at once: it is mounted, content
is fetched when it is read, and everything is restored in the background. When
all is there and no process uses DIR, it becomes a plain directory. This needs
root and FUSE.

With --fleet, the restorers of a site (bctl restorer) share the restore. DIR is
a path on their machines. This command gives them the keys of the packs that
they need, and waits. If it is stopped, run it again to continue.`

const restoreExamples = `  bctl restore latest --target /tmp/restored
  bctl restore 3f2a:home/alice --target /home/alice --overwrite if-changed
  bctl restore latest:etc/hosts --target .
  bctl restore latest:projects --target /srv/projects --newer 24h
  bctl restore latest --target /srv/data --map-owner 1004:alice
  bctl restore latest --target /srv/data --delete --dry-run
  bctl restore latest --target /srv/data --instant
  bctl restore latest --filer nas1 --target /srv/new --fleet --site paris
  bctl restore --filer nas1 --target /mnt/new
  bctl restore --all --as-of 2026-11-01 --target /mnt/new --map nas1:/home=/home`

func newRestore(a *app) *cobra.Command {
	c := &restoreCommand{app: a}
	cmd := &cobra.Command{
		Use:               "restore [SNAPSHOT[:PATH]] --target DIR",
		Short:             "Restore files from a snapshot",
		Long:              restoreHelp,
		Example:           restoreExamples,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completePlace(&c.which),
		RunE:              func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	c.which.flags(a, cmd)
	c.many.flags(cmd)
	flags := cmd.Flags()
	c.given = flags
	flags.StringVarP(&c.target, "target", "t", "", "`DIR` to restore into (needed, unless --map names one for each shard)")
	flags.StringArrayVar(&c.include, "include", nil, "restore only files that match `PATTERN` (may be repeated)")
	flags.StringArrayVar(&c.exclude, "exclude", nil, "skip files that match `PATTERN` (may be repeated)")
	sinceFlag(flags, &c.newer, "newer", "restore only files that were modified after `TIME`: "+sinceForms)
	flags.StringVar(&c.overwrite, "overwrite", string(restore.IfChanged), "overwrite existing files: `WHEN` is always, if-changed (size or time differs), if-newer (the snapshot's is newer) or never")
	c.owners.flags(flags)
	flags.BoolVar(&c.del, "delete", false, "delete files in DIR that the snapshot does not have")
	flags.BoolVar(&c.dryRun, "dry-run", false, "print the changes, including deletions, without making them")
	flags.BoolVar(&c.targetAttributes, "target-attributes", false, "set the attributes of the restored directory on an existing DIR")
	flags.BoolVar(&c.inPlace, "in-place", false, "write only what differs into large files that exist, instead of replacing them")
	flags.BoolVar(&c.ignoreSpace, "ignore-space", false, "start even if an empty DIR does not have room for the files")
	flags.BoolVar(&c.sync, "sync", true, "sync the data to the disk of the target before exiting")
	flags.BoolVar(&c.verify, "verify", false, "compare also the content of files whose size and time match")
	flags.BoolVar(&c.instant, "instant", false, "mount DIR, so that it can be used while it is restored")
	flags.BoolVarP(&c.verbose, "verbose", "v", false, "print each change, and all errors")
	c.fleet.flags(flags)
	_ = cmd.RegisterFlagCompletionFunc("overwrite", cobra.FixedCompletions([]string{
		string(restore.Always), string(restore.IfChanged), string(restore.IfNewer), string(restore.Never),
	}, cobra.ShellCompDirectiveNoFileComp))
	numberFlag(flags, &c.concurrency, "concurrency", 0, 0, maxConcurrency, "maximum `NUMBER` of concurrent pack reads (0: by the number of CPUs)")
	return cmd
}

func (c *restoreCommand) options() (restore.Options, error) {
	o := restore.Options{
		Overwrite: restore.Overwrite(c.overwrite), Delete: c.del, TargetAttributes: c.targetAttributes,
		DryRun: c.dryRun, NoSync: !c.sync, Verify: c.verify, Concurrency: c.concurrency,
		IgnoreSpace: c.ignoreSpace, InPlace: c.inPlace, Estimate: c.app.showProgress(),
	}
	if c.target == "" && len(c.many.maps) == 0 {
		return o, usage("--target DIR is needed")
	}
	if !c.newer.IsZero() {
		o.Newer = backup.TimeOf(c.newer)
		if c.del {
			return o, usage("--newer and --delete exclude each other")
		}
	}
	var err error
	if o.Target, err = config.ExpandHome(c.target, c.app.env); err != nil {
		return o, usage("--target %v", err)
	}
	c.target = o.Target
	switch o.Overwrite {
	case restore.Always, restore.IfChanged, restore.IfNewer, restore.Never:
	default:
		return o, usage("--overwrite %s is not always, if-changed, if-newer or never", c.overwrite)
	}
	if c.inPlace && (o.Overwrite == restore.Never || o.Overwrite == restore.IfNewer) {
		return o, usage("--in-place needs --overwrite if-changed or always")
	}
	if c.included, err = watched(c.include); err != nil {
		return o, err
	}
	if c.excluded, err = watched(c.exclude); err != nil {
		return o, err
	}
	if c.ownerMap, err = c.owners.read(c.app); err != nil {
		return o, err
	}
	if c.ownerMap != nil {
		o.Owners = c.ownerMap
	}
	if c.included != nil { // an interface that holds a nil pointer is not nil
		o.Include = c.included
	}
	if c.excluded != nil {
		o.Exclude = c.excluded
	}
	return o, nil
}

// watched returns a Matcher that records which patterns match nothing; nil if there are no
// patterns.
func watched(patterns []string) (*selection.Matcher, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	m, err := selection.Compile(backup.Selection{Exclude: patterns})
	if err != nil {
		return nil, usage("%v", err)
	}
	m.Watch()
	return m, nil
}

// unmatched returns the patterns of a Matcher that matched nothing. If a single file is restored,
// the patterns do not apply.
func unmatched(m *selection.Matcher, kind backup.Kind) []string {
	if m == nil || kind != backup.Directory {
		return nil
	}
	return m.Unmatched()
}

// A restoring is the restore of one snapshot. It implements restore.Observer.
type restoring struct {
	*restoreCommand
	snapshot backup.Snapshot
	path     string      // in the snapshot
	kind     backup.Kind // of what is at path
	target   string
	place    place  // if several are restored
	label    string // of the shard, if several are restored
	causes   causeCounter
	sum      restore.Summary
	elapsed  time.Duration
}

func (c *restoreCommand) run(ctx context.Context, given []string) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	if err := cmp.Or(c.many.check(c, given), c.checkInstant(given), c.checkFleet(given, &o)); err != nil {
		return err
	}
	r, err := c.app.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	list := make([]*restoring, 1)
	if len(given) == 0 {
		list, err = c.many.list(ctx, c, r.index)
	} else {
		list[0], err = c.single(ctx, r.index, given[0])
	}
	if err != nil {
		return err
	}
	if c.fleet.abandon {
		return c.abandonFleet(ctx, r.index)
	}
	opener, key, err := c.app.openSealed(ctx, r)
	if err != nil {
		return err
	}
	deps := restore.Deps{Catalog: r.index, Store: r.store, Repository: r.object.ID, Opener: opener, HashKey: key}
	c.tracker = newTracker()
	stop := c.app.animate(c.tracker.line)
	defer stop()
	if len(given) == 0 {
		return c.restoreMany(ctx, r.index, deps, o, list)
	}
	if c.fleet.on {
		return list[0].restoreInFleet(ctx, r.index, deps, o, stop)
	}
	err = list[0].restore(ctx, r.index, deps, o)
	stop()
	list[0].causes.end(allErrors)
	if err != nil {
		c.hintAtResuming(err)
		return err
	}
	return list[0].conclude()
}

// allErrors ends the list of the first errors.
const allErrors = "bctl restore -v prints all errors; so does --json."

func (c *restoreCommand) hintAtResuming(err error) {
	if errors.Is(err, process.ErrInterrupted) {
		c.app.term.println("To resume, run the same command again; finished files are skipped.")
	}
}

// single returns the restore of the only place that is given.
func (c *restoreCommand) single(ctx context.Context, i index.Catalog, arg string) (*restoring, error) {
	s, path, entry, err := c.which.place(ctx, c.app, i, arg)
	if err != nil {
		return nil, err
	}
	return &restoring{restoreCommand: c, snapshot: s, path: path, kind: entry.Kind, target: c.target}, nil
}

// restore restores the snapshot with the given options, which are those of all snapshots.
func (x *restoring) restore(ctx context.Context, i index.Index, deps restore.Deps, o restore.Options) (err error) {
	s := &x.snapshot
	o.Snapshot, o.Path, o.Target, o.Pages, o.Compare, o.Counts = s.ID, x.path, x.target, s.Pages, s.Compare, s.Counts
	if o.LeftOut, err = selection.Compile(s.Selection); err != nil {
		return err
	}
	if err := x.protect(&o, deps.Repository); err != nil {
		return err
	}
	if !x.dryRun {
		end, err := x.app.beginReading(ctx, i, s.ID)
		if err != nil {
			return err
		}
		defer end()
	}
	x.causes = causeCounter{term: x.app.term, all: x.verbose, label: x.label}
	started := time.Now()
	if x.instant {
		x.sum, err = x.restoreInstantly(ctx, i, deps, &o)
	} else {
		x.sum, err = restore.Restore(ctx, deps, o, x)
	}
	x.elapsed = time.Since(started)
	return err
}

// protect excludes the repository's own files from the restore, and prints them.
func (x *restoring) protect(o *restore.Options, id backup.RepositoryID) error {
	paths, err := x.app.keptPaths(id)
	if err != nil {
		return err
	}
	if o.Protected, err = leftOut(paths, x.target); err != nil {
		return err
	}
	for _, own := range o.Protected {
		x.app.note("%s belongs to the repository and is skipped", display(filepath.Join(x.target, own)))
	}
	for _, other := range x.place.within {
		x.app.note("%s is the directory of another shard, and what %s has there is skipped", display(filepath.Join(x.target, other)), display(x.snapshot.Shard.Name))
	}
	o.Protected = append(o.Protected, x.place.within...)
	o.ProtectedInodes = inodesOf(paths)
	return nil
}

// conclude reports what the only restore did, and the patterns that matched nothing.
func (x *restoring) conclude() error {
	noInclude, noExclude := unmatched(x.included, x.kind), unmatched(x.excluded, x.kind)
	if err := x.summary(slices.Concat(noInclude, noExclude)); err != nil {
		return err
	}
	root := cmp.Or(display(x.path), "the tree that was backed up")
	if err := x.noteUnmatched(root, noInclude, noExclude); err != nil {
		return err
	}
	if x.sum.Problems > 0 {
		return errIncomplete
	}
	return nil
}

// noteUnmatched reports the patterns that matched nothing below root. It fails if --include matched
// nothing at all.
func (c *restoreCommand) noteUnmatched(root string, noInclude, noExclude []string) error {
	c.app.noteUnmatched("exclude", root, noExclude)
	if len(noInclude) > 0 && len(noInclude) == len(c.include) {
		what := "nothing was restored: --include matched nothing"
		if c.excluded != nil {
			what += " that --exclude leaves"
		}
		return fmt.Errorf("%s; patterns are relative to %s, which bctl ls -R lists", what, root)
	}
	c.app.noteUnmatched("include", root, noInclude)
	return nil
}

// Progress, Change and Problem implement restore.Observer.
func (x *restoring) Progress(p restore.Progress) {
	if p.Total.Files > 0 {
		x.tracker.expect(x.snapshot.ID, p.Total.Files, p.Total.Bytes)
	}
	x.tracker.set(x.snapshot.ID, p.Files, p.Bytes, 0)
	x.tracker.at(p.Path)
}

func (x *restoring) Change(ch restore.Change) {
	if !x.verbose && !x.dryRun || ch.Action == restore.Keep && !x.verbose {
		return
	}
	path := cmp.Or(ch.Path, ".") // the target itself
	shard := ""
	if x.label != "" {
		shard = x.snapshot.Shard.Name
	}
	x.app.printChange(string(ch.Action), shard, path, ch.Size)
}

func (x *restoring) Problem(p backup.Problem) {
	if !x.app.json {
		x.causes.problem(p)
		return
	}
	object := problemJSON(p)
	if x.label != "" {
		object.Snapshot = x.snapshot.ID.String()
	}
	x.app.print(object)
}
