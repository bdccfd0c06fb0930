package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newConfirm(a *app) *cobra.Command {
	var reason string
	var reject bool
	cmd := &cobra.Command{
		Use:   "confirm ID",
		Short: "Confirm a large deletion that the brake has stopped",
		Long: `Confirms a deletion that the brake has stopped. ID is its number, which bctl
confirm ls shows. A policy or a pruner then continues within a minute. Run bctl
forget or bctl prune again yourself. If much more would be deleted by then, the
brake stops it again.

With --reject, the deletion remains stopped, and warnings no longer report it.
You can confirm it later.

bctl brake shows how many operators must confirm.`,
		Example: `  bctl confirm ls
  bctl confirm 3 --reason 'nas1 was emptied, ticket 4711'
  bctl confirm 3 --reject --reason 'the policy is wrong'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			id, err := strconv.ParseInt(given[0], 10, 64)
			if err != nil || id <= 0 {
				return usage("%q is not the number of a stopped deletion (bctl confirm ls lists them)", given[0])
			}
			do := a.confirm
			if reject {
				do = a.reject
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				err := do(cmd.Context(), i, id, reason)
				if errors.Is(err, backup.ErrNotFound) {
					return absent("there is no stopped deletion %d: it is done, or has changed (bctl confirm ls lists them)", id)
				}
				return wrongSetting(err)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "a `TEXT` for the log (bctl log)")
	cmd.Flags().BoolVar(&reject, "reject", false, "do not delete it")
	cmd.AddCommand(newConfirmLs(a))
	return cmd
}

func (a *app) confirm(ctx context.Context, i index.Index, id int64, reason string) error {
	s, err := i.Confirm(ctx, id, operator(), reason)
	if err != nil {
		return err
	}
	of, err := describeStops(ctx, i, []index.Stop{s})
	if err != nil {
		return err
	}
	text := "the run may continue"
	if missing := s.Operators - len(s.Confirmed); missing > 0 {
		text = "the run waits for " + counted(missing, "other operator")
	}
	return a.result(newStopJSON(of[0]), "the deletion of %s in %s is confirmed; %s\n", of[0].what(), of[0].where(), text)
}

func (a *app) reject(ctx context.Context, i index.Index, id int64, reason string) error {
	if err := i.Reject(ctx, id, operator(), reason); err != nil {
		return err
	}
	type rejectedJSON struct {
		Rejected int64 `json:"rejected"`
	}
	return a.result(rejectedJSON{id}, "deletion %d is rejected, and remains stopped (bctl confirm %[1]d confirms it after all)\n", id)
}

// A stopOf is a stop and the names of its shard.
type stopOf struct {
	index.Stop
	filer, shard string
}

// where names the shard, or the repository.
func (s *stopOf) where() string {
	if s.Shard == 0 {
		return "the repository"
	}
	return display(s.filer) + " " + display(s.shard)
}

// what describes what would be deleted.
func (s *stopOf) what() string {
	if s.Shard == 0 {
		text := fmt.Sprintf("%s of %s (%s)", size(s.Bytes), size(s.OfBytes), percent(s.Bytes, s.OfBytes))
		if s.EarlierBytes > 0 {
			text += ", after " + size(s.EarlierBytes) + " within a day"
		}
		return text
	}
	return fmt.Sprintf("%d of %s (%s)", len(s.Snapshots), counted(s.OfSnapshots, "good snapshot"), percent(int64(len(s.Snapshots)), int64(s.OfSnapshots)))
}

// percent returns n of all as text.
func percent(n, all int64) string {
	return fmt.Sprintf("%.0f%%", 100*float64(n)/float64(max(all, 1)))
}

// state describes what the stop waits for.
func (s *stopOf) state() string {
	switch {
	case s.Rejected != "":
		return "rejected by " + display(s.Rejected)
	case s.Allowed():
		return "confirmed by " + display(strings.Join(s.Confirmed, ", "))
	case len(s.Confirmed) > 0:
		return fmt.Sprintf("confirmed by %s: %d more must", display(strings.Join(s.Confirmed, ", ")), s.Operators-len(s.Confirmed))
	}
	return "waits for " + counted(s.Operators, "operator")
}

// describeStops finds the names of shards.
func describeStops(ctx context.Context, i index.Catalog, stops []index.Stop) ([]*stopOf, error) {
	described := make([]*stopOf, len(stops))
	if len(stops) == 0 {
		return described, nil
	}
	shards, err := shardsByID(ctx, i)
	if err != nil {
		return nil, err
	}
	for n, s := range stops {
		described[n] = &stopOf{Stop: s}
		if of := shards[s.Shard]; of != nil {
			described[n].filer, described[n].shard = of.Filer.Name, of.Name
		}
	}
	return described, nil
}

// stopJSON is a line of confirm ls. The names are fixed.
type stopJSON struct {
	ID          int64    `json:"id"`
	Filer       *string  `json:"filer"` // null: the repository
	Shard       *string  `json:"shard"`
	By          string   `json:"by"`
	Snapshots   []string `json:"snapshots"`
	OfSnapshots int      `json:"of_snapshots"`
	Bytes       int64    `json:"bytes"`
	OfBytes     int64    `json:"of_bytes"`
	Earlier     int64    `json:"earlier_bytes"`
	Since       *string  `json:"since"`
	Operators   int      `json:"operators"`
	Confirmed   []string `json:"confirmed"`
	Rejected    string   `json:"rejected"`
}

func newStopJSON(s *stopOf) stopJSON {
	j := stopJSON{
		ID: s.ID, By: s.By, Snapshots: []string{}, OfSnapshots: s.OfSnapshots, Bytes: s.Bytes, OfBytes: s.OfBytes, Earlier: s.EarlierBytes,
		Since: jsonTime(s.Since), Operators: s.Operators, Confirmed: append([]string{}, s.Confirmed...), Rejected: s.Rejected,
	}
	if s.Shard != 0 {
		j.Filer, j.Shard = &s.filer, &s.shard
	}
	for _, id := range s.Snapshots {
		j.Snapshots = append(j.Snapshots, id.String())
	}
	return j
}

func newConfirmLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List large deletions that the brake has stopped, oldest first",
		Long: `Lists the deletions that the brake has stopped, with the policy or user that
started each of them, and the operators who have confirmed or rejected it.`,
		Example: `  bctl confirm ls --json`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.listStops(cmd.Context(), i) })
		},
	}
	a.wideFlag(cmd)
	return cmd
}

func (a *app) listStops(ctx context.Context, i index.Index) error {
	stops, err := i.Stops(ctx)
	if err != nil {
		return err
	}
	described, err := describeStops(ctx, i, stops)
	if err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	return printList(a, described, stopTable(now), newStopJSON)
}

func stopTable(now time.Time) table[*stopOf] {
	return table[*stopOf]{
		{name: "ID", text: func(s *stopOf) string { return strconv.FormatInt(s.ID, 10) }, right: true},
		{name: "OF", text: func(s *stopOf) string { return s.where() }, cut: tail, useful: usefulPath},
		{name: "DELETES", text: func(s *stopOf) string { return s.what() }},
		{name: "SINCE", text: func(s *stopOf) string { return happened(s.Since, now) }, brief: func(s *stopOf) string { return shortTime(s.Since) }, leave: 2},
		{name: "BY", text: func(s *stopOf) string { return display(s.By) }, cut: truncate, leave: 1},
		{name: "STATE", text: func(s *stopOf) string { return s.state() }, cut: truncate, useful: usefulPath},
	}
}
