package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// takeBack registers packs that the store has, that the index does not name, and that have content
// which snapshots lack: those that an earlier repair has dropped, and then, if content is still
// missing, all others. It opens the index again, to write.
func (c *repairCommand) takeBack(ctx context.Context) error {
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	lost, err := r.index.LostPacks(ctx)
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		if err := c.takeBackLost(ctx, r); err != nil {
			return err
		}
	}
	lacks, err := prune.LacksContent(ctx, r.index)
	if err != nil || !lacks {
		return err
	}
	return c.takeBackOrphans(ctx, r)
}

func (c *repairCommand) takeBackLost(ctx context.Context, r *repository) error {
	var t prune.TakenBack
	err := c.app.withPruneLock(ctx, r.index, func() (err error) {
		t, err = prune.TakeBack(ctx, r.index, c.taking(r), r.object.ID)
		return err
	})
	if err != nil {
		return err
	}
	c.missing, c.useless = t.Missing, t.Useless
	if t.Waiting > 0 {
		c.app.note("%s in the store again that a repair had dropped, and can be taken back when the running snapshots have ended: run this command again then", countedAre(t.Waiting, "pack"))
	}
	return c.tookBack(ctx, r, &t, "that a repair had dropped: the store has "+itOrThem(t.Packs)+" again")
}

// takeBackOrphans opens the packs that the index does not name.
func (c *repairCommand) takeBackOrphans(ctx context.Context, r *repository) error {
	n, err := prune.Orphans(ctx, r.index, r.store)
	if err != nil || n == 0 {
		return err
	}
	opener, key, err := c.app.openSealed(ctx, r)
	if err != nil {
		c.app.note("%s in the store that the index does not name, and that may have content which is missing. To find out takes the identity: %v", countedAre(n, "object"), err)
		return nil
	}
	var t prune.TakenBack
	err = c.app.withPruneLock(ctx, r.index, func() (err error) {
		t, err = prune.TakeBackOrphans(ctx, r.index, c.taking(r), r.object.ID, opener)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.tookBack(ctx, r, &t, "that the index did not name, because snapshots lack content"); err != nil || t.Packs == 0 {
		return err
	}
	return rebuild.RecoverLists(ctx, rebuild.Options{
		Index: r.index, Store: r.store, Trust: journal.Trust{Repository: r.object.ID, Opener: opener, Signer: r.object.Signer()}, Dedup: key,
	})
}

func (c *repairCommand) taking(r *repository) prune.Options {
	return prune.Options{Store: r.store, Log: c.app.log, Holder: holder(), By: operator()}
}

// tookBack prints what was taken back, and writes it to the log.
func (c *repairCommand) tookBack(ctx context.Context, r *repository, t *prune.TakenBack, why string) error {
	if t.Packs == 0 {
		return nil
	}
	c.app.note("took back %s (%s) %s", counted(t.Packs, "pack"), size(t.Bytes), why)
	return r.index.NoteRepair(ctx, operator(), "repository", fmt.Sprintf("took back from the store, which has them again: packs %d, bytes %d", t.Packs, t.Bytes))
}

// whilePruned returns err, which says what to do if another process prunes.
func whilePruned(err error) error {
	if errors.Is(err, prune.ErrBusy) {
		return whenEnded(err)
	}
	return err
}

// withPruneLock calls do, which leads as the pruner, while no other process on this machine prunes.
func (a *app) withPruneLock(ctx context.Context, i index.Index, do func() error) error {
	local, is := i.(*sqliteindex.Index)
	if !is {
		return whilePruned(do())
	}
	locks, err := a.cfg.LockDir()
	if err != nil {
		return err
	}
	return whilePruned(embedded.WithPruneLock(ctx, local, locks, do))
}

// forgetLost forgets the lost packs that were missing before the check, or of no use: it has found
// that no snapshot lacks anything.
func (c *repairCommand) forgetLost(ctx context.Context) error {
	if len(c.missing)+len(c.useless) == 0 {
		return nil
	}
	if n := len(c.useless); n > 0 {
		c.app.note("%s in the store again that a repair had dropped, and whose content other packs have by now: bctl prune --sweep deletes %s", countedAre(n, "pack"), itOrThem(n))
	}
	return c.app.withIndex(ctx, toWrite, func(i index.Index) error { return i.ForgetLost(ctx, slices.Concat(c.missing, c.useless)) })
}

// lacks reports whether a check has found something of these kinds.
func lacks(found *check.Report, kinds ...check.Kind) bool {
	return slices.ContainsFunc(found.Findings, func(f *check.Finding) bool { return slices.Contains(kinds, f.Kind) })
}

// A returned is what the store has again, or still, and the index does not name.
type returned struct {
	packs   int // that a repair had dropped
	orphans int // objects that may have content which is missing; they are counted only if some is
}

// findReturned finds what a repair would take back. Only what lacks content needs it.
func (c *checkCommand) findReturned(ctx context.Context, r *repository, found *check.Report) error {
	if r.store == nil {
		return nil
	}
	packs, _, err := prune.Returned(ctx, r.index, r.store, r.object.ID)
	if err != nil {
		return err
	}
	c.returned = returned{packs: len(packs)}
	c.lacking = lacks(found, check.Chunks, check.Lists)
	if c.lacking {
		c.returned.orphans, err = prune.Orphans(ctx, r.index, r.store)
	}
	return err
}

// takesBack reports whether a repair takes back content that is missing.
func (c *checkCommand) takesBack() bool {
	return c.lacking && c.returned.packs+c.returned.orphans > 0
}

// noteReturned says what a repair would do with what the store has again.
func (c *checkCommand) noteReturned() {
	switch n := c.returned.packs; {
	case n > 0 && c.lacking:
		c.app.note("%s in the store again that a repair had dropped: bctl repair takes %s back", countedAre(n, "pack"), itOrThem(n))
	case n > 0:
		c.app.note("%s in the store again that a repair had dropped, and that no snapshot seems to need: bctl repair finds out, and then bctl prune --sweep deletes %s", countedAre(n, "pack"), itOrThem(n))
	}
	if n := c.returned.orphans; n > 0 {
		c.app.note("%s in the store that the index does not name, and may have content that is missing: bctl repair takes %s back", countedAre(n, "object"), itOrThem(n))
	}
}
