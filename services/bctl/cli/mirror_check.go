package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

type mirrorCheck struct {
	app     *app
	share   float64
	text    progressText
	started time.Time
}

func newMirrorCheck(a *app) *cobra.Command {
	c := &mirrorCheck{app: a}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the store with its mirror",
		Long: `Compares the store with its mirror, by the names and sizes of all objects. It
lists what is missing or different, on which side, and the command to type next.
It changes nothing, and needs no key.

With --read-data, it reads the objects on both sides, and compares them with
their signatures and with the checksums of the time at which they were copied.
So it is known on which side an object has changed.

What only the mirror has was deleted from the store, and is kept. The exit
status is 0 only if the mirror has all of the store, and nothing is damaged.`,
		Example: `  bctl mirror check
  bctl mirror check --read-data
  bctl mirror check --read-data=5% --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	shareFlag(cmd.Flags(), &c.share, "read this `SHARE` of the objects on both sides (without a value: 100%)")
	return cmd
}

// comparedJSON is the result of mirror check. The names are fixed.
type comparedJSON struct {
	Type           string  `json:"type"` // mirror_check
	Repository     string  `json:"repository"`
	Objects        int64   `json:"objects"` // that both have
	Bytes          int64   `json:"bytes"`
	Missing        int64   `json:"missing"` // in the mirror
	MissingBytes   int64   `json:"missing_bytes"`
	Retained       int64   `json:"retained"` // gone from the store, and kept
	RetainedBytes  int64   `json:"retained_bytes"`
	OnlyInMirror   int64   `json:"only_in_mirror"` // what the next pass notes as gone from the store
	Read           int64   `json:"read"`           // on both sides
	Differences    int     `json:"differences"`    // with what is missing
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

func (c *mirrorCheck) run(ctx context.Context) error {
	c.app.interruptible.Store(true)
	from, to, err := open.MirrorPair(ctx, c.app.cfg, false, c.app.log, func(*store.Error) {})
	if err != nil {
		if errors.Is(err, backup.ErrNoRepository) {
			err = fmt.Errorf("%w. bctl mirror run makes the mirror; if the store is lost, bctl mirror copy-back makes it again", err)
		}
		return wrongSetting(err)
	}
	defer from.Close()
	defer to.Close() // it was only read
	c.started = time.Now()
	c.text.set("reading what the mirror has")
	stop := c.app.animate(c.text.get)
	r, err := mirror.Compare(ctx, mirror.Options{From: from, To: to, Reread: c.share, Progress: func(p mirror.Progress) { c.text.set(mirrorLine(c.started, p)) }})
	stop()
	if err != nil {
		return err
	}
	if err := c.app.differences(r.Problems, r.MoreProblems); err != nil {
		return err
	}
	n := len(r.Problems) + r.MoreProblems
	object := comparedJSON{
		"mirror_check", r.Repository.String(), r.Objects, r.Bytes, r.Missing, r.MissingBytes, r.Retained, r.RetainedBytes, r.Unmarked, r.Read, n, time.Since(c.started).Seconds(),
	}
	text := fmt.Sprintf("compared the store with its mirror: both have %s (%s)\n", counted(r.Objects-r.Unmarked, "object"), size(r.Bytes))
	if r.Read > 0 {
		text += fmt.Sprintf("read %s on both sides\n", counted(r.Read, "object"))
	}
	if kept := r.Retained + r.Unmarked; kept > 0 {
		text += fmt.Sprintf("the mirror also keeps %s that the store has no longer\n", counted(kept, "object"))
	}
	if r.Missing > 0 {
		text += fmt.Sprintf("the mirror lacks %s (%s)\n", counted(r.Missing, "object"), size(r.MissingBytes))
	}
	if n == 0 {
		text += "nothing is missing or different\n"
	}
	if err := c.app.result(object, "%s", text); err != nil || n == 0 {
		return err
	}
	return fmt.Errorf("the store and its mirror differ (%s)", counted(n, "difference"))
}

// maxShown is how many differences are shown without --json.
const maxShown = 20

// differences prints what is damaged, missing or different.
func (a *app) differences(problems []mirror.Problem, more int) error {
	for i, p := range problems {
		if a.json {
			if err := a.print(damagedJSON{"difference", string(p.Side), p.Name, p.Text, nextAfter(p)}); err != nil {
				return err
			}
			continue
		}
		if i == maxShown {
			break
		}
		if _, err := fmt.Fprintf(a.out, "%s: %s: %s\n  next: %s\n", p.Side, p.Name, p.Text, nextAfter(p)); err != nil {
			return err
		}
	}
	if hidden := len(problems) - maxShown + more; !a.json && hidden > 0 {
		_, err := fmt.Fprintf(a.out, "and %s\n", counted(hidden, "more difference"))
		return err
	}
	return nil
}

// nextAfter returns the command to type next.
func nextAfter(p mirror.Problem) string {
	switch {
	case p.Side == mirror.InStore && p.Changed && strings.HasPrefix(p.Name, store.PacksPrefix):
		return "bctl repair --read-data. If it finds no damage, the mirror's was copied when it was damaged: bctl mirror run --replace " + p.Name
	case p.Side == mirror.InStore && strings.HasPrefix(p.Name, store.PacksPrefix):
		return "bctl repair --read-data" // a check that reads less may not find it
	case p.Side == mirror.InStore:
		return "bctl repair"
	case p.Missing:
		return "bctl mirror run"
	}
	if strings.HasPrefix(p.Name, store.SumsPrefix) {
		return "bctl mirror run (it reads again what was noted there)"
	}
	return "bctl mirror run --read-data"
}
