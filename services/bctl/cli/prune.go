package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

type pruneCommand struct {
	app       *app
	dryRun    bool
	maxMemory int64 // 0: the default
	maxUnused float64
	sweep     bool
	parity    string // empty: as of the setting
}

func newPrune(a *app) *cobra.Command {
	c := &pruneCommand{app: a}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete what no snapshot needs, and free its space",
		Long: `Deletes packs that no snapshot needs, and removes forgotten snapshots from the
index and the store. Backups and restores continue meanwhile. It needs no
identity.

Snapshots need only a part of some packs. If the unused parts of such packs are
more than --max-unused of the stored bytes, prune copies the needed parts into
new packs and deletes the old ones.

With --sweep, it also lists the whole store, and deletes orphans: objects that
killed backups have left. Objects of snapshots that the index does not know
stay, because the index may be older than the store.

With --parity 20+2, objects of packs get parity objects: any two of a group that
are lost or damaged come back with bctl repair, for 10% more space. Groups have
20 objects of about one size, or a few more; objects wait until there are
enough. Later prunes keep parity also without the flag: before a pack is
deleted, the others of its group get a new one. With --parity off, parity
objects are deleted. The setting pruner.parity is the default.

An interrupted prune resumes when you run it again. While another prune is
running, the exit status is 11. In a fleet, the status is also 11 for a minute
after a prune was killed.

If a large share of the stored bytes would be deleted, the brake stops the
command, which then prints the bctl confirm command to type. bctl brake shows
the limits.`,
		Example: `  bctl prune --dry-run
  bctl prune
  bctl prune --max-unused 0%
  bctl prune --sweep
  bctl prune --parity 20+2
  bctl prune --max-memory 64MiB --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only print what would be deleted")
	cmd.Flags().BoolVar(&c.sweep, "sweep", false, "also look for orphans in the whole store, and delete them")
	cmd.Flags().Var(&parsed[string]{&c.parity, "", "string", func(text string) (string, error) {
		if _, _, err := parity.ParseSetting(text); err != nil || text == "" {
			return "", wrongValue("is not MEMBERS+PARITY (20+2), or off")
		}
		return text, nil
	}}, "parity", "make parity: `LAYOUT` is MEMBERS+PARITY, such as 20+2, or off")
	memoryFlag(cmd.Flags(), &c.maxMemory)
	unusedFlag(cmd.Flags(), &c.maxUnused)
	return cmd
}

// unusedFlag adds --max-unused.
func unusedFlag(flags *pflag.FlagSet, to *float64) {
	*to = prune.DefaultMaxUnused
	flags.Var(&parsed[float64]{to, "10%", "string", func(text string) (float64, error) {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			return 0, wrongValue("is not a percentage from 0%% to 100%%")
		}
		return percent / 100, nil
	}}, "max-unused", "copy the needed parts of packs if more than this `SHARE` of the stored bytes is unused; 100%: never")
}

// leastMemory is the least memory with which a prune of a large repository ends in reasonable time.
const leastMemory = 16 << 20

// memoryFlag adds --max-memory.
func memoryFlag(flags *pflag.FlagSet, to *int64) {
	flags.Var(&parsed[int64]{to, "", "string", func(text string) (int64, error) {
		bytes, err := parseSize(text)
		if err != nil || bytes < leastMemory {
			return 0, wrongValue("is not a size of 16MiB or more (64MiB, 1GiB)")
		}
		return bytes, nil
	}}, "max-memory", "use at most this `SIZE` of memory to find what is needed (default 256MiB)")
}

func (c *pruneCommand) run(ctx context.Context) error {
	if c.dryRun && !c.sweep {
		return c.app.withIndex(ctx, toRead, func(i index.Index) error { return c.look(ctx, i, nil) })
	}
	if c.dryRun {
		r, err := c.app.openRepository(ctx, toRead)
		if err != nil {
			return err
		}
		defer r.close()
		return c.look(ctx, r.index, r.store)
	}
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	return c.prune(ctx, r)
}

// look prints what prune would delete. It needs the store only to sweep it.
func (c *pruneCommand) look(ctx context.Context, i index.Index, s store.Store) error {
	c.app.interruptible.Store(true)
	if s == nil {
		c.app.noteCurrent(ctx, i)
	}
	started := time.Now()
	o := prune.Options{Index: i, Store: s, MemoryBytes: c.maxMemory, MaxUnused: c.maxUnused, ObjectLock: c.app.cfg.ObjectLock(), DryRun: true, Sweep: c.sweep, Log: c.app.log}
	r, err := c.app.runPrune(func(o prune.Options) (prune.Summary, error) { return prune.Run(ctx, o) }, o)
	if err != nil {
		return err
	}
	brake, err := i.Brake(ctx)
	if err != nil {
		return err
	}
	d := index.Deletion{Bytes: r.Bytes + r.Freed, OfBytes: r.Stored}
	if brake.Exceeds(&d) {
		s := stopOf{Stop: index.Stop{Deletion: d}}
		c.app.note("deleting %s needs a confirmation (bctl brake shows the limits)", s.what())
	}
	return c.report(&r, time.Since(started))
}

// frees returns what prune would delete if these snapshots were forgotten.
func (a *app) frees(ctx context.Context, i index.Index, without []backup.SnapshotID) (prune.Summary, error) {
	o := prune.Options{Index: i, MaxUnused: prune.DefaultMaxUnused, ObjectLock: a.cfg.ObjectLock(), DryRun: true, Without: without, Log: a.log}
	return a.runPrune(func(o prune.Options) (prune.Summary, error) { return prune.Run(ctx, o) }, o)
}

// prune deletes what no snapshot needs, and prints the result.
func (c *pruneCommand) prune(ctx context.Context, r *repository) error {
	a := c.app
	started := time.Now()
	o := prune.Options{
		Index: r.index, Store: r.store, Log: a.log, MemoryBytes: c.maxMemory, MaxUnused: c.maxUnused, Sweep: c.sweep, ObjectLock: a.cfg.ObjectLock(),
		By:     operator(),
		Holder: holder(),
	}
	var err error
	if o.Parity, o.NoParity, err = parity.ParseSetting(cmp.Or(c.parity, a.cfg.Pruner.Parity)); err != nil {
		return wrongSetting(fmt.Errorf("pruner.parity: %w", err))
	}
	o.BeforeDelete = func(ctx context.Context) error { return prune.AwaitRecorded(ctx, r.index) } // of a fleet
	o.BeforeRemove = o.BeforeDelete
	run := func(o prune.Options) (prune.Summary, error) { return prune.Run(ctx, o) }
	if idx, local := r.index.(*sqliteindex.Index); local {
		key, err := r.object.ReadCommitterKey(a.cfg.CommitterKey)
		if err != nil {
			return err
		}
		keys, err := open.JournalKeys(&r.object, key)
		if err != nil {
			return err
		}
		locks, err := a.cfg.LockDir()
		if err != nil {
			return err
		}
		run = func(o prune.Options) (prune.Summary, error) { return embedded.Prune(ctx, idx, keys, locks, o) }
	}
	result, err := a.runPrune(run, o)
	switch {
	case errors.Is(err, prune.ErrBusy):
		return whenEnded(err)
	case errors.Is(err, process.ErrInterrupted), ctx.Err() != nil:
		a.term.println("Run bctl prune again to continue; packs that are deleted stay deleted.")
	}
	var stopped *index.StoppedError
	if errors.As(err, &stopped) {
		s := stopOf{Stop: stopped.Stop}
		return fmt.Errorf("the brake has stopped the prune, and nothing was deleted: it would delete %s. To confirm it, run %s; then run bctl prune again", s.what(), s.confirmation())
	}
	if err != nil {
		return err
	}
	if result.Again {
		a.note("more has become free by what was deleted, or meanwhile: run bctl prune again")
	}
	return c.report(&result, time.Since(started))
}

// holder returns a name of this process that no other has.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), backup.NewPackID())
}

// runPrune runs a prune with a line of progress.
func (a *app) runPrune(run func(prune.Options) (prune.Summary, error), o prune.Options) (prune.Summary, error) {
	var step atomic.Pointer[string]
	started, none := time.Now(), ""
	step.Store(&none)
	o.Progress = func(name string) { step.Store(&name) }
	stop := a.animate(func() string { return clock(time.Since(started)) + "  " + *step.Load() })
	defer stop()
	return run(o)
}

// prunedJSON is the result of prune. The names are fixed.
type prunedJSON struct {
	Type             string  `json:"type"` // prune
	DryRun           bool    `json:"dry_run"`
	DeletedPacks     int     `json:"deleted_packs"`
	DeletedBytes     int64   `json:"deleted_bytes"`
	DeletedChunks    int64   `json:"deleted_chunks"`
	ThinnedPacks     int     `json:"thinned_packs"` // replaced by copies of what is needed
	FreedBytes       int64   `json:"freed_bytes"`   // by which the copies are smaller
	CopiedBytes      int64   `json:"copied_bytes"`
	DeletedPages     int64   `json:"deleted_pages"`     // versions of pages in the index
	RemovedSnapshots int     `json:"removed_snapshots"` // forgotten ones of which nothing is left
	Packs            int     `json:"packs"`             // that remain
	Bytes            int64   `json:"bytes"`
	UnusedBytes      int64   `json:"unused_bytes"` // of these
	Locked           int     `json:"locked"`       // packs and records that nothing needs, and that stay until their locks end
	LockedBytes      int64   `json:"locked_bytes"` // of these packs
	Extended         int     `json:"extended_locks"`
	ParityGroups     int     `json:"parity_groups"` // that were made
	ParityBytes      int64   `json:"parity_bytes"`  // of their parity objects
	ParityEnded      int     `json:"parity_groups_ended"`
	ParityFreed      int64   `json:"parity_freed_bytes"`
	ParityHeld       int     `json:"parity_held_packs"` // that nothing needs, and that damaged groups need
	ParityWaiting    int     `json:"parity_waiting"`    // objects that have no group yet
	ElapsedSeconds   float64 `json:"elapsed_seconds"`

	Requests requestsJSON `json:"requests"`
	Sweep    *sweptJSON   `json:"sweep,omitempty"`
}

// requestsJSON is how often a prune asked the store. The names are fixed.
type requestsJSON struct {
	Deletes int64 `json:"delete"`       // of up to 1,000 objects each
	Packs   int64 `json:"delete_packs"` // of delete
	Lists   int64 `json:"list"`         // of up to 1,000 objects each
	Gets    int64 `json:"get"`
	Puts    int64 `json:"put"`
}

// sweptJSON is the result of --sweep. The names are fixed.
type sweptJSON struct {
	Objects      int64 `json:"objects"`        // in the store
	Orphans      int64 `json:"orphans"`        // deleted
	OrphanBytes  int64 `json:"orphan_bytes"`   // of these
	Unknown      int64 `json:"unknown"`        // objects of snapshots that the index does not know
	Unidentified int64 `json:"unidentified"`   // other objects that stay
	Withheld     int64 `json:"withheld"`       // orphans that stay: they may have content that is missing
	IndexIsOlder bool  `json:"index_is_older"` // than the store: orphans stay
}

func (c *pruneCommand) report(r *prune.Summary, elapsed time.Duration) error {
	if c.app.json {
		var sweep *sweptJSON
		if c.sweep {
			sweep = &sweptJSON{r.Swept.Objects, r.Swept.Orphans, r.Swept.Bytes, r.Swept.Unknown, r.Swept.Unidentified, r.Swept.Withheld, r.Swept.Old}
		}
		return c.app.print(prunedJSON{
			"prune", c.dryRun, r.Packs, r.Bytes, r.Chunks, r.Thinned, r.Freed, r.Copied, r.Versions, r.Snapshots, r.KeptPacks, r.KeptBytes, r.Unused,
			r.Locked, r.LockedBytes, r.Extended,
			r.Parity.Groups, r.Parity.Bytes, r.Parity.Ended, r.Parity.Freed, r.Parity.Held, r.Parity.Waiting, elapsed.Seconds(),
			requestsJSON(r.Requests), sweep,
		})
	}
	text := fmt.Sprintf("deleted %s (%s)", counted(r.Packs, "pack"), size(r.Bytes))
	if c.dryRun {
		text = "would delete" + text[len("deleted"):]
	}
	if r.Thinned > 0 {
		thinned := ", thinned "
		if c.dryRun {
			thinned = ", thin "
		}
		text += thinned + fmt.Sprintf("%s (%s freed, %s copied)", counted(r.Thinned, "pack"), size(r.Freed), size(r.Copied))
	}
	if r.Snapshots > 0 {
		text += " and the records of " + counted(r.Snapshots, "forgotten snapshot")
	}
	text += fmt.Sprintf(" in %.1f s\n%s (%s) remain", elapsed.Seconds(), counted(r.KeptPacks, "pack"), size(r.KeptBytes))
	if r.KeptPacks == 1 {
		text += "s"
	}
	if r.Unused > 0 {
		text += fmt.Sprintf("; %s (%s) of that is unused, in packs that are needed in part", size(r.Unused), percent(r.Unused, r.KeptBytes))
	}
	if r.Locked > 0 {
		text += fmt.Sprintf("\n%s of what nothing needs (%s of packs) stay until their locks end", counted(r.Locked, "object"), size(r.LockedBytes))
	}
	if r.Extended > 0 {
		text += fmt.Sprintf("\nextended %s", counted(r.Extended, "lock"))
	}
	text += parityText(&r.Parity)
	if c.sweep {
		text += "\n" + c.swept(r.Swept)
	}
	_, err := fmt.Fprintln(c.app.out, text)
	return err
}

// parityText describes what was done to parity; empty: nothing.
func parityText(m *prune.ParityMade) (text string) {
	if m.Groups+m.Ended > 0 {
		text += fmt.Sprintf("\nparity: made %s (%s), deleted %s (%s)", counted(m.Groups, "group"), size(m.Bytes), counted(m.Ended, "group"), size(m.Freed))
	}
	if m.Waiting > 0 {
		text += fmt.Sprintf("\nparity: %s (%s) wait until there are enough of about one size for a group", counted(m.Waiting, "object"), size(m.WaitingBytes))
	}
	if m.Held > 0 {
		text += fmt.Sprintf("\nparity: %s that nothing needs stay, because damaged objects of their groups can only be restored with them: run bctl repair", counted(m.Held, "pack"))
	}
	return text
}

// swept describes what a sweep has seen, in one line.
func (c *pruneCommand) swept(s prune.Swept) string {
	text := fmt.Sprintf("swept %s", counted(int(s.Objects), "object"))
	switch {
	case s.Old:
		text += "; orphans stay, because the index is older than the store"
	case c.dryRun:
		text += fmt.Sprintf(": would delete %s (%s)", counted(int(s.Orphans), "orphan"), size(s.Bytes))
	default:
		text += fmt.Sprintf(": deleted %s (%s)", counted(int(s.Orphans), "orphan"), size(s.Bytes))
	}
	if s.Unknown > 0 {
		text += fmt.Sprintf("; %s of snapshots that the index does not know stay (the index may be older than the store)", counted(int(s.Unknown), "object"))
	}
	if s.Withheld > 0 {
		text += fmt.Sprintf("; %s stay, because snapshots lack content that they may have: run bctl repair", counted(int(s.Withheld), "orphan"))
	}
	if s.Unidentified > 0 {
		text += fmt.Sprintf("; %s that cannot be identified stay", counted(int(s.Unidentified), "object"))
	}
	return text
}
