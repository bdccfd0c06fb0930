package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/churn"
	"github.com/bctl/bctl/internal/index"
)

type churnLs struct {
	app   *app
	which which
	since time.Time
	limit int
}

func newChurn(a *app) *cobra.Command {
	c := &churnLs{app: a}
	cmd := &cobra.Command{
		Use:   "churn [SNAPSHOT]",
		Short: "Show how files change, and whether they look encrypted",
		Long: `Lists the newest 50 committed snapshots, newest last, with the files that are
new, changed, renamed or removed since the snapshot before. With SNAPSHOT, its
directories and owners are listed instead.

TYPES LOST are changed files that no longer begin like a known type. OPAQUE are
those that now begin like encrypted files: with random data of no known type, or
as a program that encrypts writes them. A ? means that this is not known of all
files, because older services have read some of them. SCORE is the share of
opaque files in what raises an alarm: 100% and more is an alarm.

An alarm puts the shard on hold: nothing of it is forgotten or purged until
somebody acknowledges the alarm (bctl churn ack). In the list of directories and
owners, new files that are opaque count as opaque, too.`,
		Example: `  bctl churn --filer nas1 --since 7d
  bctl churn 3f2a
  bctl churn --json
  bctl churn ack 3f2a --reason 'a test, case 17'`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if a.json && !cmd.Flags().Changed("limit") {
				c.limit = 0
			}
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				a.noteCurrent(cmd.Context(), i)
				if len(given) == 1 {
					return c.parts(cmd.Context(), i, given[0])
				}
				return c.list(cmd.Context(), i)
			})
		},
	}
	cmd.ValidArgsFunction = a.completeSnapshot(&c.which, snapshotOffer{states: onlyCommitted, latest: true})
	c.which.flags(a, cmd)
	sinceFlag(cmd.Flags(), &c.since, "since", "started at or after `TIME`: "+sinceForms)
	numberFlag(cmd.Flags(), &c.limit, "limit", listed, 0, most, "the newest `N`; 0: all")
	a.wideFlag(cmd)
	cmd.AddCommand(newChurnAck(a))
	return cmd
}

// A churned is a snapshot, and what is known of its changes.
type churned struct {
	*backup.Snapshot
	removed int64 // -1: its base is forgotten
	open    bool  // its alarm is not acknowledged
}

// churnJSON is a line of churn. The names are fixed.
type churnJSON struct {
	ID        string                `json:"id"`
	Filer     string                `json:"filer"`
	Shard     string                `json:"shard"`
	Number    backup.SnapshotNumber `json:"number"`
	Started   *string               `json:"started"`
	New       int64                 `json:"files_new"`
	Changed   int64                 `json:"files_changed"`
	Renamed   int64                 `json:"files_renamed"`
	Removed   *int64                `json:"files_removed"` // null: the snapshot before is forgotten
	TypesLost int64                 `json:"types_lost"`
	Opaque    int64                 `json:"files_opaque"`
	Known     bool                  `json:"known"` // renamed, types_lost and files_opaque are of all files
	Score     float64               `json:"score"` // 1 and more is an alarm
	Alarm     *string               `json:"alarm"` // null: none
	Open      bool                  `json:"open"`  // the alarm is not acknowledged
}

func newChurnJSON(c *churned) churnJSON {
	j := churnJSON{
		ID: c.ID.String(), Filer: c.Filer.Name, Shard: c.Shard.Name, Number: c.Number, Started: jsonTime(c.Started),
		New: c.Counts.FilesNew, Changed: c.Counts.FilesChanged, Renamed: c.Counts.FilesRenamed,
		TypesLost: c.Counts.TypesLost, Opaque: c.Counts.FilesOpaque, Known: churn.Known(c.Snapshot), Score: float64(c.ChurnScore) / 1000, Open: c.open,
	}
	if c.removed >= 0 {
		j.Removed = &c.removed
	}
	if c.Alarm != "" {
		j.Alarm = &c.Alarm
	}
	return j
}

func (c *churnLs) list(ctx context.Context, i index.Index) error {
	f := index.SnapshotFilter{Filer: c.which.filer, Shard: c.which.shard, Since: c.since, States: []backup.State{backup.Committed}}
	if c.limit > 0 {
		f.Limit = c.limit + 1 // one more, to detect that there are more
	}
	found, err := i.Snapshots(ctx, f)
	if err == nil && len(found) == 0 {
		err = c.which.exists(ctx, i)
	}
	if err != nil {
		return err
	}
	if c.limit > 0 && len(found) > c.limit {
		found = found[1:]
		defer c.app.note("these are the newest %d; --limit 0 lists all", c.limit)
	}
	lines, err := churnOf(ctx, i, found)
	if err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	if err := printList(c.app, lines, churnTable(now), newChurnJSON); err != nil || c.app.json {
		return err
	}
	for _, l := range lines {
		if l.open {
			c.app.note("snapshot %s: %s. Its shard is on hold until bctl churn ack %[1]s --reason TEXT", l.ID.Short(), display(l.Alarm))
		}
	}
	return nil
}

// churnOf finds out which alarms are open, and how many files were removed.
func churnOf(ctx context.Context, i index.Index, found []backup.Snapshot) ([]*churned, error) {
	holds, err := i.Holds(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]backup.SnapshotID, len(found))
	for n := range found {
		ids[n] = found[n].ID
	}
	bases, err := i.BaseCounts(ctx, ids)
	if err != nil {
		return nil, err
	}
	lines := make([]*churned, len(found))
	for n := range found {
		s := &found[n]
		c := &churned{Snapshot: s, removed: -1, open: slices.ContainsFunc(holds, func(h index.Hold) bool { return h.Alarm == s.ID })}
		if base, ok := bases[s.ID]; ok || s.Base == 0 {
			c.removed = churn.Removed(s, &base)
		}
		lines[n] = c
	}
	return lines, nil
}

func churnTable(now time.Time) table[*churned] {
	number := func(name string, leave int, of func(*churned) int64, judged bool) column[*churned] {
		return column[*churned]{name: name, right: true, leave: leave, text: func(c *churned) string {
			n := of(c)
			switch known := !judged || churn.Known(c.Snapshot); {
			case n < 0 || !known && n == 0:
				return "?"
			case !known:
				return humanize.Comma(n) + "?"
			}
			return humanize.Comma(n)
		}}
	}
	return table[*churned]{
		{name: "ID", text: func(c *churned) string { return c.ID.Short() }},
		{name: "STARTED", when: func(c *churned) forms { return startForms(c.Started, now) }},
		{name: "FILER", text: func(c *churned) string { return display(c.Filer.Name) }, cut: truncate, leave: 5},
		{name: "SHARD", text: func(c *churned) string { return display(c.Shard.Name) }, cut: tail, useful: usefulPath},
		number("NEW", 3, func(c *churned) int64 { return c.Counts.FilesNew }, false),
		number("CHANGED", 4, func(c *churned) int64 { return c.Counts.FilesChanged }, false),
		number("RENAMED", 1, func(c *churned) int64 { return c.Counts.FilesRenamed }, true),
		number("REMOVED", 2, func(c *churned) int64 { return c.removed }, false),
		number("TYPES LOST", 6, func(c *churned) int64 { return c.Counts.TypesLost }, true),
		number("OPAQUE", 0, func(c *churned) int64 { return c.Counts.FilesOpaque }, true),
		{name: "SCORE", text: func(c *churned) string { return fmt.Sprintf("%d%%", c.ChurnScore/10) }, right: true},
		{name: "ALARM", text: func(c *churned) string {
			switch {
			case c.open:
				return "open"
			case c.Alarm != "":
				return "acknowledged"
			}
			return ""
		}, optional: true},
	}
}

func newChurnAck(a *app) *cobra.Command {
	var w which
	var reason string
	cmd := &cobra.Command{
		Use:   "ack SNAPSHOT --reason TEXT",
		Short: "Acknowledge the alarm of a shard",
		Long: `Acknowledges the open alarm of a shard, and takes the shard off hold: rules may
forget its snapshots again. SNAPSHOT is any snapshot of the shard. bctl log
shows who acknowledged it, and the reason.

Before, put the last clean snapshot on hold (bctl hold add) if you may need it.`,
		Example:           `  bctl churn ack 3f2a --reason 'restored from 41, case 17'`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSnapshot(&w, snapshotOffer{states: onlyCommitted, latest: true}),
		RunE: func(cmd *cobra.Command, given []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("say why, with --reason TEXT: bctl log shows it")
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				if err := a.acknowledge(cmd.Context(), i, &w, given[0], reason); err != nil {
					return err
				}
				return a.copyHolds(cmd.Context(), i)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, a `TEXT` for people (required)")
	w.flags(a, cmd)
	return cmd
}

func (a *app) acknowledge(ctx context.Context, i index.Index, w *which, given, reason string) error {
	s, err := w.snapshot(ctx, i, given)
	if err != nil {
		return err
	}
	holds, err := i.Holds(ctx)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(holds, func(h index.Hold) bool { return h.Shard == s.Shard.ID && h.Alarm != backup.SnapshotID{} })
	if n < 0 {
		return absent("%s %s has no open alarm", display(s.Filer.Name), display(s.Shard.Name))
	}
	err = i.RemoveHold(ctx, holds[n].ID, operator(), reason)
	if errors.Is(err, backup.ErrNotFound) {
		return absent("the alarm of %s %s was acknowledged at this moment", display(s.Filer.Name), display(s.Shard.Name))
	}
	if err != nil {
		return wrongSetting(err)
	}
	held, err := describeHolds(ctx, i, holds[n:n+1])
	if err != nil {
		return err
	}
	return a.result(newHoldJSON(held[0]), "the alarm of %s %s is acknowledged, and its snapshots are not on hold for it any more\n", display(s.Filer.Name), display(s.Shard.Name))
}
