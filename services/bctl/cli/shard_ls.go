package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/posix"
)

func newShardLs(a *app) *cobra.Command {
	var filter index.ShardFilter
	var labels []string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List shards and their last good snapshots",
		Long: `Lists shards. LAST GOOD is when the last good snapshot was begun. DEADLINE is
the time by which the shard should have the next one under its policy. After
that time the shard is OVERDUE. RESTORABLE is when a drill last proved that the
shard can be restored; FAILED means that a later drill did not (bctl drill). No
column shows what scrubs have proven: shards share packs, so proofs are of the
whole repository (bctl scrub show). A narrow terminal shows shorter times;
--wide shows all columns, and all times in full.`,
		Example: `  bctl shard ls
  bctl shard ls --filer nas1
  bctl shard ls --label env=prod --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if filter.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			return a.listShards(cmd.Context(), filter)
		},
	}
	cmd.Flags().StringVar(&filter.Filer, "filer", "", "only shards of this `FILER`")
	labelFlag(cmd, &labels)
	cmd.Flags().BoolVar(&filter.Retired, "retired", false, "include retired shards")
	a.wideFlag(cmd)
	a.completeFlag(cmd, "filer", a.filerNames)
	return cmd
}

func (a *app) listShards(ctx context.Context, filter index.ShardFilter) error {
	return a.withIndex(ctx, toRead, func(i index.Index) error {
		if filter.Filer != "" {
			f, err := findFiler(ctx, i, filter.Filer)
			if err != nil {
				return err
			}
			if f.Retired && !filter.Retired {
				a.note("filer %s is retired (--retired lists its shards)", display(f.Name))
			}
		}
		found, err := i.ListShards(ctx, filter)
		if err != nil {
			return err
		}
		now, err := i.Clock(ctx)
		if err != nil {
			return err
		}
		if err := planAll(ctx, i, found, now); err != nil {
			return err
		}
		if err := drillPolicies(ctx, i, found); err != nil {
			return err
		}
		return printList(a, pointers(found), shardTable(now), func(s *index.ShardStatus) shardJSON { return newShardJSON(s, now) })
	})
}

func shardTable(now time.Time) table[*index.ShardStatus] {
	// has formats what the last good snapshot has, or returns none if there is no such snapshot.
	has := func(none string, text func(*index.ShardStatus) string) func(*index.ShardStatus) string {
		return func(s *index.ShardStatus) string {
			if s.LastGood == (backup.SnapshotID{}) {
				return none
			}
			return text(s)
		}
	}
	return table[*index.ShardStatus]{
		{name: "FILER", text: func(s *index.ShardStatus) string { return display(s.Filer.Name) }, cut: truncate},
		{name: "SHARD", text: func(s *index.ShardStatus) string { return display(s.Name) }, cut: tail, useful: usefulPath},
		{name: "LAST GOOD", when: func(s *index.ShardStatus) forms {
			if s.LastGood == (backup.SnapshotID{}) {
				return noTime("never")
			}
			return pastForms(s.Time, now)
		}},
		{name: "DEADLINE", when: func(s *index.ShardStatus) forms {
			if s.Retired {
				return noTime("-")
			}
			return deadlineForms(s.Plan.Deadline, now)
		}},
		{name: "RESTORABLE", when: func(s *index.ShardStatus) forms { return restorableForms(&s.Drills, now) }, leave: 7},
		{name: "SNAPSHOT", text: has("-", func(s *index.ShardStatus) string { return s.LastGood.Short() }), leave: 4},
		{name: "NUMBER", text: has("-", func(s *index.ShardStatus) string { return fmt.Sprint(s.Number) }), right: true, leave: 2},
		{name: "FILES", text: has("-", func(s *index.ShardStatus) string { return humanize.Comma(s.Files) }), right: true, leave: 3},
		{name: "SIZE", text: has("-", func(s *index.ShardStatus) string { return size(s.Bytes) }), right: true, leave: 5},
		{name: "RUNNING", text: runningText, leave: 6},
		{name: "SOURCE", text: otherSource, cut: tail, useful: usefulPath, leave: 1},
	}
}

// restorableForms are the forms of the time at which a drill last proved that a shard can be
// restored. FAILED means that a later one did not.
func restorableForms(d *index.ShardDrills, now time.Time) forms {
	proven := noTime("never")
	if !d.Passed.IsZero() {
		proven = pastForms(d.Passed, now)
	}
	if !d.Failed() {
		return proven
	}
	proven = proven.each(func(text string) string { return text + " FAILED" })
	proven[formLeast] = "FAILED"
	return proven
}

func runningText(s *index.ShardStatus) string {
	switch {
	case s.Retired:
		return "retired"
	case s.Running != (backup.SnapshotID{}):
		return s.Running.Short()
	}
	return "-"
}

// otherSource describes the source of a shard if its name does not: another path, or the filer's
// own snapshots.
func otherSource(s *index.ShardStatus) string {
	text := ""
	if s.Source != sourceURL(s.Name) {
		text = s.Source
		if path, err := posix.Path(s.Source); err == nil {
			text = path
		}
	}
	if s.Snapshots != "" {
		text += "/" + s.Snapshots
		if s.Source == sourceURL(s.Name) {
			text = s.Snapshots
		}
	}
	return display(text)
}

// shardJSON is a line of shard ls. The names are fixed.
type shardJSON struct {
	Filer     string           `json:"filer"`
	Shard     string           `json:"shard"`
	Source    string           `json:"source"`
	Snapshots string           `json:"snapshots"`
	Selection backup.Selection `json:"selection"`
	Retired   bool             `json:"retired"`
	Policy    *string          `json:"policy"` // null: none
	Due       *string          `json:"due"`
	Deadline  *string          `json:"deadline"`
	Overdue   bool             `json:"overdue"`
	LastGood  *lastGoodJSON    `json:"last_good"` // null: none
	Running   *string          `json:"running"`   // id of the snapshot; null: none
	Drills    shardDrillsJSON  `json:"drills"`
	Changed   *bool            `json:"changed,omitempty"` // after a command that may change it
}

// shardDrillsJSON has the newest drills of a shard.
type shardDrillsJSON struct {
	Passed       *string `json:"passed"` // start of the last drill that passed; null: none has
	Newest       *string `json:"newest"` // start of the last drill; null: there is none
	Failed       bool    `json:"failed"` // the last drill
	EverySeconds float64 `json:"every_seconds"`
	Due          *string `json:"due"` // null: no drill is wanted, or at once
}

func newShardDrillsJSON(d *index.ShardDrills) shardDrillsJSON {
	return shardDrillsJSON{jsonTime(d.Passed), jsonTime(d.Newest), d.Failed(), d.Every.Seconds(), jsonTime(d.Due())}
}

type lastGoodJSON struct {
	Snapshot string  `json:"snapshot"`
	Number   int64   `json:"number"`
	Started  *string `json:"started"`
	Files    int64   `json:"files"`
	Bytes    int64   `json:"bytes"`
}

func newShardJSON(s *index.ShardStatus, now time.Time) shardJSON {
	j := shardJSON{
		Filer: s.Filer.Name, Shard: s.Name, Source: s.Source, Snapshots: s.Snapshots, Selection: s.Selection, Retired: s.Retired,
		Running: jsonID(s.Running), Due: jsonTime(s.Plan.Due), Deadline: jsonTime(s.Plan.Deadline), Overdue: s.Overdue(now),
		Drills: newShardDrillsJSON(&s.Drills),
	}
	if s.Policy != "" {
		j.Policy = &s.Policy
	}
	if s.LastGood != (backup.SnapshotID{}) {
		j.LastGood = &lastGoodJSON{s.LastGood.String(), int64(s.Number), jsonTime(s.Time), s.Files, s.Bytes}
	}
	return j
}

func newShardShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show FILER NAME",
		Short: "Show a shard's settings and its last good snapshot",
		Example: `  bctl shard show nas1 /export/home
  bctl shard show nas1 /export/home --json`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeArgs(a.filerNames, a.shardNames),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				s, err := findShard(cmd.Context(), i, given[0], given[1])
				if err != nil {
					return err
				}
				now, err := i.Clock(cmd.Context())
				if err != nil {
					return err
				}
				one := []index.ShardStatus{s}
				if err := planAll(cmd.Context(), i, one, now); err != nil {
					return err
				}
				if err := drillPolicies(cmd.Context(), i, one); err != nil {
					return err
				}
				if a.json {
					return a.print(newShardJSON(&one[0], now))
				}
				proven, err := i.Scrub(cmd.Context())
				if err != nil {
					return err
				}
				return a.describeShard(&one[0], &proven, now)
			})
		},
	}
}

// planRows adds the rows that show when a shard is due.
func planRows(row rowFunc, p *index.Plan, now time.Time) {
	if p.Due.IsZero() {
		row("due", "not planned yet: a committer does that within seconds")
	} else {
		row("due", "%s", expected(p.Due, now))
	}
	if !p.Deadline.IsZero() {
		row("deadline", "%s", deadlineText(p.Deadline, now))
	}
}

func (a *app) describeShard(s *index.ShardStatus, proven *index.Scrub, now time.Time) error {
	return a.details(func(row rowFunc) {
		row("filer", "%s", display(s.Filer.Name))
		row("shard", "%s", display(s.Name))
		if s.Retired {
			row("retired", "yes: it is not backed up; bctl shard add registers it again")
		}
		row("source", "%s", display(s.Source))
		if s.Snapshots != "" {
			row("source snapshots", "the newest of %s", display(s.Snapshots))
		}
		if s.LastGood == (backup.SnapshotID{}) {
			row("last good snapshot", "none")
		} else {
			row("last good snapshot", "%s, number %d, of %s: %s, %s", s.LastGood.Short(), s.Number, happened(s.Time, now),
				counted(s.Files, "file"), size(s.Bytes))
		}
		if s.Policy != "" {
			row("policy", "%s", display(s.Policy))
			planRows(row, &s.Plan, now)
		}
		row("restorable", "%s", restorableForms(&s.Drills, now)[formFull])
		if due := s.Drills.Due(); s.Drills.Every > 0 && !due.IsZero() {
			row("next drill", "%s", expected(due, now))
		} else if s.Drills.Every > 0 {
			row("next drill", "due now")
		}
		row("proven", "in the whole repository, whose packs the shards share, %s", provenText(proven))
		if s.Running != (backup.SnapshotID{}) {
			row("running", "%s (bctl status shows how far it is)", s.Running.Short())
		}
		exclusionRows(row, &s.Selection)
		if of := s.Filer.Selection; len(of.Exclude)+len(of.ExcludeIfPresent) > 0 || of.OneFileSystem || of.ExcludeLargerBytes > 0 {
			row("", "and what its filer leaves out:")
			exclusionRows(row, &of)
		}
	})
}
