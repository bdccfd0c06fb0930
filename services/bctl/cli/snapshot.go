package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newSnapshot(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "snapshot", Short: "List, show and mark snapshots"})
	cmd.AddCommand(newSnapshotLs(a), newSnapshotShow(a), newSnapshotMarkBad(a), newSnapshotMarkGood(a))
	return cmd
}

// newSnapshots returns a command that lists snapshots, as in restic, and has those of snapshot.
func newSnapshots(a *app) *cobra.Command {
	cmd := newSnapshotLs(a)
	cmd.Use, cmd.Hidden = "snapshots", true
	cmd.AddCommand(newSnapshot(a).Commands()...)
	return cmd
}

type snapshotLs struct {
	app    *app
	which  which
	since  time.Time
	states []string
	limit  int
	all    bool
}

// listed is the default length of a list for display.
const listed = 50

func newSnapshotLs(a *app) *cobra.Command {
	c := &snapshotLs{app: a}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List snapshots, newest last",
		Long: `Lists the newest 50 snapshots, or as many as --limit says; a note says so where
there are more. With --json all are listed, unless --limit is given.`,
		Example: `  bctl snapshot ls
  bctl snapshot ls --filer nas1 --since 24h --all
  bctl snapshot ls --state failed --limit 10 --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			limited := cmd.Flags().Changed("limit")
			if limited && c.all {
				return usage("--limit and --all are given together")
			}
			if c.all || a.json && !limited {
				c.limit = 0
			}
			return c.run(cmd.Context())
		},
	}
	c.which.flags(a, cmd)
	sinceFlag(cmd.Flags(), &c.since, "since", "started at or after `TIME`: 2006-01-02, RFC 3339, or 24h (ago)")
	cmd.Flags().StringSliceVar(&c.states, "state", nil, "only running, interrupted, committed, failed or deleting ones")
	numberFlag(cmd.Flags(), &c.limit, "limit", listed, 0, most, "the newest `N`; 0: all")
	cmd.Flags().BoolVar(&c.all, "all", false, "all snapshots")
	return cmd
}

func (c *snapshotLs) run(ctx context.Context) error {
	f := index.SnapshotFilter{Filer: c.which.filer, Shard: c.which.shard, Since: c.since}
	if c.limit > 0 {
		f.Limit = c.limit + 1 // one more, to detect that there are more
	}
	states, err := parseStates(c.states)
	if err != nil {
		return err
	}
	f.States = states.indexed()
	if states.tellsApart() {
		f.Limit = 0 // limited after filtering
	}
	i, err := c.app.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	c.app.noteCurrent(ctx, i)
	found, err := i.Snapshots(ctx, f)
	if err == nil {
		c.app.markInterrupted(ctx, i, found)
	}
	if states.tellsApart() {
		found = states.wanted(found)
	}
	more := c.limit > 0 && len(found) > c.limit
	if more {
		found = found[len(found)-c.limit:]
	}
	if err == nil && len(found) == 0 {
		err = c.which.exists(ctx, i)
	}
	if err != nil {
		return err
	}
	if c.app.json {
		for n := range found {
			if err := c.app.print(newSnapshotJSON(&found[n])); err != nil {
				return err
			}
		}
		return nil
	}
	if more {
		defer c.app.note("these are the newest %d; --all lists all, --limit N more of them", c.limit)
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	return snapshotTable(c.app.out, found, now)
}

func snapshotTable(w io.Writer, found []backup.Snapshot, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	other := slices.ContainsFunc(found, func(s backup.Snapshot) bool { return takenFrom(&s) != "" })
	failed := slices.ContainsFunc(found, func(s backup.Snapshot) bool { return s.Reason != "" })
	fmt.Fprint(t, "ID\tSTARTED\tFILER\tSHARD\tNUMBER\tSTATE\tFILES\tSIZE\tSTORED\tERRORS\tTAGS")
	if other {
		fmt.Fprint(t, "\tSOURCE")
	}
	if failed {
		fmt.Fprint(t, "\tREASON")
	}
	fmt.Fprintln(t)
	for i := range found {
		s := &found[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s", s.ID.Short(), happened(s.Started, now), display(s.Filer.Name),
			display(s.Shard.Name), s.Number, stateText(s), humanize.Comma(s.Counts.Files), size(s.Counts.Bytes), size(s.Counts.StoredBytes),
			s.Counts.Errors, display(strings.Join(s.Tags, ",")))
		if other {
			fmt.Fprint(t, "\t"+display(takenFrom(s)))
		}
		if failed {
			fmt.Fprint(t, "\t"+display(s.Reason))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// sourceOf returns the URL from which a snapshot was read.
func sourceOf(s *backup.Snapshot) string {
	if s.Source == "" { // made by an earlier version
		return s.Shard.Source
	}
	return s.Source
}

// takenFrom returns the path of the filer's own snapshot that was read instead of the shard; "" if
// there is none.
func takenFrom(s *backup.Snapshot) string {
	_, query, _ := strings.Cut(s.Source, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return ""
	}
	return values.Get("snapshot")
}

func newSnapshotShow(a *app) *cobra.Command {
	var w which
	var verbose bool
	cmd := &cobra.Command{
		Use:   "show SNAPSHOT",
		Short: "Show a snapshot in detail",
		Long: `Shows what a snapshot contains, and every file that could not be backed up.
SNAPSHOT is an id, the beginning of one, or latest.`,
		Example: `  bctl snapshot show latest
  bctl snapshot show 3f2a --json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.showSnapshot(cmd.Context(), &w, given[0], verbose)
		},
	}
	w.flags(a, cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show the stat calls and the time per stage")
	return cmd
}

func (a *app) showSnapshot(ctx context.Context, w *which, arg string, verbose bool) error {
	i, err := a.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	a.noteCurrent(ctx, i)
	s, err := w.snapshot(ctx, i, arg)
	if err != nil {
		return err
	}
	s.State = a.shownState(ctx, i, s)
	if a.json {
		err = a.print(newSnapshotDetail(&s))
	} else {
		err = a.describe(ctx, i, &s, verbose)
	}
	if err != nil {
		return err
	}
	for p, err := range i.Problems(ctx, s.ID) {
		if err != nil {
			return err
		}
		if a.json {
			err = a.print(problemJSON(p))
		} else {
			_, err = fmt.Fprintf(a.out, "  %s\n", describeProblem(p))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func describeProblem(p backup.Problem) string {
	path := p.Path
	if path == "" {
		path = "."
	}
	return fmt.Sprintf("%s: %s: %s", display(path), p.Op, display(p.Err))
}

// snapshotDetail is the object of snapshot show. The problems follow as error objects.
type snapshotDetail struct {
	Type string `json:"type"` // snapshot
	snapshotJSON
	Base           int64        `json:"base"`
	Source         string       `json:"source"`
	Root           string       `json:"root,omitempty"` // identity of the tree that was read
	Pages          int64        `json:"pages"`          // number of pages in the snapshot
	FilesNew       int64        `json:"files_new"`
	FilesChanged   int64        `json:"files_changed"`
	FilesUnchanged int64        `json:"files_unchanged"`
	Carried        int64        `json:"carried"`
	Torn           int64        `json:"torn"`
	Vanished       int64        `json:"vanished"`
	ReadBytes      int64        `json:"read_bytes"`
	StatCalls      int64        `json:"stat_calls"`
	Tasks          [2]int64     `json:"tasks"`   // settled, announced
	Batches        [2]int64     `json:"batches"` // settled, announced
	StageSeconds   stageSeconds `json:"stage_seconds"`

	Selection backup.Selection `json:"selection"`
}

func newSnapshotDetail(s *backup.Snapshot) snapshotDetail {
	c := &s.Counts
	return snapshotDetail{
		Type: "snapshot", snapshotJSON: newSnapshotJSON(s), Base: int64(s.Base), Source: sourceOf(s),
		FilesNew: c.FilesNew, FilesChanged: c.FilesChanged, FilesUnchanged: c.FilesUnchanged,
		Carried: c.Carried, Torn: c.Torn, Vanished: c.Vanished,
		ReadBytes: c.ReadBytes, StatCalls: c.StatCalls, Root: s.Root.String(), Pages: s.Pages.Pages,
		Tasks:        [2]int64{s.TasksSettled, s.TasksAnnounced},
		Batches:      [2]int64{s.BatchesSettled, s.BatchesAnnounced},
		StageSeconds: stagesOf(c), Selection: s.Selection,
	}
}

func (a *app) describe(ctx context.Context, i index.Index, s *backup.Snapshot, verbose bool) error {
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	c := &s.Counts
	errorsRow(row, s)
	row("id", "%v", s.ID)
	row("filer", "%s", display(s.Filer.Name))
	row("shard", "%s", display(s.Shard.Name))
	if from := takenFrom(s); from != "" {
		row("source", "%s in %s", display(from), display(s.Shard.Source))
	} else {
		row("source", "%s", display(sourceOf(s)))
	}
	if !s.Root.IsZero() {
		row("root", "%s", display(s.Root.String()))
	}
	row("number", "%d, %s", s.Number, parentText(s))
	row("state", "%s", stateText(s))
	if s.Bad != "" {
		row("bad", "%s", display(s.Bad))
	}
	if s.Reason != "" {
		row("reason", "%s", display(s.Reason))
	}
	row("started", "%s", happened(s.Started, now))
	row("committed", "%s", happened(s.Committed, now))
	if len(s.Tags) > 0 {
		row("tags", "%s", display(strings.Join(s.Tags, ", ")))
	}
	exclusionRows(row, &s.Selection)
	if s.State == backup.Running || s.State == interrupted {
		row("walk tasks", "%d of %d", s.TasksSettled, s.TasksAnnounced)
		row("read batches", "%d of %d", s.BatchesSettled, s.BatchesAnnounced)
	}
	countRows(row, c)
	if verbose {
		workRows(row, c)
	}
	return t.Flush()
}

// countRows adds the rows that snapshot show and the summary of backup have in common.
func countRows(row rowFunc, c *backup.Counts) {
	row("files", "%s in %s, %s", humanize.Comma(c.Files), counted(c.Directories, "directory"), size(c.Bytes))
	row("", "%s new, %s changed, %s unchanged", humanize.Comma(c.FilesNew), humanize.Comma(c.FilesChanged), humanize.Comma(c.FilesUnchanged))
	for _, n := range []struct {
		count int64
		what  string
	}{
		{c.Carried, "taken over from an earlier snapshot, because of read errors"},
		{c.Torn, "changed during each attempt to read; may mix several states"},
		{c.Vanished, "gone before bctl could read"},
	} {
		if n.count > 0 {
			row("", "%s %s", humanize.Comma(n.count), n.what)
		}
	}
	row("data", "%s read, %s new, stored as %s%s", size(c.ReadBytes), size(c.NewBytes), size(c.StoredBytes), ratio(c.NewBytes, c.StoredBytes))
}

// parentText names the snapshot that another was compared with.
func parentText(s *backup.Snapshot) string {
	switch {
	case s.Base > 0:
		return fmt.Sprintf("parent: number %d", s.Base)
	case s.Number == 1:
		return "first snapshot (no parent)"
	}
	return "no parent"
}

// workRows adds the rows that only --verbose prints.
func workRows(row rowFunc, c *backup.Counts) {
	row("stat calls", "%s", humanize.Comma(c.StatCalls))
	row("seconds of work", "walk %.1f, read %.1f, hash %.1f, compress %.1f,", c.WalkSeconds, c.ReadSeconds, c.HashSeconds, c.CompressSeconds)
	row("", "seal %.1f, upload %.1f, commit %.1f", c.SealSeconds, c.UploadSeconds, c.CommitSeconds)
}

func ratio(raw, stored int64) string {
	if stored <= 0 || raw < stored {
		return ""
	}
	return fmt.Sprintf(" (%.1f to 1)", float64(raw)/float64(stored))
}
