package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/services/bctl/open"
	"github.com/bctl/bctl/services/bctl/serve"
)

func newMirror(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "mirror",
		Short: "Keep a second copy of the store",
		Long: `Keeps a second copy of the store, the mirror, in another directory or bucket. It
needs no key and no index. --mirror or mirror.url names the mirror.

The mirror is a store like any other: with --store it restores files, and the
index is rebuilt from it. bctl repair takes from it what the store has lost.
docs/mirror.md leads from the first pass to the day on which the store is lost.`,
	})
	cmd.AddCommand(newMirrorRun(a), newMirrorCheck(a), newMirrorBack(a))
	return cmd
}

type mirrorRun struct {
	app     *app
	watch   bool
	dryRun  bool
	keep    time.Duration
	allow   int64
	share   float64
	replace []string
	text    progressText
	started time.Time
}

func newMirrorRun(a *app) *cobra.Command {
	c := &mirrorRun{app: a}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Copy to the mirror what is new in the store",
		Long: `Copies to the mirror what it lacks. Each object is proven before it is written,
by its signature or its checksums. What refers to others is written after them,
so the mirror can be restored from at every moment. An interrupted run goes on,
and copies nothing twice. Backups, restores and prunes continue meanwhile.

What the store has no longer stays in the mirror: for ever, or for as long as
--keep-deleted says. If a large share of the mirror would be deleted, the brake
stops the deletions, and the exit status is 1. If that share was forgotten on
purpose, --allow-delete SIZE lets it go. Copies of a SQLite index stay for a day
after a newer one has replaced them.

Damaged objects are not copied, and do not replace sound ones. They are listed,
and the exit status is 1. With --read-data, the command also reads the mirror's
objects, and replaces those that are damaged there.

A pack that was damaged when it was copied, and that was put back in the store
since, differs from its copy. If bctl check --read-data finds it undamaged in
the store, --replace PACK puts it in the place of the mirror's.

--watch repeats all this until it is interrupted, as a service, and serves
metrics (http.listen).`,
		Example: `  bctl mirror run --mirror /mnt/second/bctl
  bctl mirror run --keep-deleted 60d
  bctl mirror run --watch --config mirror.yaml
  bctl mirror run --read-data=5%`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), cmd.Flags().Changed("keep-deleted"))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&c.watch, "watch", false, "repeat it as a service, mirror.every after the end of the last pass")
	flags.BoolVar(&c.dryRun, "dry-run", false, "only print what would be copied and deleted")
	timeFlag(flags, &c.keep, "keep-deleted", "delete what the store has not had for this `TIME` (mirror.keep_deleted; default: never)")
	sizeFlag(flags, &c.allow, "allow-delete", "let up to this `SIZE` be deleted although the brake would stop it")
	flags.StringArrayVar(&c.replace, "replace", nil, "replace the mirror's `PACK` by the store's, although that is not what was copied at first (may be repeated)")
	shareFlag(flags, &c.share, "read this `SHARE` of the mirror's objects, and replace damaged ones (without a value: 100%)")
	return cmd
}

// leastKept is the least time for which a mirror keeps what the store has deleted. A shorter one
// would let a mistake at the store reach the mirror before anybody sees it.
const leastKept = time.Hour

// options returns the options of a pass without its stores.
func (c *mirrorRun) options(keepGiven bool) (o mirror.Options, err error) {
	keep := c.keep
	if text := c.app.cfg.Mirror.KeepDeleted; !keepGiven && text != "" {
		if keep, err = parseTime(text); err != nil {
			return o, usage("mirror.keep_deleted %q %v", text, err)
		}
	}
	if (keepGiven || keep != 0) && keep < leastKept {
		return o, usage("--keep-deleted (mirror.keep_deleted) is at least %s; without it, nothing is deleted from the mirror", leastKept)
	}
	mode, err := store.ParseLockMode(c.app.cfg.Mirror.ObjectLock)
	if err != nil {
		return o, usage("mirror.object_lock: %v", err)
	}
	replace := map[string]bool{}
	for _, name := range c.replace {
		if _, _, ok := store.ParsePackName(name); !ok {
			return o, usage("--replace %q is not the name of a pack (packs/…), as bctl mirror check prints it", name)
		}
		replace[name] = true
	}
	return mirror.Options{Replace: replace, KeepDeleted: keep, Locks: mode != store.Unlocked, AllowDelete: c.allow, Reread: c.share, DryRun: c.dryRun}, nil
}

func (c *mirrorRun) run(ctx context.Context, keepGiven bool) error {
	o, err := c.options(keepGiven)
	if err != nil {
		return err
	}
	if c.watch {
		if c.dryRun || c.allow > 0 || len(c.replace) > 0 {
			return usage("--watch is not for --dry-run, --allow-delete and --replace: these are for one pass")
		}
		log := c.app.log
		c.app.log = serve.Named(log, "mirror", c.app.cfg) // the service names its own lines
		c.app.serves.Store(true)
		telemetry.TakeOver(c.app.log)
		return wrongSetting(serve.Mirror(ctx, c.app.cfg, log, o))
	}
	from, to, err := open.MirrorPair(ctx, c.app.cfg, !c.dryRun, c.app.log, func(*store.Error) {})
	if err != nil {
		if c.dryRun && errors.Is(err, backup.ErrNoRepository) {
			err = fmt.Errorf("%w. Without --dry-run, the command makes it, and copies all of the store", err)
		}
		return wrongSetting(err)
	}
	defer from.Close()
	defer to.Close() // everything that was put is durable
	o.From, o.To, o.Progress = from, to, c.progress
	c.started = time.Now()
	c.text.set("reading what the mirror has")
	stop := c.app.animate(c.text.get)
	s, err := mirror.Run(ctx, o)
	stop()
	_, braked := errors.AsType[*mirror.BrakeError](err)
	if err != nil && !braked {
		if errors.Is(err, process.ErrInterrupted) {
			c.app.term.println("Run the command again to continue; what was copied is not copied again.")
		}
		return err
	}
	return errors.Join(c.report(&s), err)
}

func (c *mirrorRun) progress(p mirror.Progress) { c.text.set(mirrorLine(c.started, p)) }

// mirrorLine is the line of progress of a mirror's commands.
func mirrorLine(started time.Time, p mirror.Progress) string {
	text := clock(time.Since(started)) + "  " + p.Step
	if p.All > 0 {
		text += fmt.Sprintf("  %s of %s", humanize.Comma(p.Done), humanize.Comma(p.All))
	}
	if p.Bytes > 0 {
		text += "  " + size(p.Bytes)
	}
	return text
}

// mirroredJSON is the result of mirror run. The names are fixed.
type mirroredJSON struct {
	Type           string  `json:"type"` // mirror
	Repository     string  `json:"repository"`
	DryRun         bool    `json:"dry_run,omitempty"`
	Objects        int64   `json:"objects"` // that the mirror has of the store
	Bytes          int64   `json:"bytes"`
	Copied         int64   `json:"copied"`
	CopiedBytes    int64   `json:"copied_bytes"`
	Replaced       int64   `json:"replaced"` // were damaged in the mirror
	Compared       int64   `json:"compared"` // of the mirror, read and compared
	Gone           int64   `json:"gone"`     // found to be gone from the store by this pass
	Retained       int64   `json:"retained"` // gone from the store, and kept
	RetainedBytes  int64   `json:"retained_bytes"`
	Deleted        int64   `json:"deleted"`
	DeletedBytes   int64   `json:"deleted_bytes"`
	Locked         int64   `json:"locked"`         // to be deleted, but locked
	LocksExtended  int64   `json:"locks_extended"` // of what the store has
	Behind         int64   `json:"behind"`         // records that the next pass copies
	Damaged        int     `json:"damaged"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

// damagedJSON is an object that is damaged, missing or different. The names are fixed.
type damagedJSON struct {
	Type   string `json:"type"` // difference
	Side   string `json:"side"` // store, or mirror
	Object string `json:"object"`
	Text   string `json:"text"`
	Next   string `json:"next"`
}

// report prints the result of a pass. It fails if something is damaged.
func (c *mirrorRun) report(s *mirror.Summary) error {
	if err := c.app.differences(s.Problems, s.MoreProblems); err != nil {
		return err
	}
	damaged := len(s.Problems) + s.MoreProblems
	object := mirroredJSON{
		"mirror", s.Repository.String(), c.dryRun, s.Objects, s.Bytes, s.Copied, s.CopiedBytes, s.Replaced, s.Reread, s.Gone, s.Retained, s.RetainedBytes,
		s.Deleted, s.DeletedBytes, s.LockedGone, s.LockExtended, s.Behind, damaged, time.Since(c.started).Seconds(),
	}
	would := ""
	if c.dryRun {
		would = "would have "
	}
	text := fmt.Sprintf("%scopied %s (%s); the mirror has %s of the store (%s)\n", would, counted(s.Copied, "object"), size(s.CopiedBytes), counted(s.Objects, "object"), size(s.Bytes))
	if s.Retained > 0 {
		text += fmt.Sprintf("it also keeps %s (%s) that the store has no longer\n", counted(s.Retained, "object"), size(s.RetainedBytes))
	}
	if s.Deleted > 0 {
		text += fmt.Sprintf("%sdeleted %s that the store has not had for long enough\n", would, counted(s.Deleted, "object"))
	}
	if s.Replaced > 0 {
		text += fmt.Sprintf("replaced %s that were damaged in the mirror\n", counted(s.Replaced, "object"))
	}
	if s.Behind > 0 {
		text += fmt.Sprintf("%s changed meanwhile: run the command again\n", counted(s.Behind, "commit record"))
	}
	if err := c.app.result(object, "%s", text); err != nil || damaged == 0 {
		return err
	}
	return fmt.Errorf("%s damaged: see above", countedAre(damaged, "object"))
}
