package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"

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
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSnapshot(&w, snapshotOffer{latest: true, wanted: anySnapshot}),
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
	held, err := holdsOf(ctx, i, []backup.Snapshot{s})
	if err != nil {
		return err
	}
	if a.json {
		detail := newSnapshotDetail(&s)
		detail.Holds = held.reasons(&s)
		err = a.print(detail)
	} else {
		err = a.describe(ctx, i, &s, held.of(&s), verbose)
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

func (a *app) describe(ctx context.Context, i index.Index, s *backup.Snapshot, holds []index.Hold, verbose bool) error {
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	return a.details(func(row rowFunc) {
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
		for _, h := range holds {
			row("on hold", "%s (hold %d, by %s, since %s)", display(h.Reason), h.ID, display(h.By), zoned(h.Since))
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
	})
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
