package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// unneededJSON is the result of purge --unneeded. The names are fixed.
type unneededJSON struct {
	Type           string  `json:"type"` // unneeded
	DryRun         bool    `json:"dry_run"`
	Complete       bool    `json:"complete"`
	Packs          int     `json:"packs"`  // that have content which nothing needs
	Chunks         int64   `json:"chunks"` // that nothing needs, counted in each pack
	Bytes          int64   `json:"bytes"`  // of frames that have nothing that is needed
	DeletedObjects int     `json:"deleted_objects"`
	WrittenObjects int     `json:"written_objects"` // with what is needed of these
	LeftObjects    int     `json:"left_objects"`
	LeftPlaces     int64   `json:"left_places"`
	PresentObjects int64   `json:"present_objects"`
	LockedUntil    *string `json:"locked_until"`
	Orphans        int64   `json:"orphans"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

// purgeUnneeded removes the content that no snapshot needs from all packs.
func (c *purgeCommand) purgeUnneeded(ctx context.Context) error {
	a := c.app
	found, err := prune.FindUnneeded(ctx, c.index)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s with content that no snapshot needs: %s in them, and %s in whole frames\n", counted(found.Packs, "pack"), counted(found.Chunks, "chunk"), size(found.Bytes))
	if c.dryRun {
		return a.result(unneededJSON{Type: "unneeded", DryRun: true, Complete: found.Packs+found.Deleting == 0, Packs: found.Packs, Chunks: found.Chunks, Bytes: found.Bytes}, "%s", text)
	}
	if !a.json {
		fmt.Fprint(a.out, text)
	}
	if err := c.agree(); err != nil {
		return err
	}
	if err := a.aloneWithIndex(); err != nil {
		return err
	}
	done, err := c.braked(ctx, index.Deletion{Bytes: found.Bytes, OfBytes: found.Stored})
	if err != nil {
		return err
	}
	if err := c.index.NotePurge(ctx, operator(), "what no snapshot needs: "+c.reason, false); err != nil {
		return err
	}
	if err := done(); err != nil {
		return err
	}
	o, err := c.options(ctx, index.Purge{})
	if err != nil {
		return err
	}
	started := time.Now()
	var proof embedded.PurgeProof
	_, err = a.runPrune(func(with prune.Options) (prune.Summary, error) {
		o.Progress = with.Progress
		proof, err = embedded.PurgeUnneeded(ctx, o)
		return prune.Summary{}, err
	}, prune.Options{})
	if err != nil {
		return whilePruned(err)
	}
	elapsed := time.Since(started).Seconds()
	report := fmt.Sprintf("replaced %s by %d, in %.1f s\n", counted(proof.Objects, "object"), proof.Sealed, elapsed)
	if proof.Complete {
		report += "what no snapshot needs is neither in the index nor in the store\n"
	}
	err = a.result(unneededJSON{
		"unneeded", false, proof.Complete, found.Packs, found.Chunks, found.Bytes, proof.Objects, proof.Sealed, proof.Left, proof.Places, proof.Present,
		jsonTime(proof.LockedUntil), proof.Orphans.Orphans, elapsed,
	}, "%s", report)
	if err != nil || proof.Complete {
		return err
	}
	return incomplete(&proof, "bctl purge --unneeded")
}
