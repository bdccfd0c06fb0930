package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

type checkCommand struct {
	app       *app
	which     which
	level     string
	read      float64 // share of the packs; 0: --read-data is not given
	restart   bool
	dryRun    bool
	maxMemory int64
	repairs   string // the command that repairs what is found; empty: this one does
	// first is the command that brings the index up to date, if it is older than its store. What is
	// found may only be due to that.
	first string
	// returned is what a repair would take back, and lacking: snapshots lack content.
	returned returned
	lacking  bool

	progress atomic.Pointer[check.Progress]
	started  time.Time
	state    *check.State
}

func newCheck(a *app) *cobra.Command {
	c := &checkCommand{app: a}
	cmd := &cobra.Command{
		Use:   "check [SNAPSHOT…]",
		Short: "Find damage to index and store, and the affected files",
		Long: `Finds damage, and the files of which snapshots cannot be restored because of it.
It changes nothing. Backups, restores and prunes continue meanwhile. bctl repair
repairs what can be repaired.

Each level includes the ones before it:

  index    the pages of all snapshots are complete and undamaged, and all
           content that they refer to has a place. The store is not read
  objects  the store has all objects of the index, with their sizes, headers
           and signatures (the default)
  tables   the packs have the content that the index places in them. Needs an
           identity
  content  all content is read, opened, decompressed and compared with its
           hashes. Needs an identity

--read-data is the level content; with --read-data=N%, content is read of N% of
the packs, chosen at random. If that is interrupted, run the command again: it
does not read again what it has read. --restart begins anew.

Before anything is read, the command prints what it will read from the store.
With SNAPSHOT, --filer or --shard, it checks these snapshots and what they need.
The exit status is 0 only if there is no damage.`,
		Example: `  bctl check
  bctl check --read-data
  bctl check --read-data=5% --json
  bctl check --dry-run --read-data
  bctl check --level index --filer nas1 --shard /export/home
  bctl check --level tables latest`,
		Args:              args(cobra.ArbitraryArgs),
		ValidArgsFunction: a.completePlace(&c.which),
		RunE:              func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	c.which.flags(a, cmd)
	c.flags(cmd.Flags())
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only print what would be read")
	_ = cmd.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]string{"index", "objects", "tables", "content"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// flags adds the flags that say what to check.
func (c *checkCommand) flags(flags *pflag.FlagSet) {
	flags.StringVar(&c.level, "level", check.Objects.String(), "check this much: `LEVEL` is index, objects, tables or content")
	shareFlag(flags, &c.read, "read the content of this `SHARE` of the packs (without a value: 100%)")
	flags.BoolVar(&c.restart, "restart", false, "read also what an interrupted check has read")
	memoryFlag(flags, &c.maxMemory)
}

// shareFlag adds --read-data for the share of the objects that is read.
func shareFlag(flags *pflag.FlagSet, to *float64, usageText string) {
	flags.Var(&parsed[float64]{to, "", "string", func(text string) (float64, error) {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			return 0, wrongValue("is not a percentage above 0%% and up to 100%%")
		}
		return percent / 100, nil
	}}, "read-data", usageText)
	flags.Lookup("read-data").NoOptDefVal = "100%"
}

// options returns the level, and opens what it needs.
func (c *checkCommand) options(ctx context.Context, given []string) (o check.Options, r *repository, err error) {
	if o.Level, err = check.ParseLevel(c.level); err != nil {
		return o, nil, usage("--level %q is not index, objects, tables or content", c.level)
	}
	if c.read > 0 {
		o.Level = check.Content
	}
	if c.read == 0 {
		c.read = 1
	}
	if c.restart && o.Level < check.Content {
		return o, nil, usage("--restart is for --read-data: the other levels always begin anew")
	}
	c.repairs = repairOf(o.Level)
	if o.Level == check.Index {
		r = &repository{}
		r.index, err = c.app.openIndex(ctx, toRead)
	} else {
		r, err = c.app.openRepository(ctx, toRead)
	}
	if err != nil {
		return o, nil, err
	}
	if r.old != nil {
		c.first = c.app.bringsUpToDate()
	}
	if err = c.fill(ctx, &o, r, given); err != nil {
		c.close(r)
		return o, nil, err
	}
	return o, r, nil
}

// repairOf returns the command that repairs what a check of a level finds: it must check as much.
func repairOf(level check.Level) string {
	switch level {
	case check.Content:
		return "bctl repair --read-data"
	case check.Tables:
		return "bctl repair --level " + level.String()
	case check.Index, check.Objects:
	}
	return "bctl repair"
}

// fill sets what the level needs.
func (c *checkCommand) fill(ctx context.Context, o *check.Options, r *repository, given []string) error {
	repository, err := r.index.Repository(ctx)
	if err != nil {
		return err
	}
	o.Index, o.Repository, o.MemoryBytes = r.index, &repository, c.maxMemory
	if r.store != nil {
		o.Store = r.store
	}
	if o.Only, err = c.only(ctx, r.index, given); err != nil {
		return err
	}
	o.Recipients = func(ctx context.Context) ([]string, error) {
		object, err := repo.ReadObject(ctx, r.store)
		if err == nil && object.Signer() != r.object.Signer() {
			err = fmt.Errorf("the repository object names another signer: %w", backup.ErrCorrupt)
		}
		if err == nil {
			err = object.LoadRecipients(ctx, r.store)
		}
		return object.Recipients, err
	}
	o.KeyObjects = r.index.KeyObjects
	o.ProveKeys = func(name string, data []byte) error {
		if _, is := store.ParseRecipientsName(name); is {
			return repo.VerifyRecipients(data, name, repository.ID, r.object.Signer())
		}
		return rewrap.Verify(data, name, repository.ID, r.object.Signer())
	}
	if local, is := r.index.(*sqliteindex.Index); is {
		o.Copies = func(ctx context.Context) ([]int64, error) { return embedded.KeptCopies(ctx, local) }
		if locks, err := c.app.cfg.LockDir(); err == nil {
			o.Busy = func(context.Context) (bool, error) { return embedded.Prunes(locks) }
		}
	}
	if o.Level >= check.Tables {
		if o.Opener, o.HashKey, err = c.app.openSealed(ctx, r); err != nil {
			return err
		}
	}
	if o.Level < check.Content {
		return nil
	}
	return c.openState(o, &repository)
}

// openState opens the file with the progress of the check. Without it, the check cannot be
// continued.
func (c *checkCommand) openState(o *check.Options, r *backup.Repository) error {
	o.Read = check.Select(c.read)
	if o.Only != nil || c.dryRun {
		return nil
	}
	dir, err := c.app.cfg.LockDir()
	if err == nil {
		c.state, err = check.OpenState(filepath.Join(dir, "check-"+r.ID.String()), r.ID, c.read, c.restart)
	}
	switch {
	case errors.Is(err, check.ErrStateBusy):
		return &busyError{err.Error() + "; wait for its end"}
	case err != nil:
		c.app.note("the check begins anew if it is interrupted: its progress cannot be noted (%v)", err)
		return nil
	}
	o.Read, o.Proven = c.state.Read, c.state
	if c.state.Resumed > 0 {
		c.app.note("the check of %s goes on: the content of %s was read already (--restart begins anew)", zoned(c.state.Started()), counted(c.state.Resumed, "pack"))
	}
	return nil
}

func (c *checkCommand) close(r *repository) {
	if c.state != nil {
		_ = c.state.Close(false) // what it lacks is read again
		c.state = nil
	}
	r.close()
}

// only returns the snapshots to check; nil: all.
func (c *checkCommand) only(ctx context.Context, i index.Index, given []string) (only []backup.Snapshot, err error) {
	if only, err = c.which.committed(ctx, i, given, "checked"); err != nil || only != nil || c.which == (which{}) {
		return only, err
	}
	if err := c.which.exists(ctx, i); err != nil {
		return nil, err
	}
	only, err = i.Snapshots(ctx, index.SnapshotFilter{Filer: c.which.filer, Shard: c.which.shard, States: []backup.State{backup.Committed}})
	if err == nil && len(only) == 0 {
		return nil, c.which.nothing(ctx, i)
	}
	return only, err
}

func (c *checkCommand) run(ctx context.Context, given []string) error {
	c.app.interruptible.Store(true)
	o, r, err := c.options(ctx, given)
	if err != nil {
		return err
	}
	defer func() { c.close(r) }()
	report, err := c.check(ctx, o)
	if err != nil || c.dryRun {
		return err
	}
	if err := c.findReturned(ctx, r, &report); err != nil {
		c.app.note("it is not known whether the store has packs again that a repair had dropped: %v", err)
	}
	damage := c.report(o.Level, &report)
	if err := c.noteMirror(ctx, r, &report); err != nil {
		c.app.note("it is not known what the mirror has: %v", err)
	}
	c.noteReturned()
	if n := len(report.Refuted); n > 0 {
		c.app.note("a scrub had read damaged bytes of %s, whose content is sound: bctl repair --read-data forgets its checksums of %s", counted(n, "pack"), itOrThem(n))
	}
	if damage == nil && r.old != nil {
		damage = fmt.Errorf("what the index knows is sound, but newer snapshots are not in it: %w", r.old)
	}
	return errors.Join(damage, c.complete())
}

// complete removes the file with the progress of a check that is complete.
func (c *checkCommand) complete() error {
	if c.state == nil {
		return nil
	}
	defer func() { c.state = nil }()
	return c.state.Close(true)
}

// check runs the check with a line of progress.
func (c *checkCommand) check(ctx context.Context, o check.Options) (check.Report, error) {
	c.started = time.Now()
	c.progress.Store(&check.Progress{Step: "reading the index"})
	o.Progress = func(p check.Progress) { c.progress.Store(&p) }
	o.Begin = func(cost check.Cost) bool { return c.begin(o.Level, cost) == nil && !c.dryRun }
	if c.app.json {
		o.Affected = func(f *check.Finding, a check.Affected) { c.app.print(newAffectedJSON(f, &a)) }
	}
	stop := c.app.animate(c.line)
	defer stop()
	report, err := check.Run(ctx, o)
	switch {
	case errors.Is(err, process.ErrInterrupted) && c.state != nil:
		c.app.term.println("Run the command again to continue; content that was read is not read again.")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, index.ErrRefused):
		err = fmt.Errorf("%w (a check reads everything: it needs the permissions of an operator)", err)
	}
	return report, err
}

// line is the line of progress.
func (c *checkCommand) line() string {
	p := c.progress.Load()
	text := clock(time.Since(c.started)) + "  " + p.Step
	switch {
	case p.All > 1<<20:
		text += fmt.Sprintf("  %s of %s (%s)", size(p.Done), size(p.All), percent(p.Done, p.All))
	case p.All > 0:
		text += fmt.Sprintf("  %s of %s", humanize.Comma(p.Done), humanize.Comma(p.All))
	case p.Done > 0:
		text += "  " + humanize.Comma(p.Done)
	}
	return text
}

// begin prints what will be read.
func (c *checkCommand) begin(level check.Level, cost check.Cost) error {
	if c.app.json {
		return c.app.print(struct {
			Type     string `json:"type"` // cost
			Level    string `json:"level"`
			Lists    int64  `json:"list"` // requests that were made
			Listed   int64  `json:"listed"`
			Objects  int64  `json:"objects"`
			Requests int64  `json:"get"` // requests to be made
			Bytes    int64  `json:"bytes"`
		}{"cost", level.String(), cost.Lists, cost.Listed, cost.Objects, cost.Requests, cost.Bytes})
	}
	verb, to := "reads", c.app.term.println
	if c.dryRun {
		verb, to = "would read", func(text string) { fmt.Fprintln(c.app.out, text) }
	}
	if level == check.Index {
		if c.dryRun {
			to("would read nothing from the store")
		}
		return nil
	}
	to(fmt.Sprintf("%s %s of %s (%s) from the store", verb, size(cost.Bytes), counted(cost.Objects, "object"), counted(cost.Requests, "request")))
	return nil
}
