package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
)

type diffCommand struct {
	app   *app
	which which
	depth int // of the directories to count

	content    bool // of a source, content is read
	repository backup.Repository
	unread     int64 // files whose content or extended attributes are not known
	causes     causeCounter

	counted bool // directories are listed, and not changes

	counts      diffCounts
	directories map[string]*diffCounts
}

func newDiff(a *app) *cobra.Command {
	c := &diffCommand{app: a, directories: map[string]*diffCounts{}}
	cmd := &cobra.Command{
		Use:   "diff SNAPSHOT SNAPSHOT|live [PATH]",
		Short: "List the changes between two snapshots, or since one",
		Long: `Lists what was added, removed, changed and moved from the first snapshot to the
second one, both of the same shard. PATH, relative to the tree that was backed
up, restricts the list to a directory or file.

For a changed entry, the list says what differs: type, content, target, rdev,
mode, owner, group, mtime or xattrs. A file or directory has moved if its inode
is now at a path where there was nothing. What is below a moved directory is
listed only if it differs.

With live instead of the second snapshot, the source is walked as the next
backup would walk it, with the exclusions of the snapshot. Files are compared by
their size and times. A ? after content or xattrs means that a backup would read
the file to know whether they differ. --content reads files of equal size, and
compares what they contain; it needs the worker key, or an identity. Nothing is
written. If something cannot be read, an error names it, and the status is 3.

With --depth N, directories are listed instead, with the number of changes below
them: N is the number of components of their paths, and 0 is the whole tree.`,
		Example: `  bctl diff 3f2a latest
  bctl diff 3f2a 9b41 home/alice
  bctl diff 3f2a 9b41 --depth 2
  bctl diff latest live
  bctl diff latest live home/alice --content`,
		Args: args(cobra.RangeArgs(2, 3)),
		RunE: func(cmd *cobra.Command, given []string) error {
			c.counted = cmd.Flags().Changed("depth")
			switch {
			case given[0] == liveName:
				return usage("live is the newer one: bctl diff SNAPSHOT live")
			case given[1] == liveName:
				return c.runLive(cmd.Context(), given)
			case c.content:
				return usage("--content is for bctl diff SNAPSHOT live: snapshots are always compared by content")
			}
			return c.run(cmd.Context(), given)
		},
	}
	readable := a.completeSnapshot(&c.which, snapshotOffer{states: onlyCommitted, latest: true})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, given []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(given) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		offers, directive := readable(cmd, nil, start)
		if len(given) == 1 && strings.HasPrefix(liveName, start) {
			offers = append(offers, liveName+"\tthe source as it is now")
		}
		return offers, directive
	}
	c.which.flags(a, cmd)
	cmd.Flags().BoolVar(&c.content, "content", false, "with live, read and compare the content of files")
	numberFlag(cmd.Flags(), &c.depth, "depth", 0, 0, 1000, "list directories with `N` components, and count their changes")
	return cmd
}

func (c *diffCommand) run(ctx context.Context, given []string) error {
	return c.app.withIndex(ctx, toRead, func(i index.Index) error {
		c.app.noteCurrent(ctx, i)
		var two [2]backup.Snapshot
		for n := range two {
			s, err := c.which.readable(ctx, c.app, i, given[n])
			if err != nil {
				return err
			}
			two[n] = s
		}
		old, now := &two[0], &two[1]
		switch {
		case old.ID == now.ID:
			return usage("both are snapshot %s: name two", old.ID.Short())
		case old.Shard.ID != now.Shard.ID:
			return usage("snapshots %s and %s are of different shards, %s and %s: only snapshots of one shard can be compared", old.ID.Short(), now.ID.Short(), display(old.Shard.Name), display(now.Shard.Name))
		}
		path := ""
		if len(given) > 2 {
			var err error
			if path, err = c.path(ctx, i, given[2], old, now); err != nil {
				return err
			}
		}
		result, err := c.between(ctx, i, old, now, path)
		if err != nil && !errors.Is(err, backup.ErrCorrupt) {
			return err
		}
		return errors.Join(c.conclude(old, now, &result), err)
	})
}

// between reports the changes from one snapshot to the other, which may be older.
func (c *diffCommand) between(ctx context.Context, i index.Index, from, to *backup.Snapshot, path string) (diff.Result, error) {
	if from.Number < to.Number {
		return diff.Between(ctx, i, from, to, path, c.report)
	}
	return diff.Between(ctx, i, to, from, path, func(ch *diff.Change) error {
		ch.Reverse()
		return c.report(ch)
	})
}

// path returns the path that a user means, which at least one of the snapshots must have.
func (c *diffCommand) path(ctx context.Context, i index.Index, given string, old, now *backup.Snapshot) (string, error) {
	if _, err := browse.CleanPath(given); err != nil {
		return "", usage("%v", err)
	}
	path, _, err := lookup(ctx, i, now, given)
	if errors.Is(err, backup.ErrNotFound) {
		if path, _, err = lookup(ctx, i, old, given); errors.Is(err, backup.ErrNotFound) {
			return "", absent("neither snapshot has %s", display(filepath.Clean(given)))
		}
	}
	return path, err
}

// A diffCounts is how much has changed.
type diffCounts struct {
	Added        int64 `json:"added"`
	Removed      int64 `json:"removed"`
	Changed      int64 `json:"changed"`
	Moved        int64 `json:"moved"`
	AddedBytes   int64 `json:"added_bytes"`   // of added files, and of the new content of changed ones
	RemovedBytes int64 `json:"removed_bytes"` // of removed files, and of the old content of changed ones
}

func (n *diffCounts) add(c *diff.Change) {
	switch c.Kind {
	case diff.Added:
		n.Added++
	case diff.Removed:
		n.Removed++
	case diff.Changed:
		n.Changed++
	case diff.Moved:
		n.Moved++
	}
	const content = diff.Content | diff.ContentUnread | diff.Type
	if c.New != nil && (c.Old == nil || c.Differs&content != 0) {
		n.AddedBytes += c.New.Size
	}
	if c.Old != nil && (c.New == nil || c.Differs&content != 0) {
		n.RemovedBytes += c.Old.Size
	}
}

func (n *diffCounts) String() string {
	return fmt.Sprintf("%s added, %s removed, %s changed, %s moved; %s new, %s gone",
		humanize.Comma(n.Added), humanize.Comma(n.Removed), humanize.Comma(n.Changed), humanize.Comma(n.Moved), size(n.AddedBytes), size(n.RemovedBytes))
}

// diffChange is one change of diff --json.
type diffChange struct {
	Type    string     `json:"type"`   // change
	Action  string     `json:"action"` // added, removed, changed or moved
	Path    string     `json:"path"`
	Raw     string     `json:"path_b64,omitempty"`
	From    string     `json:"from,omitempty"` // the path of a moved entry in the first snapshot
	RawFrom string     `json:"from_b64,omitempty"`
	Differs []string   `json:"differs,omitempty"`
	Old     *entryJSON `json:"old,omitempty"`
	New     *entryJSON `json:"new,omitempty"`
}

func (c *diffCommand) report(ch *diff.Change) error {
	c.counts.add(ch)
	if ch.Differs&(diff.ContentUnread|diff.XattrsUnread) != 0 {
		c.unread++
	}
	if c.counted {
		c.count(ch)
		return nil
	}
	if c.app.json {
		line := diffChange{Type: "change", Action: ch.Kind.String(), Path: ch.Path, Raw: backup.RawBase64(ch.Path), From: ch.From, RawFrom: backup.RawBase64(ch.From), Differs: ch.Differs.Names()}
		if ch.Old != nil {
			e := newEntryJSON(cmp.Or(ch.From, ch.Path), ch.Old)
			line.Old = &e
		}
		if ch.New != nil {
			e := newEntryJSON(ch.Path, ch.New)
			line.New = &e
		}
		return c.app.print(line)
	}
	_, err := fmt.Fprintf(c.app.out, "%-9s%s\n", ch.Kind, changeText(ch))
	return err
}

// changeText describes a change in one line.
func changeText(ch *diff.Change) string {
	e := ch.New
	if e == nil {
		e = ch.Old
	}
	text := displayDirectory(ch.Path, e.Kind)
	if ch.Kind == diff.Moved {
		text = displayDirectory(ch.From, e.Kind) + " → " + text
	}
	if ch.Differs != 0 {
		text += "  (" + strings.Join(ch.Differs.Names(), ", ") + ")"
	}
	return text
}

// displayDirectory shows a path, with a slash after that of a directory.
func displayDirectory(path string, kind backup.Kind) string {
	if path == "" {
		path = "."
	}
	if kind == backup.Directory {
		return display(path) + "/"
	}
	return display(path)
}

// count adds a change to the directory at the depth.
func (c *diffCommand) count(ch *diff.Change) {
	dir := ch.Path
	isDirectory := ch.New != nil && ch.New.Kind == backup.Directory || ch.New == nil && ch.Old.Kind == backup.Directory
	if !isDirectory {
		dir, _ = backup.Split(dir)
	}
	if parts := strings.Split(dir, "/"); len(parts) > c.depth {
		dir = strings.Join(parts[:c.depth], "/")
	}
	n := c.directories[dir]
	if n == nil {
		n = &diffCounts{}
		c.directories[dir] = n
	}
	n.add(ch)
}

// A directoryDiff is how much has changed below a directory.
type directoryDiff struct {
	Type string `json:"type"` // directory
	Path string `json:"path"`
	Raw  string `json:"path_b64,omitempty"`
	diffCounts
}

// diffTotal is the last object of diff --json.
type diffTotal struct {
	Type string `json:"type"` // total
	From string `json:"from"` // the ids of the snapshots
	To   string `json:"to"`
	diffCounts
	Unpaired bool  `json:"unpaired,omitempty"` // not all files that have moved were recognized
	Unread   int64 `json:"unread,omitempty"`   // of a source: files with content? or xattrs?
	Unsure   int64 `json:"unsure,omitempty"`   // of a source: files whose times do not show whether they have changed
	Errors   int64 `json:"errors,omitempty"`   // of a source
}

var diffTable = table[directoryDiff]{
	{name: "DIRECTORY", text: func(d directoryDiff) string { return displayDirectory(d.Path, backup.Directory) }, cut: tail, useful: usefulPath},
	{name: "ADDED", right: true, text: func(d directoryDiff) string { return humanize.Comma(d.Added) }},
	{name: "REMOVED", right: true, text: func(d directoryDiff) string { return humanize.Comma(d.Removed) }},
	{name: "CHANGED", right: true, text: func(d directoryDiff) string { return humanize.Comma(d.Changed) }},
	{name: "MOVED", right: true, text: func(d directoryDiff) string { return humanize.Comma(d.Moved) }},
	{name: "NEW", right: true, text: func(d directoryDiff) string { return size(d.AddedBytes) }, leave: 2},
	{name: "GONE", right: true, text: func(d directoryDiff) string { return size(d.RemovedBytes) }, leave: 1},
}

// conclude ends the report of two snapshots.
func (c *diffCommand) conclude(old, now *backup.Snapshot, result *diff.Result) error {
	return c.finish(&diffTotal{Type: "total", From: old.ID.String(), To: now.ID.String(), diffCounts: c.counts, Unpaired: result.Unpaired})
}

// finish prints the directories, and the total.
func (c *diffCommand) finish(total *diffTotal) error {
	if err := c.printDirectories(); err != nil {
		return err
	}
	if c.app.json {
		return c.app.print(total)
	}
	if total.Unpaired {
		c.app.note("there are more than a million changes: some files that have moved are listed as removed and added")
	}
	c.app.note("%s", &c.counts)
	return nil
}

func (c *diffCommand) printDirectories() error {
	if !c.counted {
		return nil
	}
	list := make([]directoryDiff, 0, len(c.directories))
	for _, path := range slices.Sorted(maps.Keys(c.directories)) {
		list = append(list, directoryDiff{"directory", path, backup.RawBase64(path), *c.directories[path]})
	}
	return printList(c.app, list, diffTable, func(d directoryDiff) directoryDiff { return d })
}
