package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newHold(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "hold", Short: "Keep snapshots against every rule", Aliases: []string{"holds"},
		Long: `A hold keeps a snapshot, or all snapshots of a shard, until the hold is removed:
bctl forget, policies and bctl prune leave them alone.`,
	})
	cmd.AddCommand(newHoldAdd(a), newHoldLs(a), newHoldRm(a))
	return cmd
}

func newHoldAdd(a *app) *cobra.Command {
	var w which
	var reason string
	cmd := &cobra.Command{
		Use:   "add SNAPSHOT|FILER/SHARD --reason TEXT",
		Short: "Put a snapshot, or all snapshots of a shard, on hold",
		Long: `Puts a committed snapshot on hold, or all snapshots of a shard: those that it
has, and those that follow. SNAPSHOT is an id, the beginning of one, or latest.
A snapshot that was forgotten cannot be put on hold.`,
		Example: `  bctl hold add 3f2a --reason 'evidence, case 12/2026'
  bctl hold add nas1/export/home --reason 'migration until May'`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSnapshot(&w, snapshotOffer{states: onlyCommitted, latest: true, wanted: anySnapshot}),
		RunE: func(cmd *cobra.Command, given []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("say why, with --reason TEXT: others will want to know when the hold may be removed")
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error { return a.addHold(cmd.Context(), i, &w, given[0], reason) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, a `TEXT` for people (required)")
	w.flags(a, cmd)
	return cmd
}

func (a *app) addHold(ctx context.Context, i index.Index, w *which, arg, reason string) error {
	h := index.Hold{Reason: reason, By: operator()}
	filer, shard, of := strings.Cut(arg, "/")
	if of {
		s, err := heldShard(ctx, i, filer, shard)
		if err != nil {
			return err
		}
		h.Shard = s.ID
	} else {
		s, err := w.snapshot(ctx, i, arg)
		if err != nil {
			return err
		}
		h.Snapshot = s.ID
	}
	h, err := i.AddHold(ctx, h)
	if errors.Is(err, backup.ErrNotFound) {
		return absent("snapshot %s is not committed; only committed snapshots can be put on hold (list them with bctl snapshot ls)", arg)
	}
	if err != nil {
		return wrongSetting(err)
	}
	held, err := describeHolds(ctx, i, []index.Hold{h})
	if err != nil {
		return err
	}
	return a.result(newHoldJSON(held[0]), "hold %d keeps %s of %s %s (bctl hold rm %[1]d removes it)\n",
		h.ID, held[0].what(), display(held[0].filer), display(held[0].shard))
}

// heldShard returns the shard FILER/SHARD. The name of a shard may begin with the slash.
func heldShard(ctx context.Context, i index.Index, filer, shard string) (index.ShardStatus, error) {
	if _, err := findFiler(ctx, i, filer); err != nil {
		return index.ShardStatus{}, err
	}
	for _, name := range []string{shard, "/" + shard} {
		found, err := i.ListShards(ctx, index.ShardFilter{Filer: filer, Name: name, Retired: true})
		if err != nil {
			return index.ShardStatus{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	return findShard(ctx, i, filer, "/"+strings.TrimPrefix(shard, "/"))
}

// A holdOf is a hold and the names of its shard.
type holdOf struct {
	index.Hold
	filer, shard string
}

// what names the held snapshots.
func (h *holdOf) what() string {
	if h.Shard != 0 {
		return "all snapshots"
	}
	return "snapshot " + h.Snapshot.Short()
}

// describeHolds finds the names of shards.
func describeHolds(ctx context.Context, i index.Index, holds []index.Hold) ([]*holdOf, error) {
	shards, err := shardsByID(ctx, i)
	if err != nil {
		return nil, err
	}
	described := make([]*holdOf, len(holds))
	for n, h := range holds {
		of := h.Shard
		if of == 0 {
			s, err := i.Snapshot(ctx, h.Snapshot)
			if err != nil {
				return nil, err
			}
			of = s.Shard.ID
		}
		described[n] = &holdOf{Hold: h}
		if s := shards[of]; s != nil {
			described[n].filer, described[n].shard = s.Filer.Name, s.Name
		}
	}
	return described, nil
}

// holdJSON is a line of hold ls. The names are fixed.
type holdJSON struct {
	ID       int64   `json:"id"`
	Snapshot *string `json:"snapshot"` // null: all of the shard
	Filer    string  `json:"filer"`
	Shard    string  `json:"shard"`
	Reason   string  `json:"reason"`
	By       string  `json:"by"`
	Since    *string `json:"since"`
}

func newHoldJSON(h *holdOf) holdJSON {
	return holdJSON{ID: h.ID, Snapshot: jsonID(h.Snapshot), Filer: h.filer, Shard: h.shard, Reason: h.Reason, By: h.By, Since: jsonTime(h.Since)}
}

func newHoldLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List holds, oldest first",
		Long:    `Lists the holds with the snapshots that they keep, who added them, when and why.`,
		Example: `  bctl hold ls --json`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.listHolds(cmd.Context(), i) })
		},
	}
	a.wideFlag(cmd)
	return cmd
}

func (a *app) listHolds(ctx context.Context, i index.Index) error {
	holds, err := i.Holds(ctx)
	if err != nil {
		return err
	}
	described, err := describeHolds(ctx, i, holds)
	if err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	return printList(a, described, holdTable(now), newHoldJSON)
}

func holdTable(now time.Time) table[*holdOf] {
	return table[*holdOf]{
		{name: "ID", text: func(h *holdOf) string { return strconv.FormatInt(h.ID, 10) }, right: true},
		{name: "SNAPSHOT", text: func(h *holdOf) string {
			if h.Shard != 0 {
				return "all"
			}
			return h.Snapshot.Short()
		}},
		{name: "FILER", text: func(h *holdOf) string { return display(h.filer) }, cut: truncate, leave: 2},
		{name: "SHARD", text: func(h *holdOf) string { return display(h.shard) }, cut: tail, useful: usefulPath},
		{name: "SINCE", text: func(h *holdOf) string { return happened(h.Since, now) }, brief: func(h *holdOf) string { return shortTime(h.Since) }, leave: 3},
		{name: "BY", text: func(h *holdOf) string { return display(h.By) }, cut: truncate, leave: 1},
		{name: "REASON", text: func(h *holdOf) string { return display(h.Reason) }, cut: truncate, useful: usefulPath},
	}
}

func newHoldRm(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "rm ID",
		Short: "Remove a hold",
		Long: `Removes a hold, by the number that bctl hold ls shows. What it kept is forgotten
only by the next bctl forget, or by the next turn of a policy.`,
		Example: `  bctl hold rm 3 --reason 'case closed'`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			id, err := strconv.ParseInt(given[0], 10, 64)
			if err != nil || id <= 0 {
				return usage("%q is not the number of a hold (bctl hold ls lists them)", given[0])
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error { return a.removeHold(cmd.Context(), i, id, reason) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "a `TEXT` for the log (bctl log)")
	return cmd
}

func (a *app) removeHold(ctx context.Context, i index.Index, id int64, reason string) error {
	err := i.RemoveHold(ctx, id, operator(), reason)
	if errors.Is(err, backup.ErrNotFound) {
		return absent("there is no hold %d (bctl hold ls lists them)", id)
	}
	if err != nil {
		return wrongSetting(err)
	}
	type removedJSON struct {
		Hold int64 `json:"hold"`
	}
	return a.result(removedJSON{id}, "hold %d is removed\n", id)
}

// A heldBy finds the holds of snapshots.
type heldBy struct{ holds []index.Hold }

func holdsOf(ctx context.Context, i index.Index) (heldBy, error) {
	holds, err := i.Holds(ctx)
	return heldBy{holds}, err
}

// of returns the holds that keep a snapshot.
func (b heldBy) of(s *backup.Snapshot) (of []index.Hold) {
	for _, h := range b.holds {
		if h.Snapshot == s.ID || h.Shard != 0 && h.Shard == s.Shard.ID {
			of = append(of, h)
		}
	}
	return of
}

// reasons returns the reasons of the holds that keep a snapshot.
func (b heldBy) reasons(s *backup.Snapshot) (reasons []string) {
	for _, h := range b.of(s) {
		reasons = append(reasons, h.Reason)
	}
	return reasons
}
