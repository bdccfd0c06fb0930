package cli

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
)

func newHold(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "hold", Short: "Keep snapshots against every rule", Aliases: []string{"holds"},
		Long: `A hold keeps a snapshot, all snapshots of a shard, or each version of a file or
directory, until the hold is removed: bctl forget, policies and bctl prune leave
them alone.`,
	})
	cmd.AddCommand(newHoldAdd(a), newHoldLs(a), newHoldRm(a))
	return cmd
}

func newHoldAdd(a *app) *cobra.Command {
	var w which
	var reason string
	cmd := &cobra.Command{
		Use:   "add SNAPSHOT|FILER/SHARD[:PATH] --reason TEXT",
		Short: "Put a snapshot, a shard, or a path of a shard on hold",
		Long: `Puts a committed snapshot on hold, or all snapshots of a shard: those that it
has, and those that follow. SNAPSHOT is an id, the beginning of one, or latest.
A snapshot that was forgotten cannot be put on hold.

With PATH, the hold keeps each version of a file, or of a directory and all that
is below it. It does not keep each snapshot: if neighbouring snapshots have the
same version, the newest of them stays, and the others may be forgotten. So may
snapshots without the path. PATH is relative to the shard, or the path on the
filer. At least one snapshot of the shard must have it.`,
		Example: `  bctl hold add 3f2a --reason 'evidence, case 12/2026'
  bctl hold add nas1/export/home --reason 'migration until May'
  bctl hold add nas1/export/home:alice/mail --reason 'evidence, case 12/2026'`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeSnapshot(&w, snapshotOffer{states: onlyCommitted, latest: true, wanted: anySnapshot}),
		RunE: func(cmd *cobra.Command, given []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("say why, with --reason TEXT: others will want to know when the hold may be removed")
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				if err := a.addHold(cmd.Context(), i, &w, given[0], reason); err != nil {
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

func (a *app) addHold(ctx context.Context, i index.Index, w *which, arg, reason string) error {
	added, err := a.newHeld(ctx, i, w, arg, index.Hold{Reason: reason, By: operator()})
	if err != nil {
		return err
	}
	held, err := describeHolds(ctx, i, added)
	if err != nil {
		return err
	}
	for _, h := range held {
		err := a.result(newHoldJSON(h), "hold %d keeps %s %s %s (bctl hold rm %[1]d removes it)\n", h.ID, h.what(), display(h.filer), display(h.shard))
		if err != nil {
			return err
		}
	}
	return nil
}

// newHeld adds the holds on what an argument names.
func (a *app) newHeld(ctx context.Context, i index.Index, w *which, arg string, h index.Hold) ([]index.Hold, error) {
	before, _, _ := strings.Cut(arg, ":")
	if filer, shard, of := strings.Cut(arg, "/"); of && strings.Contains(before, "/") {
		s, path, err := heldShard(ctx, i, filer, shard)
		if err != nil {
			return nil, err
		}
		h.Shard = s.ID
		if path != nil {
			return a.holdPath(ctx, i, &s, *path, h)
		}
	} else {
		if before != arg {
			return nil, usage("a hold on a path keeps its versions in all snapshots of a shard: give FILER/SHARD:PATH, or the snapshot without a path")
		}
		s, err := w.snapshot(ctx, i, arg)
		if err != nil {
			return nil, err
		}
		h.Snapshot = s.ID
	}
	h, err := i.AddHold(ctx, h)
	if errors.Is(err, backup.ErrNotFound) {
		return nil, absent("snapshot %s is not committed; only committed snapshots can be put on hold (list them with bctl snapshot ls)", arg)
	}
	return []index.Hold{h}, wrongSetting(err)
}

// holdPath adds holds on the paths of a shard that a user may mean by given. These are two if the
// shard has the path within itself and as it is on the filer: a hold too many does no harm.
func (a *app) holdPath(ctx context.Context, i index.Index, s *index.ShardStatus, given string, h index.Hold) (held []index.Hold, err error) {
	path, err := browse.CleanPath(given)
	switch {
	case err != nil:
		return nil, usage("%v", err)
	case path == "":
		return nil, usage("%q is the whole shard: leave :PATH out, and the hold keeps all of its snapshots", given)
	}
	paths := []string{path}
	root := rootOf(&backup.Snapshot{Filer: s.Filer, Shard: s.Shard})
	if below, ok := strings.CutPrefix("/"+path, strings.TrimSuffix(root, "/")+"/"); ok && filepath.IsAbs(given) && below != path { // as it is on the filer
		paths = append(paths, below)
	}
	for _, h.Path = range paths {
		switch added, err := i.AddHold(ctx, h); {
		case err == nil:
			held = append(held, added)
		case !errors.Is(err, backup.ErrNotFound):
			return held, wrongSetting(err)
		}
	}
	if len(held) == 0 {
		return nil, absent("no snapshot of %s %s has the path %q: give a path within the shard (bctl ls latest:… lists them)", display(s.Filer.Name), display(s.Name), given)
	}
	return held, nil
}

// heldShard returns the shard FILER/SHARD or FILER/SHARD:PATH, and the path, nil if there is none.
// The name of a shard may begin with the slash, and may contain colons: the longest one that exists
// counts.
func heldShard(ctx context.Context, i index.Index, filer, rest string) (s index.ShardStatus, path *string, err error) {
	if _, err := findFiler(ctx, i, filer); err != nil {
		return s, nil, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: filer, Retired: true})
	if err != nil {
		return s, nil, err
	}
	for end := len(rest); end >= 0; end = strings.LastIndexByte(rest[:end], ':') {
		n := slices.IndexFunc(shards, func(s index.ShardStatus) bool { return s.Name == rest[:end] || s.Name == "/"+rest[:end] })
		switch {
		case n < 0:
		case end == len(rest):
			return shards[n], nil, nil
		default:
			path := rest[end+1:]
			return shards[n], &path, nil
		}
	}
	name, _, _ := strings.Cut(rest, ":")
	s, err = findShard(ctx, i, filer, "/"+strings.TrimPrefix(name, "/"))
	return s, nil, err
}

// A holdOf is a hold and the names of its shard.
type holdOf struct {
	index.Hold
	filer, shard string
}

// what names the held snapshots.
func (h *holdOf) what() string {
	switch {
	case h.Path != "":
		return "each version of " + display(h.Path) + " in"
	case h.Shard != 0:
		return "all snapshots of"
	}
	return "snapshot " + h.Snapshot.Short() + " of"
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
	Snapshot *string `json:"snapshot"` // null: of the shard
	Filer    string  `json:"filer"`
	Shard    string  `json:"shard"`
	Path     *string `json:"path"` // null: all of the shard, or the snapshot
	Reason   string  `json:"reason"`
	By       string  `json:"by"`
	Login    string  `json:"login"` // whom the database has authenticated; empty on one machine
	Since    *string `json:"since"`
}

func newHoldJSON(h *holdOf) holdJSON {
	j := holdJSON{ID: h.ID, Snapshot: jsonID(h.Snapshot), Filer: h.filer, Shard: h.shard, Reason: h.Reason, By: h.By, Login: h.Login, Since: jsonTime(h.Since)}
	if h.Path != "" {
		j.Path = &h.Path
	}
	return j
}

func newHoldLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List holds, oldest first",
		Long: `Lists the holds, with their reasons. BY is the user@host that added the hold. It
is not verified. LOGIN is the user whom the database has authenticated: in a
locked-down fleet, the name in the certificate.`,
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
	columns := holdTable(now)
	for name, value := range map[string]func(*holdOf) string{
		"LOGIN": func(h *holdOf) string { return h.Login }, // in a fleet
		"PATH":  func(h *holdOf) string { return h.Path },
	} {
		if !slices.ContainsFunc(described, func(h *holdOf) bool { return value(h) != "" }) {
			columns = slices.DeleteFunc(columns, func(c column[*holdOf]) bool { return c.name == name })
		}
	}
	return printList(a, described, columns, newHoldJSON)
}

func holdTable(now time.Time) table[*holdOf] {
	return table[*holdOf]{
		{name: "ID", text: func(h *holdOf) string { return strconv.FormatInt(h.ID, 10) }, right: true},
		{name: "SNAPSHOT", text: func(h *holdOf) string {
			switch {
			case h.Path != "":
				return "versions"
			case h.Shard != 0:
				return "all"
			}
			return h.Snapshot.Short()
		}},
		{name: "FILER", text: func(h *holdOf) string { return display(h.filer) }, cut: truncate, leave: 2},
		{name: "SHARD", text: func(h *holdOf) string { return display(h.shard) }, cut: tail, useful: usefulPath},
		{name: "PATH", text: func(h *holdOf) string { return display(h.Path) }, cut: tail, useful: usefulPath},
		{name: "SINCE", text: func(h *holdOf) string { return happened(h.Since, now) }, brief: func(h *holdOf) string { return shortTime(h.Since) }, leave: 3},
		{name: "BY", text: func(h *holdOf) string { return display(h.By) }, cut: truncate, leave: 1},
		{name: "LOGIN", text: func(h *holdOf) string { return display(h.Login) }, cut: truncate, useful: usefulPath, leave: 2},
		{name: "REASON", text: func(h *holdOf) string { return display(h.Reason) }, cut: truncate, useful: usefulPath},
	}
}

func newHoldRm(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "rm ID",
		Short: "Remove a hold",
		Long: `Removes a hold. ID is its number, which bctl hold ls shows. The snapshots that
it kept stay until the next bctl forget, or until a policy next applies its
rules.`,
		Example: `  bctl hold rm 3 --reason 'case closed'`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			id, err := strconv.ParseInt(given[0], 10, 64)
			if err != nil || id <= 0 {
				return usage("%q is not the number of a hold (bctl hold ls lists them)", given[0])
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				if err := a.removeHold(cmd.Context(), i, id, reason); err != nil {
					return err
				}
				return a.copyHolds(cmd.Context(), i)
			})
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
type heldBy struct {
	holds []index.Hold
	paths map[backup.SnapshotID]int64 // ids of holds on paths
}

// holdsOf returns the holds of these snapshots.
func holdsOf(ctx context.Context, i index.Index, snapshots []backup.Snapshot) (b heldBy, err error) {
	if b.holds, err = i.Holds(ctx); err != nil {
		return b, err
	}
	b.paths = map[backup.SnapshotID]int64{}
	read := map[backup.ShardID]bool{}
	for _, h := range b.holds {
		if h.Path == "" || read[h.Shard] || !slices.ContainsFunc(snapshots, func(s backup.Snapshot) bool { return s.Shard.ID == h.Shard }) {
			continue
		}
		read[h.Shard] = true
		held, err := i.HeldByPaths(ctx, h.Shard)
		if err != nil {
			return b, err
		}
		maps.Copy(b.paths, held)
	}
	return b, nil
}

// of returns the holds that keep a snapshot. Of holds on paths, it returns one.
func (b heldBy) of(s *backup.Snapshot) (of []index.Hold) {
	for _, h := range b.holds {
		if h.Snapshot == s.ID || h.Path == "" && h.Shard != 0 && h.Shard == s.Shard.ID || h.Path != "" && h.ID == b.paths[s.ID] {
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
