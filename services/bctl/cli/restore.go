package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
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
	verbose          bool
	concurrency      int
	fleet            fleetRestore

	tracker            *tracker
	causes             causeCounter
	included, excluded *selection.Matcher // nil: no patterns
	ownerMap           *ownerMap          // nil: numbers as in the snapshot
}

// maxConcurrency is more than any store or machine can use.
const maxConcurrency = 1024

func newRestore(a *app) *cobra.Command {
	c := &restoreCommand{app: a}
	cmd := &cobra.Command{
		Use:   "restore SNAPSHOT[:PATH] --target DIR",
		Short: "Restore files from a snapshot",
		Long: `Restores into DIR, which is created if it does not exist. The contents of the
directory PATH (without PATH: of the tree that was backed up) go directly into
DIR; a file goes into DIR under its own name. Nothing outside DIR is changed. An
existing DIR keeps its own owner, mode, times and extended attributes, unless
--target-attributes is given.

Files that were unreadable or changing during the backup are named, and the exit
status is 3.

To resume an interrupted restore, run it again: files that already have their
size and time are skipped.

--include and --exclude are patterns as in .gitignore, relative to PATH.

With --fleet, the restorers of a site (bctl restorer) share the restore. DIR is
a path on their machines. This command gives them the keys of the packs that
they need, and waits. If it is stopped, run it again to continue.`,
		Example: `  bctl restore latest --target /tmp/restored
  bctl restore 3f2a:home/alice --target /home/alice --overwrite if-changed
  bctl restore latest:etc/hosts --target .
  bctl restore latest:projects --target /srv/projects --newer 24h
  bctl restore latest --target /srv/data --map-owner 1004:alice
  bctl restore latest --target /srv/data --delete --dry-run
  bctl restore latest --filer nas1 --target /srv/new --fleet --site paris`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlace(&c.which),
		RunE:              func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given[0]) },
	}
	c.which.flags(a, cmd)
	flags := cmd.Flags()
	flags.StringVarP(&c.target, "target", "t", "", "`DIR` to restore into (required)")
	flags.StringArrayVar(&c.include, "include", nil, "restore only files that match `PATTERN` (may be repeated)")
	flags.StringArrayVar(&c.exclude, "exclude", nil, "skip files that match `PATTERN` (may be repeated)")
	sinceFlag(flags, &c.newer, "newer", "restore only files that were modified after `TIME`: "+sinceForms)
	flags.StringVar(&c.overwrite, "overwrite", string(restore.IfChanged), "overwrite existing files: `WHEN` is always, if-changed (size or time differs), if-newer (the snapshot's is newer) or never")
	c.owners.flags(flags)
	flags.BoolVar(&c.del, "delete", false, "delete files in DIR that the snapshot does not have")
	flags.BoolVar(&c.dryRun, "dry-run", false, "print the changes, including deletions, without making them")
	flags.BoolVar(&c.targetAttributes, "target-attributes", false, "set the attributes of the restored directory on an existing DIR")
	flags.BoolVar(&c.sync, "sync", true, "sync the data to the disk of the target before exiting")
	flags.BoolVar(&c.verify, "verify", false, "compare also the content of files whose size and time match")
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
	}
	if c.target == "" {
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
	err = c.checkFleet(&o)
	return o, err
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

func (c *restoreCommand) run(ctx context.Context, arg string) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	r, err := c.app.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	s, path, entry, err := c.which.place(ctx, c.app, r.index, arg)
	if err != nil {
		return err
	}
	o.Snapshot, o.Path, o.Pages, o.Compare = s.ID, path, s.Pages, s.Compare
	if c.fleet.on {
		return c.runFleet(ctx, r, &s, &entry, &o)
	}
	opener, key, err := c.app.openSealed(ctx, r)
	if err != nil {
		return err
	}
	if o.LeftOut, err = selection.Compile(s.Selection); err != nil {
		return err
	}
	if err := c.protect(&o, r.object.ID); err != nil {
		return err
	}
	if !c.dryRun {
		end, err := c.app.beginReading(ctx, r.index, s.ID)
		if err != nil {
			return err
		}
		defer end()
	}
	c.tracker = newTracker()
	c.causes = causeCounter{term: c.app.term, all: c.verbose}
	files, bytes := c.expect(&s, &o)
	c.tracker.expect(backup.SnapshotID{}, files, bytes)
	stop := c.app.animate(c.tracker.line)
	defer stop()
	started := time.Now()
	sum, err := restore.Restore(ctx, restore.Deps{Catalog: r.index, Store: r.store, Repository: r.object.ID, Opener: opener, HashKey: key}, o, c)
	stop()
	c.causes.end("bctl restore -v prints all errors; so does --json.")
	if err != nil {
		if errors.Is(err, process.ErrInterrupted) {
			c.app.term.println("To resume, run the same command again; finished files are skipped.")
		}
		return err
	}
	return c.conclude(&s, path, entry.Kind, &sum, time.Since(started))
}

// protect excludes the repository's own files from the restore, and prints them.
func (c *restoreCommand) protect(o *restore.Options, id backup.RepositoryID) error {
	paths, err := c.app.keptPaths(id)
	if err != nil {
		return err
	}
	if o.Protected, err = leftOut(paths, c.target); err != nil {
		return err
	}
	for _, own := range o.Protected {
		c.app.note("%s belongs to the repository and is skipped", display(filepath.Join(c.target, own)))
	}
	o.ProtectedInodes = inodesOf(paths)
	return nil
}

// conclude reports what was restored, and the patterns that matched nothing.
func (c *restoreCommand) conclude(s *backup.Snapshot, path string, kind backup.Kind, sum *restore.Summary, elapsed time.Duration) error {
	noInclude, noExclude := unmatched(c.included, kind), unmatched(c.excluded, kind)
	if err := c.summary(s, sum, elapsed, slices.Concat(noInclude, noExclude)); err != nil {
		return err
	}
	root := cmp.Or(display(path), "the tree that was backed up")
	c.app.noteUnmatched("exclude", root, noExclude)
	if len(noInclude) > 0 && len(noInclude) == len(c.include) {
		what := "nothing was restored: --include matched nothing"
		if c.excluded != nil {
			what += " that --exclude leaves"
		}
		return fmt.Errorf("%s; patterns are relative to %s, which bctl ls -R lists", what, root)
	}
	c.app.noteUnmatched("include", root, noInclude)
	if sum.Problems > 0 {
		return errIncomplete
	}
	return nil
}

// expect returns the amount to restore, if it is known.
func (c *restoreCommand) expect(s *backup.Snapshot, o *restore.Options) (files, bytes int64) {
	if o.Path != "" || o.Include != nil || o.Exclude != nil || !o.Newer.IsZero() {
		return 0, 0
	}
	return s.Counts.Files, s.Counts.Bytes
}

// Progress, Change and Problem implement restore.Observer.
func (c *restoreCommand) Progress(p restore.Progress) {
	c.tracker.set(backup.SnapshotID{}, p.Files, p.Bytes, 0)
	c.tracker.at(p.Path)
}

func (c *restoreCommand) Change(ch restore.Change) {
	if !c.verbose && !c.dryRun || ch.Action == restore.Keep && !c.verbose {
		return
	}
	path := cmp.Or(ch.Path, ".") // the target itself
	c.app.printChange(string(ch.Action), "", path, ch.Size)
}

func (c *restoreCommand) Problem(p backup.Problem) {
	if c.app.json {
		c.app.print(problemJSON(p))
		return
	}
	c.causes.problem(p)
}

func (c *restoreCommand) summary(s *backup.Snapshot, sum *restore.Summary, elapsed time.Duration, unmatched []string) error {
	if c.app.json {
		users, groups := c.ownerMap.unknown()
		return c.app.print(struct {
			Type           string   `json:"type"`
			Snapshot       string   `json:"snapshot"`
			Target         string   `json:"target"`
			DryRun         bool     `json:"dry_run"`
			Files          int64    `json:"files"`
			Links          int64    `json:"links"`
			Directories    int64    `json:"directories"`
			Kept           int64    `json:"kept"`
			KeptDirs       int64    `json:"kept_directories"`
			Attributes     int64    `json:"attributes"`
			Deleted        int64    `json:"deleted"`
			Bytes          int64    `json:"bytes"`
			KeptBytes      int64    `json:"kept_bytes"`
			Errors         int64    `json:"errors"`
			Flawed         int64    `json:"flawed"`
			ElapsedSeconds float64  `json:"elapsed_seconds"`
			Unmatched      []string `json:"unmatched_patterns,omitempty"`
			UnknownUsers   []string `json:"unknown_users,omitempty"`
			UnknownGroups  []string `json:"unknown_groups,omitempty"`
		}{"summary", s.ID.String(), c.target, c.dryRun, sum.Files, sum.Links, sum.Directories, sum.Kept, sum.KeptDirs, sum.Attributes, sum.Deleted,
			sum.Bytes, sum.KeptBytes, sum.Problems, sum.Flawed, elapsed.Seconds(), unmatched, users, groups})
	}
	return c.summaryText(s, sum, elapsed)
}

// summaryText prints what a person asks, with errors first, and leaves out what is zero.
func (c *restoreCommand) summaryText(s *backup.Snapshot, sum *restore.Summary, elapsed time.Duration) error {
	var b strings.Builder
	if sum.Problems > 0 {
		b.WriteString(counted(sum.Problems, "error"))
		switch sum.Flawed {
		case sum.Problems:
			b.WriteString(", recorded when the snapshot was taken; another snapshot may have more")
		case 0:
			b.WriteString(": not everything was restored (docs/restore.md explains the errors)")
		default:
			fmt.Fprintf(&b, ", of which %s recorded when the snapshot was taken; another\nsnapshot may have more", wasWere(sum.Flawed))
		}
		b.WriteString("\n")
	}
	verb := "restored"
	if c.dryRun {
		verb = "would restore"
	}
	fmt.Fprintf(&b, "%s %s", verb, counted(sum.Files, "file"))
	if sum.Links > 0 {
		b.WriteString(", " + counted(sum.Links, "hard link"))
	}
	if sum.Directories > 0 {
		b.WriteString(", " + counted(sum.Directories, "directory"))
	}
	fmt.Fprintf(&b, " (%s) from snapshot %s in %.1f s\n", size(sum.Bytes), s.ID.Short(), elapsed.Seconds())
	if rest := c.rest(sum); len(rest) > 0 {
		b.WriteString(strings.Join(rest, ", ") + "\n")
	}
	_, err := io.WriteString(c.app.out, b.String())
	return err
}

// rest returns what a restore did besides restoring.
func (c *restoreCommand) rest(sum *restore.Summary) (parts []string) {
	if sum.Kept+sum.KeptDirs > 0 {
		text := "skipped " + counted(sum.Kept, "file")
		if sum.KeptDirs > 0 {
			text += " and " + counted(sum.KeptDirs, "directory")
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", text, size(sum.KeptBytes)))
	}
	if sum.Attributes > 0 {
		parts = append(parts, "set attributes of "+humanize.Comma(sum.Attributes))
	}
	if c.del || sum.Deleted > 0 {
		parts = append(parts, "deleted "+humanize.Comma(sum.Deleted))
	}
	return parts
}

func wasWere(n int64) string {
	if n == 1 {
		return "1 was"
	}
	return humanize.Comma(n) + " were"
}
