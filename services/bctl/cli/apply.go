package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/index"
)

type applyCommand struct {
	app           *app
	file          string
	dryRun, prune bool
}

func newApply(a *app) *cobra.Command {
	c := &applyCommand{app: a}
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Change filers, shards and policies to match a file",
		Long: `Makes filers, their shards and policies match a declaration in a file. Missing
ones are registered; settings that differ are changed. A setting that the file
omits gets its default. Applying the file a second time changes nothing.

Filers, shards and policies that the file does not name stay unchanged, unless
--prune is given. With --prune, such filers and shards are retired and such
policies are removed. Their snapshots remain.

The whole file is checked before anything is changed. With --prune, nothing is
changed and the exit status is 11 if a filer or shard to be retired is being
backed up. If a change fails later, the changes that were not made are printed.
bctl export prints the current state as such a file.`,
		Example: `  bctl apply -f fleet.yaml --dry-run
  bctl apply -f fleet.yaml
  bctl apply -f fleet.yaml --prune --dry-run
  bctl export | bctl apply -f - --config other.yaml`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	cmd.Flags().StringVarP(&c.file, "file", "f", "", "`FILE` that declares the fleet, YAML; -: standard input")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "print the changes without making them")
	cmd.Flags().BoolVar(&c.prune, "prune", false, "retire filers and shards, and remove policies, that the file does not name")
	return cmd
}

func (c *applyCommand) run(cmd *cobra.Command) error {
	file, err := c.read(cmd.InOrStdin())
	if err != nil {
		return err
	}
	if c.prune && len(file.filers) == 0 {
		return usage("%s declares no filer, so --prune would retire all filers; to retire a filer, use bctl filer rm", file.name)
	}
	to := toWrite
	if c.dryRun {
		to = toRead
	}
	ctx := cmd.Context()
	return c.app.withIndex(ctx, to, func(i index.Index) error {
		p := &applyPlan{app: c.app, file: file, prune: c.prune}
		if err := p.compare(ctx, i); err != nil {
			return err
		}
		if err := p.errBusy(); err != nil && !c.dryRun {
			return err
		}
		if err := c.carryOut(ctx, i, p); err != nil {
			return err
		}
		c.notes(ctx, i, p)
		return nil
	})
}

// notes prints notes on what was changed. Those of a dry run are the same, so that it reports what
// the real run would.
func (c *applyCommand) notes(ctx context.Context, i index.Index, p *applyPlan) {
	if len(p.busy) > 0 { // in a dry run
		c.app.note("bctl apply would change nothing now, because these would be retired and are being backed up: %s", strings.Join(p.busy, ", "))
	}
	c.app.noteSites(ctx, i, slices.Sorted(maps.Keys(p.sites))...)
	c.app.noteUncovered(p.before, coverageOf(p.planned.shards, p.planned.policies))
	c.app.noteNestedOf(p.planned.shards, p.planned.policies, func(s *index.ShardStatus) bool { return p.looked[s.Filer.Name] })
}

func (c *applyCommand) read(stdin io.Reader) (*fleetFile, error) {
	name := c.file
	var data []byte
	var err error
	switch name {
	case "":
		return nil, usage("say which file declares the fleet, with -f FILE (bctl export prints one)")
	case "-":
		name = "standard input"
		data, err = io.ReadAll(stdin)
	default:
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("declaration of the fleet: %w", err)
	}
	return readFleet(name, data)
}

// carryOut makes the changes in order and prints each when it is made. At the first failure it
// stops, and prints the changes that are not made: those before it stay, and applying the same file
// again makes the rest.
func (c *applyCommand) carryOut(ctx context.Context, i index.Index, p *applyPlan) error {
	done := appliedJSON{Type: "summary", DryRun: c.dryRun, Unchanged: p.unchanged}
	var failed error
	for n := range p.changes {
		change := &p.changes[n]
		if failed == nil && !c.dryRun {
			if err := change.do(ctx, i); err != nil {
				failed = fmt.Errorf("%s: %w", change, wrongSetting(err))
			}
		}
		made := &done.Retired
		switch {
		case failed != nil:
			made = &done.NotMade
		case change.action == "add":
			made = &done.Added
		case change.action == "change":
			made = &done.Changed
		}
		*made++
		if err := c.tell(change, failed == nil); err != nil {
			return errors.Join(failed, err)
		}
	}
	return errors.Join(failed, c.summary(&done))
}

func (c *applyCommand) summary(done *appliedJSON) error {
	format := "%d added, %d changed, %d retired, %d already as declared"
	switch {
	case c.dryRun:
		format = "%d to add, %d to change, %d to retire, %d already as declared; this was a dry run, and nothing was changed"
	case done.NotMade > 0:
		format += fmt.Sprintf("; %s not made: apply the file again to make them", counted(done.NotMade, "change"))
	}
	return c.app.result(done, format+"\n", done.Added, done.Changed, done.Retired, done.Unchanged)
}

// A fleetChange is one step towards the declared fleet.
type fleetChange struct {
	action               string // add, change, retire (a filer or shard) or remove (a policy)
	filer, shard, policy string
	shards               []string // shards retired together with their filer
	settings             []setting
	do                   func(ctx context.Context, i index.Index) error
}

func (c *fleetChange) String() string {
	switch {
	case c.policy != "":
		return "policy " + display(c.policy)
	case c.shard != "":
		return "shard " + display(c.shard) + " of " + display(c.filer)
	}
	return "filer " + display(c.filer)
}

// appliedJSON is the last line of apply.
type appliedJSON struct {
	Type      string `json:"type"` // summary
	DryRun    bool   `json:"dry_run"`
	Added     int    `json:"added"`
	Changed   int    `json:"changed"`
	Retired   int    `json:"retired"` // or removed
	Unchanged int    `json:"unchanged"`
	NotMade   int    `json:"not_made"` // because one of them failed
}

// changeJSON is a change in the output of apply.
type changeJSON struct {
	Type     string                 `json:"type"` // change; not_made: because it, or one before it, failed
	DryRun   bool                   `json:"dry_run"`
	Action   string                 `json:"action"`
	Filer    string                 `json:"filer,omitempty"`
	Shard    string                 `json:"shard,omitempty"`
	Policy   string                 `json:"policy,omitempty"`
	Shards   []string               `json:"shards,omitempty"`
	Settings map[string]settingJSON `json:"settings,omitempty"`
}

type settingJSON struct {
	From any `json:"from"` // null: the default
	To   any `json:"to"`
}

// tell prints a change. made is false if it was not made because of a failure.
func (c *applyCommand) tell(change *fleetChange, made bool) error {
	kind, prefix := "change", ""
	if !made {
		kind, prefix = "not_made", "not made: "
	}
	if c.app.json {
		j := changeJSON{
			Type: kind, DryRun: c.dryRun, Action: change.action, Filer: change.filer, Shard: change.shard, Policy: change.policy, Shards: change.shards,
			Settings: map[string]settingJSON{},
		}
		for _, s := range change.settings {
			j.Settings[s.name] = settingJSON{s.from, s.to}
		}
		return c.app.print(j)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s %v", prefix, change.action, change)
	if len(change.shards) > 0 {
		fmt.Fprintf(&b, ", with %s", counted(len(change.shards), "shard"))
		for _, name := range change.shards {
			fmt.Fprintf(&b, "\n    %s", display(name))
		}
	}
	for _, s := range change.settings {
		if change.action == "add" {
			fmt.Fprintf(&b, "\n    %s: %s", s.name, compact(s.to))
		} else {
			fmt.Fprintf(&b, "\n    %s: %s -> %s", s.name, compact(s.from), compact(s.to))
		}
	}
	_, err := fmt.Fprintln(c.app.out, b.String())
	return err
}
