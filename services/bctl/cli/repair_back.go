package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// takeBack registers packs again that an earlier repair has dropped, and that the store has again.
// It opens the index again, to write.
func (c *repairCommand) takeBack(ctx context.Context) error {
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	lost, err := r.index.LostPacks(ctx)
	if err != nil || len(lost) == 0 {
		return err
	}
	o := prune.Options{Store: r.store, Log: c.app.log, Holder: holder(), By: operator()}
	var packs int
	var bytes int64
	if local, is := r.index.(*sqliteindex.Index); is {
		locks, err := c.app.cfg.LockDir()
		if err != nil {
			return err
		}
		packs, bytes, err = embedded.TakeBack(ctx, local, locks, o)
		if err != nil {
			return takingBack(err)
		}
	} else if packs, bytes, err = prune.TakeBack(ctx, r.index, o); err != nil {
		return takingBack(err)
	}
	if packs == 0 {
		return nil
	}
	c.app.note("took back %s (%s) that a repair had dropped, because the store has %s again", counted(packs, "pack"), size(bytes), itOrThem(packs))
	return r.index.NoteRepair(ctx, operator(), "repository", fmt.Sprintf("took back %d packs (%d bytes), which the store has again", packs, bytes))
}

func takingBack(err error) error {
	if errors.Is(err, prune.ErrBusy) {
		return &busyError{err.Error() + "; run this command again when that has ended"}
	}
	return err
}

// forgetLost forgets lost packs if no snapshot lacks anything.
func (c *repairCommand) forgetLost(ctx context.Context) error {
	return c.app.withIndex(ctx, toWrite, func(i index.Index) error {
		lost, err := i.LostPacks(ctx)
		if err != nil || len(lost) == 0 {
			return err
		}
		return i.ForgetLost(ctx, lost)
	})
}

// noteReturned says that a repair would take packs back, if content is missing that they may have.
func (c *checkCommand) noteReturned(ctx context.Context, r *repository, found *check.Report) error {
	missing := false
	for _, f := range found.Findings {
		missing = missing || f.Kind == check.Chunks
	}
	if !missing || r.store == nil {
		return nil
	}
	returned, _, err := prune.Returned(ctx, r.index, r.store)
	if err != nil || len(returned) == 0 {
		return err
	}
	c.app.note("%s in the store again that a repair had dropped: bctl repair takes %s back", countedAre(len(returned), "pack"), itOrThem(len(returned)))
	return nil
}
