package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/shares"
)

type duCommand struct {
	app       *app
	by        string // shard or filer
	csv       bool
	maxMemory int64 // 0: the default
}

func newDu(a *app) *cobra.Command {
	c := &duCommand{app: a}
	cmd := &cobra.Command{
		Use:   "du",
		Short: "Show what each shard or filer costs in the store",
		Long: `Shows how much of the store each shard needs, for all of its snapshots:

  DATA    its content before compression; what it has several times counts once
  STORED  the same as it is stored, compressed and sealed
  UNIQUE  what no other shard needs: what the store would lose with this shard
  SHARE   what it costs: UNIQUE, and of what n shards need an nth

The shares and what no snapshot needs, in the last line, add up to the size of
all packs. With --by filer, the shards of a filer are one.

To find what is needed, the references of all snapshots are read from the index,
as for bctl stats. Nothing is read from the store, and no identity is needed.`,
		Example: `  bctl du
  bctl du --by filer --csv >costs.csv`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.csv && a.json {
				return usage("--csv and --json exclude each other")
			}
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return c.run(cmd.Context(), i) })
		},
	}
	c.by = "shard"
	cmd.Flags().Var(&parsed[string]{&c.by, "shard", "string", func(text string) (string, error) {
		if text != "shard" && text != "filer" {
			return "", wrongValue("is neither shard nor filer")
		}
		return text, nil
	}}, "by", "show each `KIND`: shard or filer")
	cmd.Flags().BoolVar(&c.csv, "csv", false, "print comma-separated values")
	memoryFlag(cmd.Flags(), &c.maxMemory)
	return cmd
}

// A cost is a line of du.
type cost struct {
	Type   string `json:"type"` // shard, filer, unused or total
	Filer  string `json:"filer,omitempty"`
	Shard  string `json:"shard,omitempty"`
	Data   int64  `json:"data_bytes"`
	Stored int64  `json:"stored_bytes"`
	Unique int64  `json:"unique_bytes"`
	Share  int64  `json:"share_bytes"`
}

func bytesOf(kind string, u *shares.Usage) cost {
	whole := func(bytes float64) int64 { return int64(math.Round(bytes)) }
	return cost{Type: kind, Data: whole(u.Data), Stored: whole(u.Stored), Unique: whole(u.Unique), Share: whole(u.Share)}
}

// run divides the store among the shards or filers, and prints what each costs, the largest share
// first.
func (c *duCommand) run(ctx context.Context, i index.Index) error {
	c.app.interruptible.Store(true)
	c.app.noteCurrent(ctx, i)
	shards, err := i.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	groups := map[backup.ShardID]int{}
	filers := map[backup.FilerID]int{}
	var names []cost
	for n := range shards {
		s := &shards[n]
		group, ok := filers[s.Filer.ID]
		if !ok || c.by == "shard" {
			group = len(names)
			filers[s.Filer.ID] = group
			name := cost{Type: c.by, Filer: s.Filer.Name}
			if c.by == "shard" {
				name.Shard = s.Name
			}
			names = append(names, name)
		}
		groups[s.ID] = group
	}
	stop := c.app.animate(func() string { return "finding what shards need" })
	result, err := shares.Divide(ctx, i, groups, cmp.Or(c.maxMemory, shares.DefaultMemory))
	stop()
	if err != nil {
		return err
	}
	for n := range names {
		u := bytesOf(c.by, &result.Groups[n])
		u.Filer, u.Shard = names[n].Filer, names[n].Shard
		names[n] = u
	}
	slices.SortStableFunc(names, func(a, b cost) int { return cmp.Compare(b.Share, a.Share) })
	unused := bytesOf("unused", &shares.Usage{Stored: result.Unused, Share: result.Unused})
	if len(names) > 0 {
		names[0].Share += unrounded(append(names, unused), result.Stored)
	}
	return c.print(append(names, unused), result.Stored)
}

// unrounded returns what the shares lack, because they are rounded, to add up to what is stored.
func unrounded(list []cost, stored int64) int64 {
	for i := range list {
		stored -= list[i].Share
	}
	return stored
}

func (c *duCommand) print(list []cost, stored int64) error {
	switch {
	case c.csv:
		return c.printCSV(list)
	case c.app.json:
		list = append(list, cost{Type: "total", Stored: stored, Share: stored})
	}
	columns := duTable
	if c.by == "filer" {
		columns = append(slices.Clone(duTable[:1]), duTable[2:]...)
	}
	if err := printList(c.app, list, columns, func(u cost) cost { return u }); err != nil || c.app.json {
		return err
	}
	c.app.note("%s are stored", size(stored))
	return nil
}

var duTable = table[cost]{
	{name: "FILER", text: func(u cost) string {
		if u.Type == "unused" {
			return "(unused)"
		}
		return display(u.Filer)
	}, cut: tail, useful: usefulPath},
	{name: "SHARD", text: func(u cost) string { return display(u.Shard) }, cut: tail, useful: usefulPath},
	{name: "DATA", right: true, text: func(u cost) string { return ofShard(&u, u.Data) }, leave: 3},
	{name: "STORED", right: true, text: func(u cost) string { return size(u.Stored) }, leave: 2},
	{name: "UNIQUE", right: true, text: func(u cost) string { return ofShard(&u, u.Unique) }, leave: 1},
	{name: "SHARE", right: true, text: func(u cost) string { return size(u.Share) }},
}

// ofShard shows bytes that what is unused does not have.
func ofShard(u *cost, bytes int64) string {
	if u.Type == "unused" {
		return "-"
	}
	return size(bytes)
}

// printCSV prints the costs in bytes, for other programs.
func (c *duCommand) printCSV(list []cost) error {
	w := csv.NewWriter(c.app.out)
	lines := [][]string{{"type", "filer", "shard", "data_bytes", "stored_bytes", "unique_bytes", "share_bytes"}}
	for i := range list {
		u := &list[i]
		line := []string{u.Type, u.Filer, u.Shard}
		for _, n := range []int64{u.Data, u.Stored, u.Unique, u.Share} {
			line = append(line, strconv.FormatInt(n, 10))
		}
		lines = append(lines, line)
	}
	return w.WriteAll(lines)
}
