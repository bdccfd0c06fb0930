package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

type snapshotLs struct {
	app    *app
	which  which
	since  time.Time
	states []string
	tags   []string
	path   string
	latest int
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
		Long: `Lists the newest 50 snapshots, or the number given by --limit. A note reports if
there are more. With --json or --latest, all are listed unless --limit is given.

A terminal that is too narrow for all columns shows the most important ones, and
below them why snapshots failed; --wide shows all columns.`,
		Example: `  bctl snapshot ls
  bctl snapshot ls --filer nas1 --since 24h --all
  bctl snapshot ls --path /home/alice --latest 3
  bctl snapshot ls --state failed --limit 10 --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			limited := cmd.Flags().Changed("limit")
			if limited && c.all {
				return usage("--limit and --all exclude each other: give one of them")
			}
			if c.all || (a.json || c.latest > 0) && !limited {
				c.limit = 0
			}
			return c.run(cmd.Context())
		},
	}
	c.which.flags(a, cmd)
	sinceFlag(cmd.Flags(), &c.since, "since", "started at or after `TIME`: "+sinceForms)
	cmd.Flags().StringSliceVar(&c.states, "state", nil, "only those in a `STATE`: running, interrupted, committed, failed or deleting")
	cmd.Flags().StringArrayVar(&c.tags, "tag", nil, "only those with this `TAG` (repeated: with all of them)")
	cmd.Flags().StringVar(&c.path, "path", "", "only those of a tree that has this `PATH`: the tree itself, or below it")
	numberFlag(cmd.Flags(), &c.latest, "latest", 0, 0, most, "the newest `N` of each shard; 0: all")
	numberFlag(cmd.Flags(), &c.limit, "limit", listed, 0, most, "the newest `N`; 0: all")
	cmd.Flags().BoolVar(&c.all, "all", false, "all snapshots")
	a.wideFlag(cmd)
	a.completeFlag(cmd, "tag", a.tagNames)
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{
		string(backup.Running), string(interrupted), string(backup.Committed), string(backup.Failed), string(backup.Deleting),
	}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (c *snapshotLs) run(ctx context.Context) error {
	states, err := parseStates(c.states)
	if err != nil {
		return err
	}
	if c.path != "" {
		if c.path, err = filepath.Abs(c.path); err != nil {
			return err
		}
	}
	i, err := c.app.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	c.app.noteCurrent(ctx, i)
	found, more, err := c.find(ctx, i, states)
	if err == nil && len(found) == 0 {
		err = c.which.exists(ctx, i)
	}
	if err != nil {
		return err
	}
	held, err := holdsOf(ctx, i, found)
	if err != nil {
		return err
	}
	if more && !c.app.json {
		defer c.app.note("these are the newest %d; --all lists all, and --limit N the newest N", c.limit)
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	if !c.app.json {
		return writeLines(c.app.out, snapshotLines(pointers(found), now, held, c.app.width()))
	}
	return printList(c.app, pointers(found), nil, func(s *backup.Snapshot) snapshotJSON {
		line := newSnapshotJSON(s)
		line.Holds = held.reasons(s)
		return line
	})
}

// snapshotLines formats snapshots for a width. If the table cannot show the reasons in full, lines
// below it do.
func snapshotLines(found []*backup.Snapshot, now time.Time, held heldBy, width int) []string {
	t := snapshotTable(now, held)
	if t.fits(found, width) {
		return t.lines(found, width)
	}
	lines := slices.DeleteFunc(t, func(c column[*backup.Snapshot]) bool { return c.name == "REASON" }).lines(found, width)
	var which namesByText
	for _, s := range found {
		if s.Reason != "" {
			which.add(display(firstLine(s.Reason)), s.ID.Short())
		}
	}
	for n, reason := range which.order {
		if n == 0 {
			lines = append(lines, "")
		}
		lines = append(lines, wrap(someNames(which.of[reason])+": "+reason, width)...)
	}
	return lines
}

// find returns the wanted snapshots, and whether there are more of them than the limit.
func (c *snapshotLs) find(ctx context.Context, i index.Catalog, states stateFilter) (found []backup.Snapshot, more bool, err error) {
	f := index.SnapshotFilter{Filer: c.which.filer, Shard: c.which.shard, Since: c.since, States: states.indexed()}
	// The conditions that the index does not filter by are applied here, before the limit.
	if c.limit > 0 && !states.tellsApart() && len(c.tags) == 0 && c.path == "" && c.latest == 0 {
		f.Limit = c.limit + 1 // one more, to detect that there are more
	}
	if found, err = i.Snapshots(ctx, f); err != nil {
		return nil, false, err
	}
	c.app.markInterrupted(ctx, i, found)
	if states.tellsApart() {
		found = states.wanted(found)
	}
	found = slices.DeleteFunc(found, func(s backup.Snapshot) bool { return !c.wants(&s) })
	if c.latest > 0 {
		found = newestOfEach(found, c.latest)
	}
	more = c.limit > 0 && len(found) > c.limit
	if more {
		found = found[len(found)-c.limit:]
	}
	return found, more, nil
}

// wants reports whether a snapshot has the tags, and its tree the path.
func (c *snapshotLs) wants(s *backup.Snapshot) bool {
	for _, tag := range c.tags {
		if !slices.Contains(s.Tags, tag) {
			return false
		}
	}
	return c.path == "" || isBelow(c.path, rootOf(s)) || isBelow(c.path, s.Shard.Name)
}

// isBelow reports whether a clean path is root, or is below it.
func isBelow(path, root string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// newestOfEach returns the newest n snapshots of each shard. All of one shard are in order.
func newestOfEach(all []backup.Snapshot, n int) (newest []backup.Snapshot) {
	seen := map[backup.ShardID]int{}
	for _, s := range slices.Backward(all) {
		if seen[s.Shard.ID]++; seen[s.Shard.ID] <= n {
			newest = append(newest, s)
		}
	}
	slices.Reverse(newest)
	return newest
}

func snapshotTable(now time.Time, held heldBy) table[*backup.Snapshot] {
	return table[*backup.Snapshot]{
		{name: "ID", text: func(s *backup.Snapshot) string { return s.ID.Short() }},
		{name: "STARTED", when: func(s *backup.Snapshot) forms { return startForms(s.Started, now) }},
		{name: "FILER", text: func(s *backup.Snapshot) string { return display(s.Filer.Name) }, cut: truncate, leave: 9},
		{name: "SHARD", text: func(s *backup.Snapshot) string { return display(s.Shard.Name) }, cut: tail, useful: usefulPath},
		{name: "NUMBER", text: func(s *backup.Snapshot) string { return fmt.Sprint(s.Number) }, right: true, leave: 2},
		{name: "STATE", text: stateText},
		{name: "FILES", text: func(s *backup.Snapshot) string { return humanize.Comma(s.Counts.Files) }, right: true, leave: 4},
		{name: "SIZE", text: func(s *backup.Snapshot) string { return size(s.Counts.Bytes) }, right: true, leave: 7},
		{name: "STORED", text: func(s *backup.Snapshot) string { return size(s.Counts.StoredBytes) }, right: true, leave: 3},
		{name: "ERRORS", text: func(s *backup.Snapshot) string { return humanize.Comma(s.Counts.Errors) }, right: true, leave: 8},
		{name: "TAGS", text: func(s *backup.Snapshot) string { return display(strings.Join(s.Tags, ",")) }, cut: truncate, leave: 6},
		{name: "HOLD", text: func(s *backup.Snapshot) string { return display(strings.Join(held.reasons(s), "; ")) }, cut: truncate, leave: 5, optional: true},
		{name: "SOURCE", text: func(s *backup.Snapshot) string { return display(takenFrom(s)) }, cut: tail, useful: usefulPath, leave: 1, optional: true},
		{name: "REASON", text: func(s *backup.Snapshot) string { return display(s.Reason) }, cut: truncate, useful: usefulPath, leave: 5, optional: true},
	}
}
