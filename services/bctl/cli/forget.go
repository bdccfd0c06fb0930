package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/retention"
)

type forgetCommand struct {
	app     *app
	which   which
	labels  []string
	tags    []string
	keep    keepFlags
	policy  bool
	dryRun  bool
	reason  string
	prune   bool
	pruning pruneCommand

	rules  backup.Retention
	fates  []forget.Fate
	failed int // snapshots that were named, and are kept
	// stopped are the shards of which nothing was forgotten, because that needs a confirmation.
	stopped []*stopOf
}

func newForget(a *app) *cobra.Command {
	c := &forgetCommand{app: a, pruning: pruneCommand{app: a, maxUnused: prune.DefaultMaxUnused}}
	cmd := &cobra.Command{
		Use:   "forget [SNAPSHOT…]",
		Short: "Forget snapshots, by name or by rules",
		Long: `Forgets the named snapshots, or those that no rule keeps. A forgotten snapshot
can no longer be listed or restored. bctl prune, or --prune, then deletes the
content that no other snapshot needs.

The rules (--keep-…) apply to each shard on its own: to all shards, or to those
that --filer, --shard and --label select. With --tag, they apply only to the
snapshots that have this tag, and the others stay. Hours, days, weeks, months
and years are those of this machine's time zone. With --policy, each shard's
policy decides, in the policy's time zone. A snapshot that failed or is marked
bad takes the place of no good one.

Some snapshots are never forgotten: the last good snapshot of each shard that is
not retired, snapshots on hold (bctl hold), those with which a running snapshot
is compared, and those that are being restored. If you name one of these, the
status is 1.

If most snapshots of a shard would be forgotten at once, the brake stops the
command, which then prints the bctl confirm command to type. bctl brake shows
the limits.

--dry-run prints what would be kept or forgotten, and why, and how much space
would be freed. Nothing is changed. bctl log shows what was forgotten.`,
		Example: `  bctl forget --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run
  bctl forget --keep-within 30d --filer nas1 --prune
  bctl forget 3f2a --reason 'test data, ticket 4711'
  bctl forget --policy --label env=prod`,
		Args:              args(cobra.ArbitraryArgs),
		ValidArgsFunction: a.completeSnapshots(&c.which),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := c.check(cmd, given); err != nil {
				return err
			}
			return c.run(cmd.Context(), given)
		},
	}
	c.which.flags(a, cmd)
	labelFlag(cmd, &c.labels)
	flags := cmd.Flags()
	flags.StringArrayVar(&c.tags, "tag", nil, "only snapshots with this `TAG` (may be repeated: with all of them)")
	c.keep.flags(flags)
	flags.BoolVar(&c.policy, "policy", false, "by the rules of each shard's policy")
	flags.BoolVar(&c.dryRun, "dry-run", false, "only print what would be forgotten, and what that would free")
	flags.StringVar(&c.reason, "reason", "", "a `TEXT` for the log (bctl log)")
	flags.BoolVar(&c.prune, "prune", false, "then free the space, as bctl prune does")
	a.wideFlag(cmd)
	a.completeFlag(cmd, "tag", a.tagNames)
	return cmd
}

// check fails unless the arguments define what to forget.
func (c *forgetCommand) check(cmd *cobra.Command, given []string) error {
	if err := c.keep.apply(cmd.Flags().Changed, &c.rules); err != nil {
		return err
	}
	if _, err := parseLabels(c.labels); err != nil {
		return err
	}
	ruled := false
	for _, name := range keepFlagNames(cmd) {
		ruled = ruled || cmd.Flags().Changed(name)
	}
	switch {
	case len(given) > 0 && (ruled || c.policy || len(c.labels)+len(c.tags) > 0):
		return usage("name snapshots, or give rules (--keep-daily 7, --policy), but not both")
	case ruled && c.policy:
		return usage("give rules, or --policy, but not both")
	case len(given) > 0, c.policy:
		return nil
	case !c.rules.HasRules():
		return usage("no rule keeps any snapshot: give at least one, such as --keep-daily 7, or --policy, or name the snapshots to forget")
	}
	return wrongSetting(retention.Check(c.rules))
}

// keepFlagNames returns the names of the flags that are rules.
func keepFlagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, "keep-") {
			names = append(names, f.Name)
		}
	})
	return names
}

func (c *forgetCommand) run(ctx context.Context, given []string) error {
	a := c.app
	to := toWrite
	if c.dryRun {
		to = toRead
	}
	if c.prune && !c.dryRun {
		r, err := a.openRepository(ctx, to)
		if err != nil {
			return err
		}
		defer r.close()
		if err := c.forget(ctx, r.index, given); err != nil {
			return err
		}
		return c.pruning.prune(ctx, r)
	}
	return a.withIndex(ctx, to, func(i index.Index) error {
		if c.dryRun {
			a.noteCurrent(ctx, i)
		}
		return c.forget(ctx, i, given)
	})
}

// forget decides, forgets and reports.
func (c *forgetCommand) forget(ctx context.Context, i index.Index, given []string) error {
	decider, err := forget.New(ctx, i)
	if err != nil {
		return err
	}
	if len(given) > 0 {
		err = c.byName(ctx, i, decider, given)
	} else {
		err = c.byRules(ctx, i, decider)
	}
	if err != nil {
		return err
	}
	if err := c.report(ctx, i); err != nil {
		return err
	}
	if len(c.stopped) > 0 {
		return c.unconfirmed()
	}
	if c.failed > 0 {
		return c.refused(len(given))
	}
	return nil
}

// byName forgets the named snapshots, if all of them can be found.
func (c *forgetCommand) byName(ctx context.Context, i index.Index, decider *forget.Decider, given []string) error {
	var wanted []backup.Snapshot
	for _, arg := range given {
		s, err := c.which.snapshot(ctx, i, arg)
		if err != nil {
			return err
		}
		if s.State == backup.Running {
			return absent("snapshot %s of %s %s is running, and only one that has ended can be forgotten (bctl cancel %[1]s ends it)",
				s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name))
		}
		if !slices.ContainsFunc(wanted, func(w backup.Snapshot) bool { return w.ID == s.ID }) {
			wanted = append(wanted, s)
		}
	}
	shards := map[backup.ShardID]*index.ShardStatus{}
	fates := map[backup.ShardID][]forget.Fate{}
	var order []backup.ShardID
	for n := range wanted {
		s := &wanted[n]
		shard, known := shards[s.Shard.ID]
		if !known {
			found, err := findShard(ctx, i, s.Filer.Name, s.Shard.Name)
			if err != nil {
				return err
			}
			shard, order = &found, append(order, s.Shard.ID)
			shards[s.Shard.ID] = shard
		}
		kept, err := decider.Kept(ctx, s, shard)
		if err != nil {
			return err
		}
		f := forget.Fate{Snapshot: *s, Keep: len(kept) > 0, Reasons: kept}
		if !f.Keep {
			f.Reasons = []string{"named"}
		}
		fates[s.Shard.ID] = append(fates[s.Shard.ID], f)
	}
	for _, id := range order {
		if err := c.carryOut(ctx, i, shards[id], fates[id], cmp.Or(c.reason, "named")); err != nil {
			return err
		}
	}
	for n := range c.fates {
		if c.fates[n].Keep {
			c.failed++
		}
	}
	return nil
}

// byRules forgets what no rule keeps, shard by shard.
func (c *forgetCommand) byRules(ctx context.Context, i index.Index, decider *forget.Decider) error {
	labels, err := parseLabels(c.labels)
	if err != nil {
		return err
	}
	if err := c.which.exists(ctx, i); err != nil {
		return err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: c.which.filer, Name: c.which.shard, Labels: labels, Retired: true})
	if err != nil {
		return err
	}
	var policies []backup.Policy
	if c.policy {
		if policies, err = i.ListPolicies(ctx); err != nil {
			return err
		}
	}
	without := 0
	for n := range shards {
		rule, ok, err := c.ruleOf(&shards[n], policies)
		if err != nil {
			return err
		}
		if !ok {
			without++
			continue
		}
		fates, err := decider.Shard(ctx, &shards[n], rule)
		if err != nil {
			return wrongSetting(err)
		}
		slices.Reverse(fates) // oldest first, as in bctl snapshot ls
		if err := c.carryOut(ctx, i, &shards[n], fates, cmp.Or(c.reason, "rules: "+rule.String())); err != nil {
			return err
		}
	}
	if without > 0 {
		c.app.note("%s without a policy, or with one that has no rules: all of their snapshots stay", counted(without, "shard"))
	}
	return nil
}

// ruleOf returns the rule of a shard; ok is false if its policy has none.
func (c *forgetCommand) ruleOf(s *index.ShardStatus, policies []backup.Policy) (r forget.Rule, ok bool, err error) {
	r = forget.Rule{Retention: c.rules, Zone: zone, Wanted: func(s *backup.Snapshot) bool {
		return !slices.ContainsFunc(c.tags, func(tag string) bool { return !slices.Contains(s.Tags, tag) })
	}}
	if !c.policy {
		return r, true, nil
	}
	p, bound := policy.For(s.Filer.Labels, policies)
	if !bound || !p.Retention.HasRules() {
		return r, false, nil
	}
	r.Retention = p.Retention
	r.Zone, err = time.LoadLocation(p.TimeZone)
	return r, true, err
}

// carryOut forgets the snapshots of a shard whose fates are not to be kept, unless the brake stops
// it. It adds all fates to c.fates.
func (c *forgetCommand) carryOut(ctx context.Context, i index.Index, shard *index.ShardStatus, fates []forget.Fate, reason string) error {
	d := forget.Deletion(fates, shard, operator())
	stopped, err := c.brake(ctx, i, shard, &d)
	if err != nil {
		return err
	}
	for n := range fates {
		f := &fates[n]
		switch {
		case f.Keep, c.dryRun:
		case stopped != nil:
			f.Keep, f.Reasons = true, []string{fmt.Sprintf("stopped by the brake (bctl confirm %d)", stopped.ID)}
		default:
			if err := c.one(ctx, i, f, reason); err != nil {
				return err
			}
		}
		c.fates = append(c.fates, *f)
	}
	if stopped != nil || c.dryRun || len(d.Snapshots) == 0 {
		return nil
	}
	return i.Deleted(ctx, d, true)
}

// one forgets a snapshot if the index allows it.
func (c *forgetCommand) one(ctx context.Context, i index.Index, f *forget.Fate, reason string) error {
	switch err := i.Forget(ctx, f.ID, operator(), reason); {
	case errors.Is(err, index.ErrKept):
		f.Keep, f.Reasons = true, []string{strings.TrimSuffix(err.Error(), ": "+index.ErrKept.Error())}
	case errors.Is(err, backup.ErrNotFound): // somebody else has forgotten it meanwhile
	case err != nil:
		return wrongSetting(err)
	}
	return nil
}

// operator returns the user who runs this command, as user@host.
func operator() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		host = h
	}
	return name + "@" + host
}

// refused is the error about named snapshots that are kept.
func (c *forgetCommand) refused(named int) error {
	var parts []string
	held := false
	for n := range c.fates {
		if f := &c.fates[n]; f.Keep {
			parts = append(parts, fmt.Sprintf("snapshot %s of %s %s, number %d, cannot be forgotten: %s",
				f.ID.Short(), display(f.Filer.Name), display(f.Shard.Name), f.Number, strings.Join(f.Reasons, "; ")))
			held = held || slices.ContainsFunc(f.Reasons, func(reason string) bool { return strings.HasPrefix(reason, "on hold") })
		}
	}
	if held {
		parts = append(parts, "(bctl hold ls lists the holds, bctl hold rm removes one)")
	}
	if named > 1 {
		parts = append([]string{fmt.Sprintf("%d of %d snapshots stay:", c.failed, named)}, parts...)
	}
	return errors.New(strings.Join(parts, "\n"))
}

// fateJSON is a line of forget. The names are fixed.
type fateJSON struct {
	Type    string   `json:"type"` // snapshot
	ID      string   `json:"id"`
	Filer   string   `json:"filer"`
	Shard   string   `json:"shard"`
	Number  int64    `json:"number"`
	State   string   `json:"state"` // before
	Started *string  `json:"started"`
	Tags    []string `json:"tags"`
	Keep    bool     `json:"keep"`
	Reasons []string `json:"reasons"`
}

// report prints the fates: in a dry run all of them, otherwise those of forgotten snapshots, and
// with --json always all.
func (c *forgetCommand) report(ctx context.Context, i index.Index) error {
	a := c.app
	var gone []backup.SnapshotID
	var shown []*forget.Fate
	for n := range c.fates {
		f := &c.fates[n]
		if !f.Keep {
			gone = append(gone, f.ID)
		}
		if c.dryRun || !f.Keep {
			shown = append(shown, f)
		}
	}
	var frees *prune.Summary
	if c.dryRun {
		r, err := a.frees(ctx, i, gone)
		if err != nil {
			return err
		}
		frees = &r
	}
	if a.json {
		return c.reportJSON(len(gone), frees)
	}
	if len(shown) > 0 {
		if err := writeLines(a.out, fateTable(c.dryRun).lines(shown, a.width())); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("forgot %s%s", counted(len(gone), "snapshot"), staying(len(c.fates)-len(gone)))
	switch {
	case frees != nil && len(c.fates) > 0:
		text = fmt.Sprintf("would forget %s%s\nbctl prune would then delete %s (%s)",
			counted(len(gone), "snapshot"), staying(len(c.fates)-len(gone)), counted(frees.Packs, "pack"), size(frees.Bytes))
		if frees.Thinned > 0 {
			text += fmt.Sprintf(", and free %s of %s", size(frees.Freed), counted(frees.Thinned, "other"))
		}
	case c.failed == len(c.fates) && c.failed > 0: // the error says it
		return nil
	case len(c.fates) == 0:
		text = "there is no snapshot to decide about"
	case len(gone) > 0 && !c.prune:
		pruner := "the pruner"
		if _, local := i.(*sqliteindex.Index); local {
			pruner = "bctl prune"
		}
		text += "\n" + pruner + " frees the space of what no other snapshot needs"
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// staying returns how many of the snapshots to decide about stay, as the end of a sentence. If all
// are forgotten that were named, others of the shard stay.
func staying(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; 1 stays"
	}
	return fmt.Sprintf("; %d stay", n)
}

func (c *forgetCommand) reportJSON(gone int, frees *prune.Summary) error {
	a := c.app
	for n := range c.fates {
		f := &c.fates[n]
		err := a.print(fateJSON{
			Type: "snapshot", ID: f.ID.String(), Filer: f.Filer.Name, Shard: f.Shard.Name, Number: int64(f.Number), State: string(f.State),
			Started: jsonTime(f.Started), Tags: append([]string{}, f.Tags...), Keep: f.Keep, Reasons: f.Reasons,
		})
		if err != nil {
			return err
		}
	}
	type freesJSON struct {
		Packs int   `json:"packs"`
		Bytes int64 `json:"bytes"` // also of packs that are needed in part
	}
	total := struct {
		Type      string     `json:"type"`
		DryRun    bool       `json:"dry_run"`
		Forgotten int        `json:"forgotten"`
		Kept      int        `json:"kept"`
		Frees     *freesJSON `json:"frees"` // by the next prune; null without --dry-run
	}{Type: "summary", DryRun: c.dryRun, Forgotten: gone, Kept: len(c.fates) - gone}
	if frees != nil {
		total.Frees = &freesJSON{frees.Packs, frees.Bytes + frees.Freed}
	}
	return a.print(total)
}

func fateTable(dryRun bool) table[*forget.Fate] {
	t := table[*forget.Fate]{
		{name: "ID", text: func(f *forget.Fate) string { return f.ID.Short() }},
		{name: "STARTED", text: func(f *forget.Fate) string { return zoned(f.Started) }, brief: func(f *forget.Fate) string { return shortTime(f.Started) }},
		{name: "FILER", text: func(f *forget.Fate) string { return display(f.Filer.Name) }, cut: truncate, leave: 3},
		{name: "SHARD", text: func(f *forget.Fate) string { return display(f.Shard.Name) }, cut: tail, useful: usefulPath, leave: 4},
		{name: "NUMBER", text: func(f *forget.Fate) string { return fmt.Sprint(f.Number) }, right: true, leave: 2},
		{name: "STATE", text: func(f *forget.Fate) string { return stateText(&f.Snapshot) }, leave: 1},
		{name: "FATE", text: func(f *forget.Fate) string {
			if f.Keep {
				return "keep"
			}
			return "forget"
		}},
		{name: "REASON", text: func(f *forget.Fate) string { return display(strings.Join(f.Reasons, "; ")) }, cut: truncate, useful: usefulPath},
	}
	if !dryRun {
		t = slices.DeleteFunc(t, func(c column[*forget.Fate]) bool { return c.name == "FATE" })
	}
	return t
}
