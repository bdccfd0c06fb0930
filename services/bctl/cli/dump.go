package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/dump"
	"github.com/bctl/bctl/internal/restore"
)

type dumpCommand struct {
	app         *app
	which       which
	archive     string
	concurrency int

	tracker *tracker
	causes  causeCounter
}

func newDump(a *app) *cobra.Command {
	c := &dumpCommand{app: a}
	cmd := &cobra.Command{
		Use:   "dump SNAPSHOT[:PATH]",
		Short: "Write a directory of a snapshot to stdout, as tar or zip",
		Long: `Writes a directory as a tar archive to stdout, or a file as it is. Names in the
archive are relative to PATH, as "tar -C PATH -c ." writes them.

The archive has owners, permissions, times, ACLs, extended attributes, hard
links and devices. GNU tar restores them with -x --xattrs --xattrs-include='*'
--acls (without --xattrs-include: only attributes of users, so that programs
lose their capabilities); holes become zeros. Zip has no place for ACLs,
extended attributes, hard links, devices, and some times before 1970 and after
2107.

Everything is verified before it is written. A damaged file is left out and
named, and the exit status is 3. If a part of it has been written, the archive
ends there, tar reports an unexpected end, and the exit status is 1.

With --json, errors and a summary are written to stderr.`,
		Example: `  bctl dump latest:alice | tar -x -C alice --xattrs --xattrs-include='*' --acls
  bctl dump latest:alice | ssh nas2 tar -x -C /home/alice
  bctl dump 3f2a:projects --archive zip > projects.zip`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlace(&c.which),
		RunE:              func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given[0], false) },
	}
	c.which.flags(a, cmd)
	cmd.Flags().StringVar(&c.archive, "archive", "", "`FORMAT` of the archive: tar or zip (default tar; for a file: none)")
	_ = cmd.RegisterFlagCompletionFunc("archive", cobra.FixedCompletions([]string{string(dump.Tar), string(dump.Zip)}, cobra.ShellCompDirectiveNoFileComp))
	numberFlag(cmd.Flags(), &c.concurrency, "concurrency", 0, 0, maxConcurrency, "maximum `NUMBER` of concurrent pack reads (0: by the number of CPUs)")
	return cmd
}

func newCat(a *app) *cobra.Command {
	c := &dumpCommand{app: a}
	cmd := &cobra.Command{
		Use:   "cat SNAPSHOT:PATH",
		Short: "Write a file of a snapshot to stdout",
		Long: `Writes the content of a file to stdout. Each part is verified before it is
written. At a damaged part the output ends, and the exit status is 1.

A terminal gets text only. With --json, errors and a summary are written to
stderr.`,
		Example: `  bctl cat latest:etc/fstab
  bctl cat 3f2a:dumps/db.sql.gz | zcat | less`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePlace(&c.which),
		RunE:              func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given[0], true) },
	}
	c.which.flags(a, cmd)
	return cmd
}

func (c *dumpCommand) run(ctx context.Context, arg string, cat bool) error {
	out := c.app.out
	c.app.out = c.app.term // stdout has the content
	if c.archive != "" && c.archive != string(dump.Tar) && c.archive != string(dump.Zip) {
		return usage("--archive %s is not tar or zip", c.archive)
	}
	r, err := c.app.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	s, path, entry, err := c.which.place(ctx, c.app, r.index, arg)
	if err != nil {
		return err
	}
	o := dump.Options{
		Snapshot: s.ID, Path: path, Pages: s.Pages, Compare: s.Compare, Concurrency: c.concurrency,
		User: remembered(userName), Group: remembered(groupName),
	}
	if o.Format, err = c.format(&entry, path, cat); err != nil {
		return err
	}
	if c.app.term.outIs {
		if o.Format != dump.Content {
			return usage("an archive is not written to a terminal: redirect the output to a file or a pipe")
		}
		out = &textWriter{to: out}
	}
	opener, key, err := c.app.openSealed(ctx, r)
	if err != nil {
		return err
	}
	end, err := c.app.beginReading(ctx, r.index, s.ID)
	if err != nil {
		return err
	}
	defer end()
	return c.dump(ctx, restore.Deps{Catalog: r.index, Store: r.store, Repository: r.object.ID, Opener: opener, HashKey: key}, &o, &s, out)
}

// format returns the format in which an entry is written.
func (c *dumpCommand) format(e *backup.Entry, path string, cat bool) (dump.Format, error) {
	switch {
	case c.archive != "":
		return dump.Format(c.archive), nil
	case e.Kind == backup.File:
		return dump.Content, nil
	case cat:
		return "", usage("%s is a %v, and has no content (bctl dump writes a directory as tar)", display("/"+path), e.Kind)
	}
	return dump.Tar, nil
}

func (c *dumpCommand) dump(ctx context.Context, deps restore.Deps, o *dump.Options, s *backup.Snapshot, out io.Writer) error {
	c.tracker = newTracker()
	c.causes = causeCounter{term: c.app.term}
	files, bytes := int64(0), int64(0)
	if o.Path == "" {
		files, bytes = s.Counts.Files, s.Counts.Bytes
	}
	c.tracker.expect(backup.SnapshotID{}, files, bytes)
	stop := func() {}
	if !c.app.term.outIs {
		stop = c.app.animate(c.tracker.line)
	}
	defer stop()
	started := time.Now()
	sum, err := dump.Dump(ctx, deps, *o, out, c)
	stop()
	c.causes.end("--json prints all errors.")
	if errors.Is(err, dump.ErrCut) {
		err = fmt.Errorf("%w; bctl restore restores all other files, and another snapshot may have this one", err)
	}
	if err != nil {
		return err
	}
	for _, what := range slices.Sorted(maps.Keys(sum.LeftOut)) {
		c.app.note("left out, because %s has no place for them: %s (%s)", o.Format, what, humanize.Comma(sum.LeftOut[what]))
	}
	if err := c.summary(s, &sum, time.Since(started)); err != nil {
		return err
	}
	if sum.Problems > 0 {
		return errIncomplete
	}
	return nil
}

// summary prints the summary for --json.
func (c *dumpCommand) summary(s *backup.Snapshot, sum *dump.Summary, elapsed time.Duration) error {
	if !c.app.json {
		if sum.Problems > 0 {
			c.app.term.println(counted(sum.Problems, "error") + ": not everything was written as it was (docs/restore.md explains the errors)")
		}
		return nil
	}
	return c.app.print(struct {
		Type           string           `json:"type"`
		Snapshot       string           `json:"snapshot"`
		Files          int64            `json:"files"`
		Links          int64            `json:"links"`
		Directories    int64            `json:"directories"`
		Bytes          int64            `json:"bytes"`
		Errors         int64            `json:"errors"`
		LeftOut        map[string]int64 `json:"left_out"`
		ElapsedSeconds float64          `json:"elapsed_seconds"`
	}{"summary", s.ID.String(), sum.Files, sum.Links, sum.Directories, sum.Bytes, sum.Problems, sum.LeftOut, elapsed.Seconds()})
}

// Progress and Problem implement dump.Observer.
func (c *dumpCommand) Progress(p restore.Progress) {
	c.tracker.set(backup.SnapshotID{}, p.Files, p.Bytes, 0)
	c.tracker.at(p.Path)
}

func (c *dumpCommand) Problem(p backup.Problem) {
	if c.app.json {
		c.app.print(problemJSON(p))
		return
	}
	c.causes.problem(p)
}

// maxRemembered bounds the names of users or groups that are remembered.
const maxRemembered = 10_000

// remembered returns lookup for numbers, with a memory. It is called from one goroutine.
func remembered(lookup func(number string) string) func(id uint32) string {
	known := map[uint32]string{}
	return func(id uint32) string {
		name, ok := known[id]
		if !ok {
			name = lookup(strconv.FormatUint(uint64(id), 10))
			if len(known) < maxRemembered {
				known[id] = name
			}
		}
		return name
	}
}

// A textWriter writes text to a terminal, and refuses what could control it.
type textWriter struct {
	to   io.Writer
	lead string // the last byte, if a control character may begin with it
}

func (w *textWriter) Write(data []byte) (int, error) {
	bad := func(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\n\r\f", r) || r >= 0x7f && r < 0xa0 }
	if strings.ContainsFunc(w.lead+string(data), bad) {
		return 0, errors.New("it is not text, and is not written to a terminal: redirect the output to a file or a pipe")
	}
	if len(data) > 0 {
		w.lead = ""
		if last := data[len(data)-1]; last == 0xc2 {
			w.lead = string([]byte{last})
		}
	}
	return w.to.Write(data)
}
