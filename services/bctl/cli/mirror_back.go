package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

type mirrorBack struct {
	app     *app
	asOf    time.Time
	dryRun  bool
	text    progressText
	started time.Time
}

func newMirrorBack(a *app) *cobra.Command {
	c := &mirrorBack{app: a}
	cmd := &cobra.Command{
		Use:   "copy-back",
		Short: "Make a lost store again from its mirror",
		Long: `Copies the mirror into an empty store: the same objects, byte for byte, each of
them proven. What the store itself had deleted is left out. An interrupted run
goes on. It needs no identity and no index, but a key of the store that may put
all objects: in a fleet, that of the store's administrator. Stop the services
until it is complete.

With --as-of, the store becomes what it was at that time, with what was deleted
since, by a mistake or by an attacker. That needs a mirror that has kept it
(mirror.keep_deleted). Rebuild the index afterwards.

If the store is only damaged, use bctl repair, which takes from the mirror what
is lost.`,
		Example: `  bctl mirror copy-back --store /backup/store --mirror /mnt/second/bctl
  bctl mirror copy-back --as-of 3d --store /backup/before --mirror /mnt/second
  bctl mirror copy-back --dry-run`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only print what would be copied")
	sinceFlag(cmd.Flags(), &c.asOf, "as-of", "copy what the mirror had at this `TIME`: "+sinceForms)
	return cmd
}

// copiedBackJSON is the result of mirror copy-back. The names are fixed.
type copiedBackJSON struct {
	Type           string     `json:"type"` // mirror_copy_back
	Repository     string     `json:"repository"`
	DryRun         bool       `json:"dry_run,omitempty"`
	AsOf           *time.Time `json:"as_of,omitempty"`
	Objects        int64      `json:"objects"` // that the store has now
	Bytes          int64      `json:"bytes"`
	Copied         int64      `json:"copied"` // by this run
	CopiedBytes    int64      `json:"copied_bytes"`
	Damaged        int        `json:"damaged"` // in the mirror, and not copied
	ElapsedSeconds float64    `json:"elapsed_seconds"`
}

func (c *mirrorBack) run(ctx context.Context) error {
	from, err := open.Mirror(ctx, c.app.cfg, false, c.app.log)
	if err != nil {
		return wrongSetting(err)
	}
	defer from.Close()
	to, err := open.Store(ctx, c.app.cfg, true, c.app.log)
	if err != nil {
		return wrongSetting(err)
	}
	defer to.Close() // everything that was put is durable
	c.started = time.Now()
	c.text.set("reading what the mirror has")
	stop := c.app.animate(c.text.get)
	s, err := mirror.CopyBack(ctx, mirror.BackOptions{
		From: from, To: to, AsOf: c.asOf, DryRun: c.dryRun, Progress: func(p mirror.Progress) { c.text.set(mirrorLine(c.started, p)) },
	})
	stop()
	if errors.Is(err, process.ErrInterrupted) {
		c.app.term.println("Run the command again to continue; what was copied is not copied again.")
	}
	if err != nil {
		return repair.MayPutBack(err)
	}
	return c.report(to, &s)
}

func (c *mirrorBack) report(to store.Store, s *mirror.Summary) error {
	if err := c.app.differences(s.Problems, s.MoreProblems); err != nil {
		return err
	}
	damaged := len(s.Problems) + s.MoreProblems
	object := copiedBackJSON{
		Type: "mirror_copy_back", Repository: s.Repository.String(), DryRun: c.dryRun, Objects: s.Objects, Bytes: s.Bytes, Copied: s.Copied,
		CopiedBytes: s.CopiedBytes, Damaged: damaged, ElapsedSeconds: time.Since(c.started).Seconds(),
	}
	verb := "copied"
	if c.dryRun {
		verb = "would copy"
	}
	text := fmt.Sprintf("%s %s (%s) to %v", verb, counted(s.Copied, "object"), size(s.CopiedBytes), to)
	if !c.dryRun && damaged == 0 {
		text += ", which is now complete"
	}
	text += "\n"
	if !c.asOf.IsZero() {
		object.AsOf = &c.asOf
		if damaged == 0 {
			text += "next: move the index away, and run bctl index rebuild\n"
		}
	}
	if err := c.app.result(object, "%s", text); err != nil || damaged == 0 {
		return err
	}
	return fmt.Errorf("%s damaged in the mirror, and not copied. bctl check names the files: %w", countedAre(damaged, "object"), backup.ErrCorrupt)
}
