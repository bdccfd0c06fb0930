package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/index"
)

func newBrake(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brake",
		Short: "Show or change what may be deleted without a confirmation",
		Long: `Shows the settings of the brake. It stops policies, bctl forget, the pruner and
bctl prune before they delete more than a share of a shard's snapshots, or of
the stored bytes. They continue after operators have confirmed the deletion
(bctl confirm).`,
		Example: "  bctl brake\n  bctl brake set --bytes 10%",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.showBrake(cmd.Context(), i) })
		},
	}
	cmd.AddCommand(newBrakeSet(a))
	return cmd
}

// brakeJSON is the result of brake. The names are fixed.
type brakeJSON struct {
	Snapshots    int   `json:"snapshots"` // percent
	MinSnapshots int   `json:"min_snapshots"`
	Bytes        int   `json:"bytes"` // percent
	MinBytes     int64 `json:"min_bytes"`
	Operators    int   `json:"operators"`
}

func (a *app) showBrake(ctx context.Context, i index.Index) error {
	b, err := i.Brake(ctx)
	if err != nil {
		return err
	}
	return a.result(brakeJSON(b), `A run is stopped if it would
  forget more than %d%% of the snapshots of a shard, and at least %d
  delete more than %d%% of the stored bytes within a day, and at least %s
until %s it (bctl confirm).
`, b.Snapshots, b.MinSnapshots, b.Bytes, size(b.MinBytes), map[bool]string{true: "an operator confirms", false: counted(b.Operators, "operator") + " confirm"}[b.Operators == 1])
}

func newBrakeSet(a *app) *cobra.Command {
	var given index.Brake
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change what may be deleted without a confirmation",
		Long: `Changes the settings that are given. bctl log shows who did it.

In a locked-down fleet, only the admin of the index changes --operators. If it
is more than 1, only the admin changes the other settings, too: one operator
alone can then neither confirm a large deletion nor loosen the brake.`,
		Example: `  bctl brake set --snapshots 30% --min-snapshots 5
  bctl brake set --bytes 10% --min-bytes 100GiB
  bctl brake set --operators 2`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.ContainsFunc(brakeFlags, cmd.Flags().Changed) {
				return usage("give at least one setting, such as --bytes 10%%")
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error { return a.setBrake(cmd.Context(), i, cmd.Flags(), given) })
		},
	}
	flags := cmd.Flags()
	percentFlag(flags, &given.Snapshots, "snapshots", "stop a run that would forget more than this `SHARE` of a shard's snapshots (default 50%)")
	numberFlag(flags, &given.MinSnapshots, "min-snapshots", 10, 1, 1_000_000, "never stop a run that would forget fewer than this `NUMBER`")
	percentFlag(flags, &given.Bytes, "bytes", "stop a run that would delete more than this `SHARE` of the stored bytes within a day (default 30%)")
	sizeFlag(flags, &given.MinBytes, "min-bytes", "never stop a run that would delete less than this `SIZE` (default 1GiB)")
	numberFlag(flags, &given.Operators, "operators", 1, 1, 10, "this `NUMBER` of operators must confirm")
	return cmd
}

var brakeFlags = []string{"snapshots", "min-snapshots", "bytes", "min-bytes", "operators"}

// percentFlag adds a flag that is a whole percentage.
func percentFlag(flags *pflag.FlagSet, to *int, name, usage string) {
	flags.Var(&parsed[int]{to, "", "string", func(text string) (int, error) {
		percent, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
		if err != nil || percent < 0 || percent > 100 {
			return 0, wrongValue("is not a whole percentage from 0%% to 100%%")
		}
		return percent, nil
	}}, name, usage)
}

func (a *app) setBrake(ctx context.Context, i index.Index, flags *pflag.FlagSet, given index.Brake) error {
	b, err := i.Brake(ctx)
	if err != nil {
		return err
	}
	for name, set := range map[string]func(){
		"snapshots": func() { b.Snapshots = given.Snapshots }, "min-snapshots": func() { b.MinSnapshots = given.MinSnapshots },
		"bytes": func() { b.Bytes = given.Bytes }, "min-bytes": func() { b.MinBytes = given.MinBytes },
		"operators": func() { b.Operators = given.Operators },
	} {
		if flags.Changed(name) {
			set()
		}
	}
	b.MinBytes = max(b.MinBytes, 1)
	if err := i.SetBrake(ctx, b, operator()); err != nil {
		return wrongSetting(err)
	}
	return a.showBrake(ctx, i)
}
