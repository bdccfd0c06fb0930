package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/parquetfile"
)

// maxSortedEntries is the size of the largest directory whose entries are sorted. Those of a larger
// directory are printed page by page.
const maxSortedEntries = 100_000

type lsCommand struct {
	app       *app
	which     which
	recursive bool
	long      bool
	numeric   bool
	lines     *longList // nil: names only
	form      tableForm
	file      *parquetfile.Writer[entryRow] // nil: entries are printed

	flaws flaws
}

func newLs(a *app) *cobra.Command {
	c := &lsCommand{app: a}
	cmd := &cobra.Command{
		Use:   "ls SNAPSHOT[:PATH]",
		Short: "List files in a snapshot",
		Long: `Lists a directory of a snapshot, or one file. PATH is relative to the tree that
was backed up. With --json, each entry is an object with all its attributes.

Owners and groups are printed with the names that this machine has for their
numbers. Another machine may have used the numbers for other names: -n prints
the numbers.`,
		Example: `  bctl ls latest
  bctl ls -l latest:home/alice
  bctl ls -R 3f2a:etc --json
  bctl ls -R latest --parquet latest.parquet`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := c.form.check(cmd.Flags(), a.json); err != nil {
				return err
			}
			c.long = c.long || c.numeric
			return c.run(cmd.Context(), given[0])
		},
		ValidArgsFunction: a.completePlace(&c.which),
	}
	c.which.flags(a, cmd)
	cmd.Flags().BoolVarP(&c.recursive, "recursive", "R", false, "list subdirectories recursively, with full paths")
	cmd.Flags().BoolVarP(&c.long, "long", "l", false, "print type, mode, owner, size and time of each entry")
	cmd.Flags().BoolVarP(&c.numeric, "numeric", "n", false, "like -l, but print owners and groups as numbers")
	c.form.parquetFlag(cmd.Flags())
	return cmd
}

func (c *lsCommand) run(ctx context.Context, arg string) (err error) {
	i, err := c.app.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	c.app.noteCurrent(ctx, i)
	s, path, e, err := c.which.place(ctx, c.app, i, arg)
	if err != nil {
		return err
	}
	switch {
	case c.form.parquet != "":
		if c.file, err = parquetfile.Create[entryRow](c.form.parquet); err != nil {
			return err
		}
		defer c.file.Discard()
	case c.long && !c.app.json:
		c.lines = newLongList(c.app.out, c.numeric)
		defer func() { err = errors.Join(err, c.lines.flush()) }()
	}
	if err := c.list(ctx, i, &s, path, &e); err != nil {
		return err
	}
	if c.file != nil {
		if err := c.file.Close(); err != nil {
			return err
		}
	}
	return c.flaws.conclude(ctx, c.app, i, s.ID, path, &e)
}

// list lists the entry at path.
func (c *lsCommand) list(ctx context.Context, i index.Catalog, s *backup.Snapshot, path string, e *backup.Entry) error {
	switch {
	case e.Kind != backup.Directory:
		return c.entry(path, e.Name, e)
	case c.recursive:
		return browse.Walk(ctx, i, s.ID, path, &treeLister{c, path})
	}
	return c.directory(ctx, i, s, path)
}

// full reports whether all attributes of entries are listed.
func (c *lsCommand) full() bool { return c.long || c.app.json || c.file != nil }

// directory lists one directory. The attributes of its subdirectories are in pages of their own.
func (c *lsCommand) directory(ctx context.Context, i index.Catalog, s *backup.Snapshot, dir string) error {
	full := c.full()
	look := full || s.Counts.Errors > 0 // an error may be an unreadable directory
	show := func(entries []backup.Entry) error {
		listing.Sort(entries)
		for n := range entries {
			e := &entries[n]
			path := backup.Join(dir, e.Name)
			if look && e.Kind == backup.Directory {
				self, err := browse.Directory(ctx, i, s.ID, path)
				switch {
				case !full && (errors.Is(err, backup.ErrCorrupt) || err == nil && self == nil):
					self = e // only its name is shown
				case errors.Is(err, backup.ErrCorrupt) || err == nil && self == nil:
					c.flaws.addIncomplete(path)
					self = nameOnly(e)
				case err != nil:
					return err
				}
				e = self
			}
			if err := c.entry(path, entries[n].Name, e); err != nil {
				return err
			}
		}
		return nil
	}
	var entries []backup.Entry
	for e, err := range browse.Entries(ctx, i, s.ID, dir) {
		if errors.Is(err, backup.ErrCorrupt) {
			c.flaws.addIncomplete(dir)
			break
		}
		if err != nil {
			return err
		}
		entries = append(entries, e)
		if len(entries) == maxSortedEntries {
			if err := show(entries); err != nil {
				return err
			}
			entries = entries[:0]
		}
	}
	return show(entries)
}

// entry prints one entry: path is for JSON, name for display.
func (c *lsCommand) entry(path, name string, e *backup.Entry) error {
	c.flaws.lists(path, e, c.full())
	switch {
	case c.file != nil:
		return c.file.Add(newEntryRow(path, e), len(path)+len(e.Target))
	case c.app.json:
		return c.app.print(newEntryJSON(path, e))
	case c.long:
		return c.lines.add(name, e)
	}
	suffix := ""
	if e.Kind == backup.Directory {
		suffix = "/"
	}
	_, err := fmt.Fprintln(c.app.out, display(name)+suffix)
	return err
}

// entryJSON is one entry of ls --json. Times are RFC 3339 in UTC.
type entryJSON struct {
	Path      string            `json:"path"`
	Raw       string            `json:"path_b64,omitempty"`
	Kind      string            `json:"kind"`
	Mode      string            `json:"mode"` // octal
	UID       uint32            `json:"uid"`
	GID       uint32            `json:"gid"`
	Size      int64             `json:"size"`
	Mtime     *string           `json:"mtime"`
	Ctime     *string           `json:"ctime"`
	Btime     *string           `json:"btime"`
	Inode     uint64            `json:"inode"`
	Nlink     uint32            `json:"nlink"`
	Rdev      uint64            `json:"rdev,omitempty"`
	Target    string            `json:"target,omitempty"`
	TargetRaw string            `json:"target_b64,omitempty"`
	Xattrs    map[string]string `json:"xattrs,omitempty"` // values in base64
	Flags     []string          `json:"flags,omitempty"`
}

func newEntryJSON(path string, e *backup.Entry) entryJSON {
	j := entryJSON{
		Path: path, Raw: backup.RawBase64(path), Kind: e.Kind.String(), Mode: fmt.Sprintf("%04o", e.Mode), UID: e.UID, GID: e.GID,
		Size: e.Size, Mtime: entryTime(e.Mtime), Ctime: entryTime(e.Ctime), Btime: entryTime(e.Btime),
		Inode: e.Inode, Nlink: e.Nlink, Rdev: e.Rdev, Target: e.Target, TargetRaw: backup.RawBase64(e.Target),
	}
	for _, x := range e.Xattrs {
		if j.Xattrs == nil {
			j.Xattrs = make(map[string]string)
		}
		j.Xattrs[x.Name] = base64.StdEncoding.EncodeToString(x.Value)
	}
	for _, f := range entryFlags {
		if e.Flags&f.flag != 0 {
			j.Flags = append(j.Flags, f.name)
		}
	}
	return j
}

// entryFlags are the flags of an entry with their names in JSON and the remarks of ls -l.
var entryFlags = []struct {
	flag         backup.Flags
	name, remark string
}{
	{backup.Racy, "racy", ""},
	{backup.Unreadable, "unreadable", "could not be read"},
	{backup.ContentMissing, "content_missing", "no copy"},
	{backup.ChangedWhileRead, "changed_while_read", "changed while it was read"},
	{backup.XattrsUnreadable, "xattrs_unreadable", "extended attributes could not be read"},
	{backup.AttributesUnknown, "attributes_unknown", "attributes unknown"},
	{backup.Boundary, "boundary", ""},
}

func entryTime(t backup.Time) *string {
	if t.IsZero() {
		return nil
	}
	return jsonTime(t.Time())
}
