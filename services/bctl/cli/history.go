package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/history"
	"github.com/bctl/bctl/internal/index"
)

type historyCommand struct {
	app   *app
	which which
	since time.Time
	until time.Time
}

func newHistory(a *app) *cobra.Command {
	c := &historyCommand{app: a}
	cmd := &cobra.Command{
		Use:   "history PATH",
		Short: "List all versions of a file or directory",
		Long: `Lists every version of a file or directory that committed snapshots have, the
newest first: when it appeared, how it changed, and when it was gone or had
moved. To get a version back, restore PATH from the snapshot in its line, the
newest one that has it.

PATH is the path on the filer, or relative to the tree that was backed up. With
several shards, it is looked for in each: --filer and --shard select some.

For a changed version, the list says what differs from the one before: type,
content, target, rdev, mode, owner, group, mtime or xattrs. The history of a
directory is that of its own attributes, and not of what is in it.

The status is 1 if no snapshot has the path, and 3 if a part of the index could
not be read, so that there may be more versions than are listed.`,
		Example: `  bctl history /home/alice/thesis.odt
  bctl history home/alice/thesis.odt --filer nas1 --shard /export --since 30d`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given[0]) },
	}
	c.which.flags(a, cmd)
	sinceFlag(cmd.Flags(), &c.since, "since", "only snapshots that started at or after `TIME`: "+sinceForms)
	untilFlag(cmd.Flags(), &c.until, "until", "only snapshots that started at or before `TIME`, a whole day, minute or second")
	return cmd
}

func (c *historyCommand) run(ctx context.Context, given string) error {
	path, err := browse.CleanPath(given)
	if err != nil {
		return usage("%v", err)
	}
	return c.app.withIndex(ctx, toRead, func(i index.Index) error {
		c.app.noteCurrent(ctx, i)
		shards, err := c.which.listAll(ctx, i)
		if err != nil {
			return err
		}
		found, unread := 0, 0
		for n := range shards {
			some, err := c.inShard(ctx, i, &shards[n], given, path)
			switch {
			case errors.Is(err, backup.ErrCorrupt):
				c.app.note("shard %s of filer %s: there may be more: %v", display(shards[n].Name), display(shards[n].Filer.Name), err)
				unread++
			case err != nil:
				return err
			}
			found += some
		}
		switch {
		case unread > 0:
			return errIncomplete
		case found == 0:
			return absent("no snapshot%s has %s (bctl find looks for a name at all paths)", &c.which, display(given))
		}
		return nil
	})
}

// inShard prints the history of a path in one shard, and returns the number of its versions. A path
// on the filer is that below the shard's root or, if no snapshot has that, the same path below it.
func (c *historyCommand) inShard(ctx context.Context, i index.Index, s *index.ShardStatus, given, path string) (int, error) {
	snapshots, err := committedBetween(ctx, i, s, c.since, c.until)
	if err != nil || len(snapshots) == 0 {
		return 0, err
	}
	candidates := []string{path}
	root := strings.TrimSuffix(rootOf(&backup.Snapshot{Shard: s.Shard}), "/")
	if below, ok := strings.CutPrefix("/"+path+"/", root+"/"); ok && filepath.IsAbs(given) {
		candidates = []string{strings.TrimSuffix(below, "/"), path}
	}
	for _, path := range candidates {
		steps, err := history.Of(ctx, i, s.ID, snapshots, path)
		if len(steps) > 0 || err != nil {
			return len(steps), errors.Join(c.print(s, snapshots, root, path, steps), err)
		}
	}
	return 0, nil
}

// A historyJSON is one version of history --json.
type historyJSON struct {
	versionJSON
	Appeared bool     `json:"appeared"` // the snapshot before it does not have the path
	Differs  []string `json:"differs,omitempty"`
	From     string   `json:"from,omitempty"` // where it was before, if it has moved there
	RawFrom  string   `json:"from_b64,omitempty"`
	Gone     bool     `json:"gone"`         // the snapshot after it does not have the path
	To       string   `json:"to,omitempty"` // where it has moved
	RawTo    string   `json:"to_b64,omitempty"`
}

func (c *historyCommand) print(s *index.ShardStatus, snapshots history.Snapshots, root, path string, steps []history.Step) error {
	if len(steps) == 0 {
		return nil
	}
	lines := newVersionList(c.app.out, "HISTORY")
	if !c.app.json {
		fmt.Fprintf(c.app.out, "%s:%s\n", display(s.Filer.Name), display(root+"/"+path))
	}
	for n := len(steps) - 1; n >= 0; n-- {
		step := &steps[n]
		if c.app.json {
			err := c.app.print(historyJSON{
				newVersionJSON(snapshots, &step.Version), step.New, step.Differs.Names(),
				step.From, backup.RawBase64(step.From), step.Gone, step.To, backup.RawBase64(step.To),
			})
			if err != nil {
				return err
			}
			continue
		}
		text := stepText(step, n > 0) + markOfBad(&snapshots[step.Last])
		if err := lines.add(&snapshots[step.Last], &step.Version, text); err != nil {
			return err
		}
	}
	return lines.flush()
}

// stepText describes a version in the history of a path.
func stepText(s *history.Step, hasBefore bool) string {
	var parts []string
	switch {
	case s.From != "":
		parts = append(parts, "moved from "+display(s.From))
	case s.New && hasBefore:
		parts = append(parts, "appeared again")
	case s.New:
		parts = append(parts, "appeared")
	}
	if s.Differs != 0 {
		parts = append(parts, "changed: "+strings.Join(s.Differs.Names(), ", "))
	}
	if s.Entry.HadVanished() {
		parts = append(parts, vanishedText)
	}
	switch {
	case s.To != "":
		parts = append(parts, "moved to "+display(s.To))
	case s.Gone:
		parts = append(parts, "gone after that")
	}
	switch {
	case len(parts) > 0:
	case s.First == 0:
		return "in the first of these snapshots"
	default: // the one before had vanished, and of this one nothing but the name is known
		return "there again"
	}
	return strings.Join(parts, "; ")
}
