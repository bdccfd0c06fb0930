package cli

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/shares"
)

type duCommand struct {
	app       *app
	by        string // a kind; "": the default
	form      tableForm
	maxMemory int64 // 0: the default

	// Of a snapshot.
	which  which
	depth  int
	limit  int
	stored bool
}

func newDu(a *app) *cobra.Command {
	c := &duCommand{app: a}
	cmd := &cobra.Command{
		Use:   "du [SNAPSHOT[:PATH]]",
		Short: "Show what shards cost in the store, or what is large in a snapshot",
		Long: `Without SNAPSHOT, shows how much of the store each shard needs, for all of its
snapshots:

  DATA    its content before compression; what it has several times counts once
  STORED  the same as it is stored, compressed and sealed
  UNIQUE  what no other shard needs: what the store would lose with this shard
  SHARE   what it costs: UNIQUE, and of what n shards need an nth

The shares and what no snapshot needs, in the last line, add up to the size of
all packs. With --by filer, the shards of a filer are one. To find what is
needed, the references of all snapshots are read from the index.

With SNAPSHOT, shows what is in it, or below PATH, the largest first:

  --by directory  directories with N names below PATH (--depth N, default 1);
                  deeper ones count for them, and files above for their own
  --by owner      users; directories count, too
  --by extension  what follows the last dot of the names of files
  --by size       size classes, by factors of four
  --by file       the largest files

SIZE is the sum of the sizes of files. A file with several names counts for each
of them. --stored adds STORED: what the content takes in the store, compressed
and sealed. What several files share counts for each of them there. It takes
longer: the places of all chunks are read from the index.

Nothing is read from the store, and no identity is needed.`,
		Example: `  bctl du
  bctl du --by filer --csv >costs.csv
  bctl du latest
  bctl du latest:home --depth 2 --limit 20
  bctl du latest --by extension --stored
  bctl du latest --depth 100 --parquet directories.parquet`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := c.check(cmd.Flags(), given); err != nil {
				return err
			}
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				if len(given) > 0 {
					return c.snapshot(cmd.Context(), i, given[0])
				}
				return c.run(cmd.Context(), i)
			})
		},
		ValidArgsFunction: a.completePlace(&c.which),
	}
	c.flags(cmd)
	return cmd
}

func (c *duCommand) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&parsed[string]{&c.by, "", "string", func(text string) (string, error) {
		if !slices.Contains(costKinds, text) && !slices.Contains(sizeKinds, text) {
			return "", wrongValue("is not shard, filer, directory, owner, extension, size or file")
		}
		return text, nil
	}}, "by", "show each `KIND`: shard or filer; of a snapshot, directory, owner, extension, size or file")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(append(slices.Clone(costKinds), sizeKinds...), cobra.ShellCompDirectiveNoFileComp))
	c.which.flags(c.app, cmd)
	numberFlag(flags, &c.depth, "depth", 1, 0, 1000, "of a snapshot: directories with `N` names below PATH")
	numberFlag(flags, &c.limit, "limit", listed, 1, mostSizes, "of a snapshot: the largest `N`")
	flags.BoolVar(&c.stored, "stored", false, "of a snapshot: what the content takes in the store, too")
	c.form.flags(flags)
	memoryFlag(flags, &c.maxMemory)
}

// The kinds of lines without and with a snapshot. The first of each are the defaults.
var (
	costKinds = []string{"shard", "filer"}
	sizeKinds = []string{"directory", "owner", "extension", "size", "file"}
)

// check fails if flags and arguments contradict each other.
func (c *duCommand) check(flags *pflag.FlagSet, given []string) error {
	if err := c.form.check(flags, c.app.json); err != nil {
		return err
	}
	kinds, others := costKinds, []string{"filer", "shard", "depth", "limit", "stored"}
	if len(given) > 0 {
		kinds, others = sizeKinds, []string{"max-memory"}
	}
	c.by = cmp.Or(c.by, kinds[0])
	switch wrong := !slices.Contains(kinds, c.by); {
	case wrong && len(given) > 0:
		return usage("--by %s is for bctl du without a snapshot", c.by)
	case wrong:
		return usage("--by %s is for a snapshot: bctl du SNAPSHOT --by %[1]s", c.by)
	}
	for _, name := range others {
		switch changed := flags.Changed(name); {
		case changed && len(given) > 0:
			return usage("--%s is for bctl du without a snapshot", name)
		case changed:
			return usage("--%s is for a snapshot: bctl du SNAPSHOT --%[1]s …", name)
		}
	}
	if flags.Changed("depth") && c.by != "directory" {
		return usage("--depth is for --by directory")
	}
	if !flags.Changed("limit") && (c.app.json || c.form.isSet()) {
		c.limit = mostListed
	}
	return nil
}

// A cost is a line of du.
type cost struct {
	Type   string `json:"type" parquet:"type"` // shard, filer, unused or total
	Filer  string `json:"filer,omitempty" parquet:"filer"`
	Shard  string `json:"shard,omitempty" parquet:"shard"`
	Data   int64  `json:"data_bytes" parquet:"data_bytes"`
	Stored int64  `json:"stored_bytes" parquet:"stored_bytes"`
	Unique int64  `json:"unique_bytes" parquet:"unique_bytes"`
	Share  int64  `json:"share_bytes" parquet:"share_bytes"`
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
	case c.form.isSet():
		head := []string{"type", "filer", "shard", "data_bytes", "stored_bytes", "unique_bytes", "share_bytes"}
		return writeTable(c.app, &c.form, list, head, (*cost).cells)
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

// cells are the columns of CSV, in bytes.
func (u *cost) cells() []string {
	line := []string{u.Type, u.Filer, u.Shard}
	for _, n := range []int64{u.Data, u.Stored, u.Unique, u.Share} {
		line = append(line, strconv.FormatInt(n, 10))
	}
	return line
}
