package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/history"
	"github.com/bctl/bctl/internal/index"
)

type findCommand struct {
	app   *app
	which which
	since time.Time
	until time.Time

	regex, ignoreCase, print0 bool
	filter                    findFilter
	patterns                  []findPattern

	lines                        *versionList
	paths, versions, shards, all int
	unlisted                     []string // shards of which not everything could be read
}

func newFind(a *app) *cobra.Command {
	c := &findCommand{app: a}
	cmd := &cobra.Command{
		Use:   "find PATTERN...",
		Short: "Find files by name in all snapshots",
		Long: `Finds files and directories by name, in all committed snapshots of all shards or
of those that are selected. Each version of a file is listed once, the newest
first, with the newest snapshot that has it and the number of snapshots that do.

PATTERN is a glob: * and ? match any characters but a slash, [a-z] one of a set,
and ** any directories. It must match the whole name. A pattern with a slash
must match the whole path: below the shard's root or, if the pattern begins with
a slash, on the filer. With --regex, PATTERN is a regular expression that must
match a part of the name or path. Quote patterns, so that the shell leaves them
alone.

With --print0, each version is printed as SNAPSHOT:PATH and a NUL, for commands
that take that. Names can be looked for without an identity.

The status is 3 if a part of the index could not be read, so that there may be
more than what is listed.`,
		Example: `  bctl find report.odt
  bctl find '*.xlsx' --filer nas1 --since 30d --larger 1MiB
  bctl find '/export/home/*/.ssh/id_*' --type file
  bctl find --regex -i '^invoice.*2025' --json`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := c.parse(cmd.Flags(), given); err != nil {
				return err
			}
			return c.run(cmd.Context())
		},
	}
	c.which.flags(a, cmd)
	flags := cmd.Flags()
	sinceFlag(flags, &c.since, "since", "only snapshots that started at or after `TIME`: "+sinceForms)
	untilFlag(flags, &c.until, "until", "only snapshots that started at or before `TIME`, a whole day, minute or second")
	flags.BoolVar(&c.regex, "regex", false, "patterns are regular expressions")
	flags.BoolVarP(&c.ignoreCase, "ignore-case", "i", false, "do not distinguish upper and lower case")
	flags.BoolVarP(&c.print0, "print0", "0", false, "print SNAPSHOT:PATH and a NUL for each version")
	c.filter.flags(flags)
	return cmd
}

// untilFlag is a flag for the last moment of a time.
func untilFlag(flags *pflag.FlagSet, to *time.Time, name, usage string) {
	momentFlag(flags, to, parseUntil, name, usage)
}

// momentFlag is a flag for a time. Unlike with sinceFlag, the empty text is none.
func momentFlag(flags *pflag.FlagSet, to *time.Time, parse func(text string, now time.Time) (time.Time, error), name, usage string) {
	flags.Var(&parsed[time.Time]{to, "", "string", func(text string) (time.Time, error) {
		if text == "" {
			return time.Time{}, wrongValue("is not a time: it is empty")
		}
		return parse(text, time.Now())
	}}, name, usage)
}

func (c *findCommand) parse(flags *pflag.FlagSet, given []string) error {
	if c.print0 && c.app.json {
		return usage("--print0 and --json are two forms of output: choose one")
	}
	if !c.until.IsZero() && c.until.Before(c.since) {
		return usage("--until is before --since: no snapshot is between them")
	}
	for _, text := range given {
		p, err := newFindPattern(text, c.regex, c.ignoreCase)
		if err != nil {
			return usage("pattern %q %v", text, err)
		}
		c.patterns = append(c.patterns, p)
	}
	return c.filter.parse(flags)
}

func (c *findCommand) run(ctx context.Context) error {
	return c.app.withIndex(ctx, toRead, func(i index.Index) error {
		c.app.noteCurrent(ctx, i)
		shards, err := c.which.listAll(ctx, i)
		if err != nil {
			return err
		}
		c.lines = newVersionList(c.app.out, "PATH")
		for n := range shards {
			if err := c.inShard(ctx, i, &shards[n]); err != nil {
				return errors.Join(err, c.lines.flush())
			}
		}
		return errors.Join(c.lines.flush(), c.conclude())
	})
}

// inShard lists what a shard has.
func (c *findCommand) inShard(ctx context.Context, i index.Index, s *index.ShardStatus) error {
	snapshots, err := committedBetween(ctx, i, s, c.since, c.until)
	if err != nil || len(snapshots) == 0 {
		return err
	}
	c.shards, c.all = c.shards+1, c.all+len(snapshots)
	name := display(s.Filer.Name) + " " + display(s.Name)
	root := rootOf(&backup.Snapshot{Shard: s.Shard})
	q := history.Query{Entry: c.filter.selects, Name: func(dir, name string) bool {
		for n := range c.patterns {
			if c.patterns[n].matches(root, dir, name) {
				return true
			}
		}
		return false
	}}
	result, err := history.Find(ctx, i, s.ID, snapshots, q, func(found []history.Version) error {
		c.paths++
		for n := range found {
			c.versions++
			if err := c.print(s, root, snapshots, &found[n]); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(result.Incomplete, backup.ErrCorrupt) {
		c.app.note("shard %s: names in the index are damaged, so all of its pages were read; bctl prune repairs them", name)
	} else if result.Incomplete != nil {
		c.app.note("shard %s: the index does not have the names of all pages yet, so all pages were read; bctl prune adds them", name)
	}
	if errors.Is(err, backup.ErrCorrupt) {
		c.app.note("shard %s: there may be more: %v", name, err)
		c.unlisted = append(c.unlisted, name)
		return nil
	}
	return err
}

// committedBetween returns the snapshots of a shard that can be read, by number.
func committedBetween(ctx context.Context, i index.Catalog, s *index.ShardStatus, since, until time.Time) (history.Snapshots, error) {
	all, err := i.Snapshots(ctx, index.SnapshotFilter{Filer: s.Filer.Name, Shard: s.Name, States: []backup.State{backup.Committed}, Since: since})
	var list history.Snapshots
	for n := range all {
		if until.IsZero() || !all[n].Started.After(until) {
			list = append(list, all[n])
		}
	}
	return list, err
}

// findTotal is the last object of find --json.
type findTotal struct {
	Type      string   `json:"type"` // total
	Versions  int      `json:"versions"`
	Paths     int      `json:"paths"`
	Snapshots int      `json:"snapshots"` // that were searched
	Shards    int      `json:"shards"`
	Unread    []string `json:"unread,omitempty"` // shards of which not all could be read
}

// conclude reports how much was found. That nothing was found is no error.
func (c *findCommand) conclude() error {
	if c.app.json {
		if err := c.app.print(findTotal{"total", c.versions, c.paths, c.all, c.shards, c.unlisted}); err != nil {
			return err
		}
	} else {
		c.app.note("%s of %s, in %s of %s", counted(c.versions, "version"), counted(c.paths, "path"), counted(c.all, "snapshot"), counted(c.shards, "shard"))
	}
	if len(c.unlisted) > 0 {
		return errIncomplete
	}
	return nil
}

func (c *findCommand) print(s *index.ShardStatus, root string, snapshots history.Snapshots, v *history.Version) error {
	newest := &snapshots[v.Last]
	switch {
	case c.print0:
		_, err := fmt.Fprintf(c.app.out, "%s:%s\x00", newest.ID.Short(), v.Path)
		return err
	case c.app.json:
		return c.app.print(newVersionJSON(snapshots, v))
	}
	path := strings.TrimSuffix(root, "/") + "/" + v.Path
	return c.lines.add(newest, v, display(s.Filer.Name)+":"+displayDirectory(path, v.Entry.Kind)+markOfBad(newest))
}

func markOfBad(s *backup.Snapshot) string {
	if s.Bad == "" {
		return ""
	}
	return "  (snapshot marked bad)"
}

// A findFilter selects versions by their attributes.
type findFilter struct {
	larger, smaller int64
	newer, older    time.Time
	owner, kind     string

	byLarger, bySmaller bool
	uid                 uint32
	byKind              backup.Kind
}

func (f *findFilter) flags(flags *pflag.FlagSet) {
	sizeFlag(flags, &f.larger, "larger", "only files of more than `SIZE`")
	sizeFlag(flags, &f.smaller, "smaller", "only files of less than `SIZE`")
	momentFlag(flags, &f.newer, parseSince, "newer", "only what was modified after `TIME`")
	momentFlag(flags, &f.older, parseSince, "older", "only what was modified before `TIME`")
	flags.StringVar(&f.owner, "owner", "", "only what this `USER` owns: a name of this machine, or a number")
	flags.Var(&parsed[string]{&f.kind, "", "string", func(text string) (string, error) {
		kind, err := parseKind(text)
		f.byKind = kind
		return text, err
	}}, "type", "only entries of `TYPE`: file (f), directory (d), symlink (l), fifo (p), socket (s), chardev (c) or blockdev (b)")
}

// kindLetters are the letters of find(1), in the order of the kinds.
const kindLetters = "fdlpscb"

func parseKind(text string) (backup.Kind, error) {
	for kind := backup.File; kind <= backup.BlockDev; kind++ {
		if text == kind.String() || text == kindLetters[kind-backup.File:][:1] {
			return kind, nil
		}
	}
	return 0, wrongValue("is not a type of entry (file, directory, symlink, fifo, socket, chardev, blockdev)")
}

func (f *findFilter) parse(flags *pflag.FlagSet) error {
	f.byLarger, f.bySmaller = flags.Changed("larger"), flags.Changed("smaller")
	if f.bySmaller && f.smaller == 0 {
		return usage("--smaller 0: no file has less than 0 bytes")
	}
	if !flags.Changed("owner") {
		return nil
	}
	uid, err := userIDs.number(f.owner)
	if err != nil {
		return usage("--owner: %v", err)
	}
	f.uid = uid
	return nil
}

// selects reports whether a version has what is asked for. What is not known of it does not match.
func (f *findFilter) selects(e *backup.Entry) bool {
	known := e.Flags&backup.AttributesUnknown == 0
	switch {
	case f.byKind != 0 && e.Kind != f.byKind,
		(f.byLarger || f.bySmaller) && e.Kind != backup.File,
		f.byLarger && e.Size <= f.larger,
		f.bySmaller && e.Size >= f.smaller,
		f.owner != "" && (!known || e.UID != f.uid):
		return false
	}
	modified := e.Mtime.Time()
	if !f.newer.IsZero() && (!known || !modified.After(f.newer)) {
		return false
	}
	return f.older.IsZero() || known && modified.Before(f.older)
}
