package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newSnapshotMarkBad(a *app) *cobra.Command {
	var w which
	var reason string
	cmd := &cobra.Command{
		Use:   "mark-bad SNAPSHOT",
		Short: "Mark a snapshot as bad: never use it as latest",
		Long: `Marks a committed snapshot as bad, for instance because half of the tree was not
mounted. It is then never latest. The next backup compares its number of files
with the last good snapshot, and fails if files are missing, even if the bad
snapshot lacks them, too.

If it was the last good snapshot of its shard, the previous one becomes the last
good snapshot, and a shard with a policy is due at once. The next backup still
uses the bad snapshot to detect changed files. The bad snapshot can be restored
by its id. Rules keep it for as long as they would keep it if it were good, and
at least until a good one is newer by a week.`,
		Example: `  bctl snapshot mark-bad 3f2a --reason 'half of the export was gone'
  bctl snapshot mark-bad latest --filer nas1 --shard /export/home \
    --reason 'encrypted by malware, ticket 4711'`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSnapshot(&w, snapshotOffer{states: onlyCommitted, latest: true, wanted: goodSnapshot}),
		RunE: func(cmd *cobra.Command, given []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("give the reason with --reason TEXT")
			}
			return a.setBad(cmd.Context(), &w, given[0], reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason for the mark, a `TEXT` for people")
	w.flags(a, cmd)
	return cmd
}

func newSnapshotMarkGood(a *app) *cobra.Command {
	var w which
	cmd := &cobra.Command{
		Use:   "mark-good SNAPSHOT",
		Short: "Remove the mark of a bad snapshot",
		Long: `Removes the mark that bctl snapshot mark-bad has set. If no newer snapshot of
the shard is good, this one is latest again, and the next backup is compared
with it.`,
		Example:           `  bctl snapshot mark-good 3f2a`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSnapshot(&w, snapshotOffer{states: onlyCommitted, wanted: badSnapshot}),
		RunE:              func(cmd *cobra.Command, given []string) error { return a.setBad(cmd.Context(), &w, given[0], "") },
	}
	w.flags(a, cmd)
	return cmd
}

// setBad marks a snapshot as bad or, if reason is empty, removes the mark, and prints the snapshot.
func (a *app) setBad(ctx context.Context, w *which, arg, reason string) error {
	return a.withIndex(ctx, toWrite, func(i index.Index) error {
		s, err := w.snapshot(ctx, i, arg)
		if err != nil {
			return err
		}
		err = i.SetBad(ctx, s.ID, operator(), reason)
		if errors.Is(err, backup.ErrNotFound) {
			return absent("snapshot %s is %s: only a committed snapshot can be marked", s.ID.Short(), a.shownState(ctx, i, s))
		}
		if err != nil {
			return wrongSetting(err)
		}
		if s, err = i.Snapshot(ctx, s.ID); err != nil {
			return err
		}
		if a.json {
			return a.print(newSnapshotJSON(&s))
		}
		return a.tellGood(ctx, i, &s)
	})
}

// tellGood reports the last good snapshot of a shard after a change of marks.
func (a *app) tellGood(ctx context.Context, i index.Index, s *backup.Snapshot) error {
	mark := "good again"
	if s.Bad != "" {
		mark = "marked bad"
	}
	shard, err := findShard(ctx, i, s.Filer.Name, s.Shard.Name)
	if err != nil {
		return err
	}
	last := "has no good snapshot now"
	if shard.LastGood != (backup.SnapshotID{}) {
		last = fmt.Sprintf("has %s, number %d of %s, as its last good snapshot", shard.LastGood.Short(), shard.Number, zoned(shard.Time))
	}
	_, err = fmt.Fprintf(a.out, "snapshot %s, number %d, is %s; shard %s of %s %s\n",
		s.ID.Short(), s.Number, mark, display(s.Shard.Name), display(s.Filer.Name), last)
	return err
}

// noteBad prints a note if a snapshot that is read is marked bad.
func (a *app) noteBad(s *backup.Snapshot) {
	if s.Bad != "" {
		a.note("snapshot %s is marked bad: %s", s.ID.Short(), display(s.Bad))
	}
}

// stateText returns the state of a snapshot for tables.
func stateText(s *backup.Snapshot) string {
	if s.Bad != "" {
		return string(s.State) + ", bad"
	}
	return string(s.State)
}
