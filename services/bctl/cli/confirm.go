package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
)

type confirmCommand struct {
	app    *app
	reason string
	reject bool
	policy string
}

func newConfirm(a *app) *cobra.Command {
	c := &confirmCommand{app: a}
	cmd := &cobra.Command{
		Use:   "confirm {ID… | --policy NAME}",
		Short: "Confirm large deletions that the brake has stopped",
		Long: `Confirms deletions that the brake has stopped. ID is the number of one, which
bctl confirm ls shows. With --policy, all deletions of the policy that wait are
confirmed. A policy or a pruner then continues within a minute. Run bctl forget
or bctl prune again yourself. If much more would be deleted by then, the brake
stops it again.

With --reject, the deletions remain stopped, and warnings no longer report them
unless they would delete more than twice as much. You can confirm them later.

bctl brake shows how many operators must confirm.`,
		Example: `  bctl confirm ls
  bctl confirm 3 --reason 'nas1 was emptied, ticket 4711'
  bctl confirm --policy nightly
  bctl confirm 3 4 --reject --reason 'the policy is wrong'`,
		Args: args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, given []string) error {
			ids, err := c.ids(given)
			if err != nil {
				return err
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				if c.policy != "" {
					return c.judgePolicy(cmd.Context(), i)
				}
				return c.judgeAll(cmd.Context(), i, ids)
			})
		},
	}
	cmd.Flags().StringVar(&c.reason, "reason", "", "a `TEXT` for the log (bctl log)")
	cmd.Flags().BoolVar(&c.reject, "reject", false, "do not delete it")
	cmd.Flags().StringVar(&c.policy, "policy", "", "all deletions of the policy `NAME` that wait")
	cmd.AddCommand(newConfirmLs(a))
	return cmd
}

func (c *confirmCommand) ids(given []string) (ids []int64, err error) {
	if (len(given) == 0) == (c.policy == "") {
		return nil, usage("give either the numbers of stopped deletions or --policy NAME (bctl confirm ls lists them)")
	}
	for _, text := range given {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id <= 0 {
			return nil, usage("%q is not the number of a stopped deletion (bctl confirm ls lists them)", text)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// judgeAll confirms or rejects stops. One that is gone does not keep the others.
func (c *confirmCommand) judgeAll(ctx context.Context, i index.Index, ids []int64) error {
	var gone []string
	for _, id := range ids {
		s := index.Stop{ID: id}
		err := c.judge(ctx, i, &s)
		switch {
		case errors.Is(err, backup.ErrNotFound):
			gone = append(gone, strconv.FormatInt(id, 10))
			continue
		case err != nil:
			return wrongSetting(err)
		}
		of, err := describeStops(ctx, i, []index.Stop{s})
		if err != nil {
			return err
		}
		if err := c.print(of[0]); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	waiting, err := c.waiting(ctx, i)
	if err != nil {
		return err
	}
	return absent("there is no stopped deletion %s: it is done, or would delete much more by now and has another number; %s", strings.Join(gone, ", "), waiting)
}

// maxNamed bounds how many stops an error names.
const maxNamed = 3

// waiting names the stops that wait for operators, those that were stopped last first.
func (c *confirmCommand) waiting(ctx context.Context, i index.Index) (string, error) {
	stops, err := i.Stops(ctx)
	if err != nil {
		return "", err
	}
	stops = slices.DeleteFunc(stops, func(s index.Stop) bool { return !s.Waits() })
	if len(stops) == 0 {
		return "none waits now (bctl confirm ls)", nil
	}
	slices.Reverse(stops)
	described, err := describeStops(ctx, i, stops[:min(len(stops), maxNamed)])
	if err != nil {
		return "", err
	}
	named := make([]string, len(described))
	for n, s := range described {
		named[n] = fmt.Sprintf("%d (%s in %s)", s.ID, s.what(), s.where())
	}
	text := "now waiting: " + strings.Join(named, ", ")
	if more := len(stops) - len(named); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text + " (bctl confirm ls)", nil
}

// judge confirms or rejects a stop.
func (c *confirmCommand) judge(ctx context.Context, i index.Index, s *index.Stop) (err error) {
	if c.reject {
		return i.Reject(ctx, s.ID, operator(), c.reason)
	}
	*s, err = i.Confirm(ctx, s.ID, operator(), c.reason)
	return err
}

func (c *confirmCommand) print(s *stopOf) error {
	if c.reject {
		type rejectedJSON struct {
			Rejected int64 `json:"rejected"`
		}
		return c.app.result(rejectedJSON{s.ID}, "deletion %d is rejected, and remains stopped (bctl confirm %[1]d confirms it after all)\n", s.ID)
	}
	return c.app.result(newStopJSON(s), "the deletion of %s in %s is confirmed; %s\n", s.what(), s.where(), s.next())
}

// next describes what follows the confirmation.
func (s *stopOf) next() string {
	if missing := s.Operators - len(s.Confirmed); missing > 0 {
		return "the run waits for " + counted(missing, "other operator")
	}
	return "the run may continue"
}

// confirmation is the command that confirms the stop. It names how many operators must run it, if
// one is not enough.
func (s *stopOf) confirmation() string {
	command := fmt.Sprintf("bctl confirm %d", s.ID)
	switch missing := s.Operators - len(s.Confirmed); {
	case len(s.Confirmed) > 0 && missing > 0:
		return command + " as " + counted(missing, "other operator")
	case missing > 1:
		return command + fmt.Sprintf(" as %d different operators", missing)
	}
	return command
}

// A stopOf is a stop and the names of its shard.
type stopOf struct {
	index.Stop
	filer, shard string
	now          *index.Deletion // what the run would delete now; nil: it is not known
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
	return fmt.Sprintf("%d of %s (%s)", len(s.Snapshots), counted(s.OfSnapshots, "snapshot"), percent(int64(len(s.Snapshots)), int64(s.OfSnapshots)))
}

// whatNow is what, and what the run would delete now, if that has changed.
func (s *stopOf) whatNow() string {
	text := s.what()
	if s.now != nil && (len(s.now.Snapshots) != len(s.Snapshots) || s.now.OfSnapshots != s.OfSnapshots) {
		text += fmt.Sprintf("; now %d of %d", len(s.now.Snapshots), s.now.OfSnapshots)
	}
	return text
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
	Now         *int     `json:"now_snapshots"` // null: not known
	OfNow       *int     `json:"now_of_snapshots"`
}

func newStopJSON(s *stopOf) stopJSON {
	j := stopJSON{
		ID: s.ID, By: s.By, Snapshots: []string{}, OfSnapshots: s.OfSnapshots, Bytes: s.Bytes, OfBytes: s.OfBytes, Earlier: s.EarlierBytes,
		Since: jsonTime(s.Since), Operators: s.Operators, Confirmed: append([]string{}, s.Confirmed...), Rejected: s.Rejected,
	}
	if s.Shard != 0 {
		j.Filer, j.Shard = &s.filer, &s.shard
	}
	if s.now != nil {
		n := len(s.now.Snapshots)
		j.Now, j.OfNow = &n, &s.now.OfSnapshots
	}
	for _, id := range s.Snapshots {
		j.Snapshots = append(j.Snapshots, id.String())
	}
	return j
}

func newConfirmLs(a *app) *cobra.Command {
	var policy string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List large deletions that the brake has stopped, oldest first",
		Long: `Lists the deletions that the brake has stopped, with the policy or user that
started each of them, and the operators who have confirmed or rejected it. The
deletions of one policy share a line; --policy lists each of them.

The numbers are those of the time at which the run was stopped (SINCE). If a
policy would forget more or fewer snapshots now, that number follows.`,
		Example: `  bctl confirm ls
  bctl confirm ls --policy nightly
  bctl confirm ls --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.listStops(cmd.Context(), i, policy) })
		},
	}
	cmd.Flags().StringVar(&policy, "policy", "", "each deletion of the policy `NAME`")
	a.wideFlag(cmd)
	return cmd
}

func (a *app) listStops(ctx context.Context, i index.Index, policy string) error {
	stops, err := i.Stops(ctx)
	if err != nil {
		return err
	}
	described, err := describeStops(ctx, i, stops)
	if err != nil {
		return err
	}
	if policy != "" {
		described = slices.DeleteFunc(described, func(s *stopOf) bool { return forget.PolicyOf(&s.Deletion) != policy })
	}
	if err := lookNow(ctx, i, described); err != nil {
		return err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return printList(a, described, nil, newStopJSON)
	}
	groups := groupStops(described)
	if policy != "" {
		groups = eachStop(described)
	}
	for _, g := range groups {
		if len(g.stops) > 1 && g.stops[0].Waits() {
			a.note("bctl confirm ls --policy %s lists its deletions, and bctl confirm --policy %[1]s confirms them all", display(g.policy))
		}
	}
	return writeLines(a.out, groupTable(now).lines(groups, a.width()))
}
