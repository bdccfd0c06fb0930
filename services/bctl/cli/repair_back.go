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
	var t prune.TakenBack
	if local, is := r.index.(*sqliteindex.Index); is {
		locks, err := c.app.cfg.LockDir()
		if err != nil {
			return err
		}
		if t, err = embedded.TakeBack(ctx, local, locks, o, r.object.ID); err != nil {
			return takingBack(err)
		}
	} else if t, err = prune.TakeBack(ctx, r.index, o, r.object.ID); err != nil {
		return takingBack(err)
	}
	c.missing = t.Missing
	if t.Waiting > 0 {
		c.app.note("%s in the store again that a repair had dropped, and can be taken back when the running snapshots have ended: run this command again then", countedAre(t.Waiting, "pack"))
	}
	if t.Packs == 0 {
		return nil
	}
	c.app.note("took back %s (%s) that a repair had dropped, because the store has %s again", counted(t.Packs, "pack"), size(t.Bytes), itOrThem(t.Packs))
	return r.index.NoteRepair(ctx, operator(), "repository", fmt.Sprintf("took back from the store, which has them again: packs %d, bytes %d", t.Packs, t.Bytes))
}

func takingBack(err error) error {
	if errors.Is(err, prune.ErrBusy) {
		return &busyError{err.Error() + "; run this command again when that has ended"}
	}
	return err
}

// forgetLost forgets the lost packs that were missing before the check, which has found that no
// snapshot lacks anything.
func (c *repairCommand) forgetLost(ctx context.Context) error {
	if len(c.missing) == 0 {
		return nil
	}
	return c.app.withIndex(ctx, toWrite, func(i index.Index) error { return i.ForgetLost(ctx, c.missing) })
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
	returned, _, err := prune.Returned(ctx, r.index, r.store, r.object.ID)
	if err != nil || len(returned) == 0 {
		return err
	}
	c.app.note("%s in the store again that a repair had dropped: bctl repair takes %s back", countedAre(len(returned), "pack"), itOrThem(len(returned)))
	return nil
}
