package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/run"
	"github.com/bctl/bctl/internal/selection"
)

type backupCommand struct {
	app *app

	exclude, excludeFiles, excludeIfPresent []string
	oneFileSystem                           bool
	excludeLarger                           string
	allowShrink                             bool
	tags                                    []string
	filer                                   string
	shards                                  []string
	detach                                  bool
}

func newBackup(a *app) *cobra.Command {
	c := &backupCommand{app: a}
	cmd := &cobra.Command{
		Use:   "backup [PATH…]",
		Short: "Back directories up",
		Long: `Makes a snapshot of each PATH, a directory of this machine. What has not changed
since the last snapshot is not read again, and content that is stored already is not
stored again. A backup that was interrupted is gone on with.

For a fleet (--nats or the setting nats.url) the services do the work: --filer and
--shard name the tree, and bctl follows the snapshot until it ends. Interrupting bctl does not
interrupt the snapshot then.

Patterns are those of .gitignore, relative to PATH.`,
		Example: `  bctl backup /home
  bctl backup --exclude '*.o' --exclude-if-present CACHEDIR.TAG /home /etc
  bctl backup --one-file-system --exclude-larger-than 2GB --tag nightly /
  bctl backup --config fleet.yaml --filer nas1 --shard /export/home --detach`,
		RunE: func(cmd *cobra.Command, paths []string) error { return c.run(cmd.Context(), paths) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&c.exclude, "exclude", nil, "leave out what matches `PATTERN` (may be repeated)")
	flags.StringArrayVar(&c.excludeFiles, "exclude-file", nil, "`FILE` of patterns, as .gitignore (may be repeated)")
	flags.StringArrayVar(&c.excludeIfPresent, "exclude-if-present", nil, "leave out what is in directories that have a `NAME` in them (may be repeated)")
	flags.BoolVar(&c.oneFileSystem, "one-file-system", false, "leave out what is mounted below PATH")
	flags.StringVar(&c.excludeLarger, "exclude-larger-than", "", "leave out files above `SIZE` (500MB, 2GiB)")
	flags.BoolVar(&c.allowShrink, "allow-shrink", false, "commit even if there are far fewer files than last time")
	flags.StringArrayVar(&c.tags, "tag", nil, "give the snapshot a `TAG` (may be repeated)")
	flags.StringVar(&c.filer, "filer", "", "`FILER` that the tree is on (default: this machine)")
	flags.StringArrayVar(&c.shards, "shard", nil, "`SHARD` to back up, in a fleet (may be repeated)")
	flags.BoolVar(&c.detach, "detach", false, "in a fleet: do not wait for the end")
	return cmd
}

// selection returns what the flags leave out.
func (c *backupCommand) selection() (backup.Selection, error) {
	s := backup.Selection{ExcludeIfPresent: c.excludeIfPresent, OneFileSystem: c.oneFileSystem}
	for _, path := range c.excludeFiles {
		text, err := os.ReadFile(path)
		if err != nil {
			return s, fmt.Errorf("exclude file: %w", err)
		}
		s.Exclude = append(s.Exclude, selection.Lines(string(text))...)
	}
	s.Exclude = append(s.Exclude, c.exclude...)
	if c.excludeLarger != "" {
		bytes, err := humanize.ParseBytes(c.excludeLarger)
		if err != nil || bytes == 0 || bytes > 1<<62 {
			return s, usage("--exclude-larger-than %q is not a size (500MB, 2GiB)", c.excludeLarger)
		}
		s.ExcludeLargerBytes = int64(bytes)
	}
	if _, err := selection.Compile(s); err != nil {
		return s, usage("%v", err)
	}
	return s, nil
}

// A tree is one thing to back up.
type tree struct {
	filer, shard, source string
}

// trees returns what the arguments name.
func (c *backupCommand) trees(paths []string) ([]tree, error) {
	fleet := c.app.cfg.Fleet()
	switch {
	case !fleet && (len(c.shards) > 0 || c.detach):
		return nil, usage("--shard and --detach are for a fleet (--nats); here, name the directories")
	case fleet && (c.filer == "" || len(c.shards)+len(paths) == 0):
		return nil, usage("in a fleet, --filer FILER and --shard SHARD name what to back up")
	case len(c.shards)+len(paths) == 0:
		return nil, usage("name at least one directory to back up")
	}
	filer := c.filer
	if filer == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("find this machine's name (--filer sets one): %w", err)
		}
		filer = host
	}
	var trees []tree
	for _, path := range append(c.shards, paths...) {
		if !fleet {
			var err error
			if path, err = directory(path); err != nil {
				return nil, err
			}
		} else if !filepath.IsAbs(path) {
			return nil, usage("shard %q is not an absolute path", path)
		}
		trees = append(trees, tree{filer, filepath.Clean(path), sourceURL(filepath.Clean(path))})
	}
	return trees, nil
}

// directory returns the absolute path of a directory of this machine.
func directory(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s does not exist: %w", path, backup.ErrNotFound)
	case err != nil:
		return "", err
	case !info.IsDir():
		return "", fmt.Errorf("%s is not a directory; back up the one that it is in: %w", path, backup.ErrInvalid)
	}
	return filepath.Abs(path)
}

func (c *backupCommand) run(ctx context.Context, paths []string) error {
	selected, err := c.selection()
	if err != nil {
		return err
	}
	trees, err := c.trees(paths)
	if err != nil {
		return err
	}
	r, err := c.app.openRepository(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	backUp, stop, err := c.app.engine(r, c.detach)
	if err != nil {
		return err
	}
	defer stop()
	var failed error
	incomplete := false
	for _, t := range trees {
		err := c.one(ctx, r, backUp, t, selected)
		if errors.Is(err, errIncomplete) {
			incomplete = true
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed == nil && incomplete {
		return errIncomplete
	}
	return failed
}

// one backs one tree up.
func (c *backupCommand) one(ctx context.Context, r *repository, backUp engine, t tree, selected backup.Selection) error {
	filer, err := r.index.EnsureFiler(ctx, t.filer)
	if err != nil {
		return err
	}
	shard, err := r.index.EnsureShard(ctx, filer.ID, t.shard, t.source)
	if err != nil {
		return err
	}
	before, err := r.index.Snapshots(ctx, index.SnapshotFilter{Filer: t.filer, Shard: t.shard, States: []backup.State{backup.Committed}, Limit: 1})
	if err != nil {
		return err
	}
	progress := newTracker(0, 0)
	if len(before) > 0 {
		progress = newTracker(before[0].Counts.Files, before[0].Counts.Bytes)
	}
	stop := c.app.animate(progress.line)
	started := time.Now()
	s, err := backUp(ctx, shard, backup.Snapshot{
		ID: backup.NewSnapshotID(), Selection: selected, AllowShrink: c.allowShrink, Tags: c.tags,
	}, progress.add)
	stop()
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, run.ErrInterrupted) {
			c.interrupted(t)
			return cause
		}
		return fmt.Errorf("back up %s: %w", display(t.shard), err)
	}
	return c.ended(context.WithoutCancel(ctx), r, &s, time.Since(started))
}

func (c *backupCommand) interrupted(t tree) {
	if c.app.cfg.Fleet() {
		c.app.term.println("The services go on with the snapshot of " + display(t.shard) + "; bctl snapshot ls shows how far it is.")
		return
	}
	c.app.term.println("The snapshot of " + display(t.shard) + " is not complete. The next bctl backup of it goes on where this one stopped.")
}

// ended tells what became of a snapshot.
func (c *backupCommand) ended(ctx context.Context, r *repository, s *backup.Snapshot, elapsed time.Duration) error {
	if s.State == backup.Running { // detached
		if c.app.json {
			return c.app.print(c.summaryJSON(s, elapsed))
		}
		_, err := fmt.Fprintf(c.app.out, "snapshot %v is running\n", s.ID)
		return err
	}
	for p, err := range r.index.Problems(ctx, s.ID) {
		if err != nil {
			return err
		}
		if c.app.json {
			if err := c.app.print(problemJSON(p)); err != nil {
				return err
			}
		} else {
			c.app.term.println(describeProblem(p))
		}
	}
	if err := c.summary(s, elapsed); err != nil {
		return err
	}
	switch {
	case s.State != backup.Committed:
		return fmt.Errorf("the snapshot of %s failed: %s", display(s.Shard.Name), s.Reason)
	case s.Counts.Errors > 0:
		return errIncomplete
	}
	return nil
}

func (c *backupCommand) summary(s *backup.Snapshot, elapsed time.Duration) error {
	if c.app.json {
		return c.app.print(c.summaryJSON(s, elapsed))
	}
	t := tabwriter.NewWriter(c.app.out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	row("snapshot", "%s of %s %s, number %d: %s in %.1f s", s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.Number, s.State, elapsed.Seconds())
	countRows(row, &s.Counts)
	row("errors", "%s", humanize.Comma(s.Counts.Errors))
	return t.Flush()
}

// backupSummary is the last object of backup --json. The names are fixed.
type backupSummary struct {
	Type           string       `json:"type"` // summary
	Snapshot       string       `json:"snapshot"`
	Filer          string       `json:"filer"`
	Shard          string       `json:"shard"`
	State          string       `json:"state"`
	Reason         string       `json:"reason,omitempty"`
	Files          int64        `json:"files"`
	Directories    int64        `json:"directories"`
	Bytes          int64        `json:"bytes"`
	FilesNew       int64        `json:"files_new"`
	FilesChanged   int64        `json:"files_changed"`
	FilesUnchanged int64        `json:"files_unchanged"`
	NewBytes       int64        `json:"new_bytes"`
	StoredBytes    int64        `json:"stored_bytes"`
	ReadBytes      int64        `json:"read_bytes"`
	Errors         int64        `json:"errors"`
	StatCalls      int64        `json:"stat_calls"`
	ElapsedSeconds float64      `json:"elapsed_seconds"`
	StageSeconds   stageSeconds `json:"stage_seconds"`
}

func (c *backupCommand) summaryJSON(s *backup.Snapshot, elapsed time.Duration) backupSummary {
	n := &s.Counts
	return backupSummary{
		Type: "summary", Snapshot: s.ID.String(), Filer: s.Filer.Name, Shard: s.Shard.Name, State: string(s.State), Reason: s.Reason,
		Files: n.Files, Directories: n.Directories, Bytes: n.Bytes,
		FilesNew: n.FilesNew, FilesChanged: n.FilesChanged, FilesUnchanged: n.FilesUnchanged,
		NewBytes: n.NewBytes, StoredBytes: n.StoredBytes, ReadBytes: n.ReadBytes, Errors: n.Errors, StatCalls: n.StatCalls,
		ElapsedSeconds: elapsed.Seconds(), StageSeconds: stagesOf(n),
	}
}
