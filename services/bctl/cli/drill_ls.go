package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/drill"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
)

type drillLsCommand struct {
	app    *app
	which  which
	failed bool
	limit  int
}

func newDrillLs(a *app) *cobra.Command {
	c := &drillLsCommand{app: a}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the reports of drills",
		Long: `Lists the reports of drills, oldest first. FILES and SIZE are what both restores
restored, TIME is how long these took, and RATE is the size per second.

Each report is signed with a key that only the holders of identities and the
committers have. RESULT is FORGED if the signature is wrong, or if the index has
another result than the report. The exit status is then 1.`,
		Example: `  bctl drill ls
  bctl drill ls --filer nas1 --failed
  bctl drill ls --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return c.run(cmd.Context(), i) })
		},
	}
	c.which.flags(a, cmd)
	cmd.Flags().BoolVar(&c.failed, "failed", false, "only drills that failed")
	numberFlag(cmd.Flags(), &c.limit, "limit", 0, 0, most, "only the newest `NUMBER` of reports (0: all)")
	a.wideFlag(cmd)
	return cmd
}

// A drillRow is a report in the index.
type drillRow struct {
	index.Drill
	shard  index.ShardStatus
	report *drill.Report // nil: it is forged
	why    error
}

func (c *drillLsCommand) run(ctx context.Context, i index.Index) error {
	if err := c.which.exists(ctx, i); err != nil {
		return err
	}
	rows, err := c.rows(ctx, i)
	if err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	if err := printList(c.app, pointers(rows), drillTable(now), func(r *drillRow) drillJSON {
		return newDrillJSON(r.report, &r.Drill, r.shard.Filer.Name+" "+r.shard.Name)
	}); err != nil {
		return err
	}
	forged := 0
	for n := range rows {
		if rows[n].report == nil {
			forged++
			c.app.note("%v", rows[n].why)
		}
	}
	if forged > 0 {
		return fmt.Errorf("reports that are forged: %d. Somebody who may write to the index has changed them: replace the operators' credentials, and drill again", forged)
	}
	return nil
}

// rows returns the reports that were asked for.
func (c *drillLsCommand) rows(ctx context.Context, i index.Index) (rows []drillRow, err error) {
	repository, err := i.Repository(ctx)
	if err != nil {
		return nil, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: c.which.filer, Name: c.which.shard, Retired: true})
	if err != nil {
		return nil, err
	}
	of := make(map[backup.ShardID]*index.ShardStatus, len(shards))
	for n := range shards {
		of[shards[n].ID] = &shards[n]
	}
	only := backup.ShardID(0)
	if len(shards) == 1 {
		only = shards[0].ID
	}
	found, err := i.Drills(ctx, only)
	if err != nil {
		return nil, err
	}
	for n := range found {
		d := &found[n]
		s := of[d.Shard]
		if s == nil || c.failed && d.Passed {
			continue
		}
		row := drillRow{Drill: *d, shard: *s}
		row.report, row.why = drill.Open(d, repository.ID, seal.Signer(repository.Signer), s.Key)
		rows = append(rows, row)
	}
	if c.limit > 0 && len(rows) > c.limit {
		rows = rows[len(rows)-c.limit:]
	}
	return rows, nil
}

// result is the RESULT of a report.
func (r *drillRow) result() string {
	switch {
	case r.report == nil:
		return "FORGED"
	case r.report.Passed:
		return "passed"
	}
	return "FAILED"
}

func drillTable(now time.Time) table[*drillRow] {
	// signed formats what the report has, which nobody believes if it is forged.
	signed := func(text func(*drill.Report) string) func(*drillRow) string {
		return func(r *drillRow) string {
			if r.report == nil {
				return "-"
			}
			return text(r.report)
		}
	}
	return table[*drillRow]{
		{name: "DRILL", text: func(r *drillRow) string { return r.ID.Short() }, leave: 4},
		{name: "FILER", text: func(r *drillRow) string { return display(r.shard.Filer.Name) }, cut: truncate},
		{name: "SHARD", text: func(r *drillRow) string { return display(r.shard.Name) }, cut: tail, useful: usefulPath},
		{name: "STARTED", when: func(r *drillRow) forms { return pastForms(r.Started, now) }},
		{name: "SNAPSHOT", text: func(r *drillRow) string { return r.Snapshot.Short() }, leave: 3},
		{name: "RESULT", text: (*drillRow).result},
		{name: "FILES", text: signed(func(r *drill.Report) string { return humanize.Comma(bothOf(r).Files) }), right: true, leave: 2},
		{name: "SIZE", text: signed(func(r *drill.Report) string { return size(bothOf(r).Bytes) }), right: true},
		{name: "TIME", text: signed(func(r *drill.Report) string { return fmt.Sprintf("%.1f s", bothOf(r).Seconds) }), right: true},
		{name: "RATE", text: signed(func(r *drill.Report) string { return size(rateOf(bothOf(r))) + "/s" }), right: true, leave: 1},
	}
}

// bothOf adds up what the two restores of a drill have restored.
func bothOf(r *drill.Report) *drill.Part {
	return &drill.Part{Files: r.Sample.Files + r.Directory.Files, Bytes: r.Sample.Bytes + r.Directory.Bytes, Seconds: r.Sample.Seconds + r.Directory.Seconds}
}

// rateOf returns the bytes per second that a restore has restored; 0: it took no time.
func rateOf(p *drill.Part) int64 {
	if p.Seconds <= 0 {
		return 0
	}
	return int64(float64(p.Bytes) / p.Seconds)
}

// drillJSON is a line of drill and drill ls. The names are fixed.
type drillJSON struct {
	Type string `json:"type"` // drill
	// Signed reports that the signature is right; in drill, the report has just been signed.
	Signed bool   `json:"signed"`
	Drill  string `json:"drill"`
	*drill.Report
	BytesPerSecond int64 `json:"bytes_per_second"`
	// Text and Signature are the report as it is stored, and its signature, in base64: only in
	// drill ls. docs/formats/drill.md describes how to verify them.
	Text      []byte `json:"report_b64,omitempty"`
	Signature []byte `json:"signature_b64,omitempty"`
	// Claimed describes a report that is forged.
	Claimed string `json:"forged_of,omitempty"`
}

func newDrillJSON(r *drill.Report, d *index.Drill, of string) drillJSON {
	j := drillJSON{Type: "drill", Signed: r != nil, Report: r}
	if d != nil {
		j.Drill, j.Text, j.Signature = d.ID.String(), d.Report, d.Signature
	}
	if r == nil {
		j.Claimed = of
		return j
	}
	j.Drill, j.BytesPerSecond = r.ID, rateOf(bothOf(r))
	return j
}
