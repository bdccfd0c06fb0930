package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/prune"
)

// putBackJSON is the result of repair --from-parity. The names are fixed.
type putBackJSON struct {
	Type           string   `json:"type"` // put_back
	DryRun         bool     `json:"dry_run"`
	Damaged        []string `json:"damaged"` // objects that were found to be damaged
	PutBack        []string `json:"put_back"`
	PutBackBytes   int64    `json:"put_back_bytes"`
	Left           []string `json:"left"` // damaged objects that parity does not bring back
	ElapsedSeconds float64  `json:"elapsed_seconds"`
}

// runFromParity puts back what parity has, without an identity.
func (c *repairCommand) runFromParity(ctx context.Context) error {
	if c.level != "objects" || c.restart || c.read > 0 && c.read < 1 {
		return usage("--from-parity looks for missing objects, or, with --read-data, reads all objects of parity groups: give no --level, --restart or share")
	}
	c.keepVersions()
	c.started = time.Now()
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	o := prune.Options{Index: r.index, Store: r.store, Log: c.app.log, Holder: holder(), By: operator()}
	var damaged []string
	var back prune.PutBackObjects
	_, err = c.app.runPrune(func(with prune.Options) (prune.Summary, error) {
		var err error
		if damaged, err = prune.FindInGroups(ctx, with, c.read > 0); err != nil || c.dryRun {
			return prune.Summary{}, err
		}
		return prune.Summary{}, c.app.withPruneLock(ctx, r.index, func() (err error) {
			back, err = prune.PutBack(ctx, with, damaged)
			return err
		})
	}, o)
	if err != nil {
		return err
	}
	proven := c.proveAgain(ctx, slices.Sorted(maps.Keys(back.Names)))
	return errors.Join(c.concludePutBack(damaged, &back), proven)
}

// misledText says which parity was deleted because it was made of damaged bytes.
func misledText(groups int) string {
	if groups == 0 {
		return ""
	}
	return fmt.Sprintf("deleted the parity of %s that was made of damaged bytes: bctl prune --parity makes it again\n", counted(groups, "group"))
}

// concludePutBack prints what was put back.
func (c *repairCommand) concludePutBack(damaged []string, back *prune.PutBackObjects) error {
	object := putBackJSON{"put_back", c.dryRun, slices.Compact(slices.Sorted(slices.Values(damaged))), slices.Sorted(maps.Keys(back.Names)), back.Bytes,
		slices.Sorted(maps.Keys(back.Left)), time.Since(c.started).Seconds()}
	text := ""
	for _, name := range object.Damaged {
		if back.Names[name] {
			continue
		}
		if back.Sound[name] {
			text += name + ": it is sound, and was not replaced\n"
			continue
		}
		text += name + ": it is missing or damaged"
		if err := back.Left[name]; err != nil {
			text += "; " + err.Error()
		}
		text += "\n"
	}
	for _, name := range object.PutBack {
		text += name + ": put back\n"
	}
	if c.dryRun {
		text += fmt.Sprintf("missing or damaged objects of parity groups: %d\n", len(object.Damaged))
	} else {
		text += fmt.Sprintf("put back %s from parity (%s)\n", counted(len(back.Names), "object"), size(back.Bytes)) + misledText(len(back.Misled))
	}
	if err := c.app.result(object, "%s", text); err != nil {
		return err
	}
	switch {
	case len(back.Locked) > 0:
		return fmt.Errorf("the store has locked %s, and parity has %s: run bctl repair --from-parity again when the lock has ended, or when an administrator of the store has deleted what is damaged", counted(len(back.Locked), "damaged object"), itOrThem(len(back.Locked)))
	case len(back.Left) > 0:
		return fmt.Errorf("parity does not bring back %s: bctl repair drops what is lost, so that backups store it again", counted(len(back.Left), "object"))
	case c.dryRun && len(object.Damaged) > 0:
		return fmt.Errorf("missing or damaged objects of parity groups: %d; bctl repair --from-parity puts back what parity has", len(object.Damaged))
	}
	return nil
}
