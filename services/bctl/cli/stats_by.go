package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/sizes"
)

// A statsCommand shows the space of the repository or, with by, what its content is.
type statsCommand struct {
	app   *app
	by    string // snapshot, extension or size; "": nothing of these
	which which
	limit int
	form  tableForm
}

var statsKinds = []string{"snapshot", "extension", "size"}

func (c *statsCommand) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&parsed[string]{&c.by, "", "string", func(text string) (string, error) {
		if !slices.Contains(statsKinds, text) {
			return "", wrongValue("is not snapshot, extension or size")
		}
		return text, nil
	}}, "by", "show what the content is, by `KIND`: snapshot, extension or size")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(statsKinds, cobra.ShellCompDirectiveNoFileComp))
	c.which.flags(c.app, cmd)
	numberFlag(flags, &c.limit, "limit", listed, 1, mostSizes, "with --by: the newest or largest `N`")
	c.form.flags(flags)
}

// check fails if flags contradict each other.
func (c *statsCommand) check(flags *pflag.FlagSet) error {
	if err := c.form.check(flags, c.app.json); err != nil {
		return err
	}
	if c.by == "" {
		for _, name := range []string{"filer", "shard", "limit", "csv", "parquet"} {
			if flags.Changed(name) {
				return usage("--%s is for bctl stats --by KIND", name)
			}
		}
	}
	if !flags.Changed("limit") && (c.app.json || c.form.isSet()) {
		c.limit = mostListed
	}
	return nil
}

// A growth is what one snapshot added.
type growth struct {
	Type    string    `json:"type" parquet:"type"` // snapshot or total
	ID      string    `json:"id,omitempty" parquet:"id"`
	Number  int64     `json:"number,omitempty" parquet:"number"`
	Started *string   `json:"started,omitempty" parquet:"-"`
	Filer   string    `json:"filer,omitempty" parquet:"filer"`
	Shard   string    `json:"shard,omitempty" parquet:"shard"`
	Count   int       `json:"snapshots,omitempty" parquet:"-"` // of the total
	Files   int64     `json:"files" parquet:"files"`
	Bytes   int64     `json:"bytes" parquet:"bytes"`
	Read    int64     `json:"read_bytes" parquet:"read_bytes"`
	New     int64     `json:"new_bytes" parquet:"new_bytes"`
	Stored  int64     `json:"stored_bytes" parquet:"stored_bytes"`
	At      time.Time `json:"-" parquet:"started,timestamp(microsecond)"`

	short string
}

func growthOf(s *backup.Snapshot) growth {
	return growth{
		Type: "snapshot", ID: s.ID.String(), short: s.ID.Short(), Number: int64(s.Number), Started: jsonTime(s.Started), At: s.Started,
		Filer: s.Filer.Name, Shard: s.Shard.Name, Files: s.Counts.Files, Bytes: s.Counts.Bytes,
		Read: s.Counts.ReadBytes, New: s.Counts.NewBytes, Stored: s.Counts.StoredBytes,
	}
}

// growth prints what each snapshot added, the newest last.
func (c *statsCommand) growth(ctx context.Context, i index.Index) error {
	c.app.noteCurrent(ctx, i)
	found, err := i.Snapshots(ctx, index.SnapshotFilter{Filer: c.which.filer, Shard: c.which.shard, States: []backup.State{backup.Committed}})
	if err == nil && len(found) == 0 {
		err = c.which.exists(ctx, i)
	}
	if err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	list := make([]growth, len(found))
	var sum backup.Counts
	for n := range found {
		list[n] = growthOf(&found[n])
		sum.Add(found[n].Counts)
	}
	total := growth{Type: "total", Count: len(found), Files: sum.Files, Bytes: sum.Bytes, Read: sum.ReadBytes, New: sum.NewBytes, Stored: sum.StoredBytes}
	if len(list) > c.limit {
		c.app.note("these are the newest %s of %s; --limit N shows the newest N", humanize.Comma(int64(c.limit)), humanize.Comma(int64(len(list))))
		list = list[len(list)-c.limit:]
	}
	switch {
	case c.form.isSet():
		return writeTable(c.app, &c.form, list, []string{"type", "id", "number", "started", "filer", "shard", "files", "bytes", "read_bytes", "new_bytes", "stored_bytes"}, (*growth).cells)
	case c.app.json:
		list = append(list, total)
	}
	if err := printList(c.app, list, growthTable(now), func(g growth) growth { return g }); err != nil || c.app.json {
		return err
	}
	c.app.note("%s of %s together: %s were new when they were made, stored as %s", counted(total.Count, "snapshot"), size(total.Bytes), size(total.New), size(total.Stored))
	return nil
}

// cells are the columns of CSV, in bytes.
func (g *growth) cells() []string {
	line := []string{g.Type, g.ID, strconv.FormatInt(g.Number, 10), *g.Started, g.Filer, g.Shard}
	for _, n := range []int64{g.Files, g.Bytes, g.Read, g.New, g.Stored} {
		line = append(line, strconv.FormatInt(n, 10))
	}
	return line
}

func growthTable(now time.Time) table[growth] {
	return table[growth]{
		{name: "SNAPSHOT", text: func(g growth) string { return g.short }},
		{name: "TAKEN", when: func(g growth) forms { return startForms(g.At, now) }},
		{name: "FILER", text: func(g growth) string { return display(g.Filer) }, cut: truncate, leave: 6},
		{name: "SHARD", text: func(g growth) string { return display(g.Shard) }, cut: tail, useful: usefulPath},
		{name: "SIZE", right: true, text: func(g growth) string { return size(g.Bytes) }, leave: 4},
		{name: "READ", right: true, text: func(g growth) string { return size(g.Read) }, leave: 5},
		{name: "NEW", right: true, text: func(g growth) string { return size(g.New) }},
		{name: "KNOWN", right: true, text: func(g growth) string { return partOf(g.Read-min(g.New, g.Read), g.Read) }, leave: 2},
		{name: "STORED", right: true, text: func(g growth) string { return size(g.Stored) }},
		{name: "RATIO", right: true, text: func(g growth) string { return partOf(g.Stored, g.New) }, leave: 1},
	}
}

// partOf is percent, and "-" of nothing.
func partOf(n, all int64) string {
	if all == 0 {
		return "-"
	}
	return percent(n, all)
}

// content prints how well the last good snapshots of the shards compress.
func (c *statsCommand) content(ctx context.Context, i index.Index) error {
	c.app.interruptible.Store(true)
	c.app.noteCurrent(ctx, i)
	shards, err := c.which.listAll(ctx, i)
	if err != nil {
		return err
	}
	if shards = withSnapshots(shards); len(shards) == 0 {
		return c.which.nothing(ctx, i)
	}
	stop := c.app.animate(func() string { return "adding up" })
	tally, incomplete, err := c.addUp(ctx, i, shards)
	stop()
	if err != nil {
		return err
	}
	r := tally.Result()
	t := &sizeTable{app: c.app, by: c.by, form: &c.form, stored: true}
	if err := t.print(&r, backup.SnapshotID{}); err != nil {
		return err
	}
	for _, name := range incomplete {
		c.app.note("shard %s: pages are missing from the index or damaged, and what is on them is not counted (bctl check)", name)
	}
	if len(incomplete) > 0 {
		return errIncomplete
	}
	return nil
}

// addUp adds up the last good snapshots of shards. incomplete are the names of those of which not
// all could be read.
func (c *statsCommand) addUp(ctx context.Context, i index.Index, shards []index.ShardStatus) (t *sizes.Tally, incomplete []string, err error) {
	var ids []backup.SnapshotID
	for n := range shards {
		ids = append(ids, shards[n].LastGood)
	}
	weights, err := weigh(ctx, i, "", ids...)
	if err != nil {
		return nil, nil, err
	}
	t = sizes.NewTally(sizes.Options{By: groupings[c.by], Most: c.limit, Weights: weights})
	for n, id := range ids {
		name := display(shards[n].Filer.Name) + " " + display(shards[n].Name)
		s, err := i.Snapshot(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		missing, err := t.Add(ctx, i, id, "", s.Pages)
		if err != nil {
			return nil, nil, fmt.Errorf("shard %s: %w", name, err)
		}
		if missing.Differs != nil || len(missing.Directories) > 0 {
			incomplete = append(incomplete, name)
		}
	}
	return t, incomplete, nil
}
