package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/scrub"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

type repairCommand struct {
	checkCommand
	yes        bool
	fromParity bool
	in         *bufio.Reader
	asks       bool                  // stdin and stderr are a terminal
	missing    []index.RecoveredPack // that earlier repairs have dropped, and that the store does not have
	useless    []index.RecoveredPack // that it has, and whose content is elsewhere
}

func newRepair(a *app) *cobra.Command {
	c := &repairCommand{checkCommand: checkCommand{app: a}}
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Put back what the store has lost, or have it stored again",
		Long: `Checks the repository as bctl check does, and then repairs what it has found:

  Damaged objects that the mirror has (--mirror, mirror.url), and then those
  that parity has (bctl prune --parity), are put back, byte for byte, before
  anything is dropped.

  Content that the store has lost, and that another pack has, is taken from
  there. All other lost content is dropped from the index. The next backup reads
  the affected files again and stores them, if the filer still has them as they
  were; old snapshots are then whole again, too.

  What is sound of a damaged pack stays. Nothing is deleted from the store. The
  next repair takes back what the store has again; for packs that the index does
  not name, it needs the identity.

  Commit records, segments, the catalog and copies of the index are written
  again from the index. In a fleet, the committers write them.

Snapshots do not change: files that stay damaged are listed, bctl check lists
them again, and restores report them. Damage to pages of the index is not
repaired: restore a copy of the index, as bctl check says.

--dry-run only lists the damage. Backups and restores continue meanwhile. If a
large share of what is stored would be dropped, the brake stops the command
(bctl brake): see first whether the store is complete. In a fleet with roles,
the command needs the configuration of the admin.

--from-parity only puts back what parity has. It needs no identity and drops
nothing. It looks for objects of parity groups that are missing, have another
length, or were damaged at their last scrub; with --read-data it reads all of
them. In a fleet with roles, it needs the configuration of the pruner, who alone
may write and delete packs.`,
		Example: `  bctl repair --dry-run
  bctl repair
  bctl repair --read-data --yes
  bctl repair --mirror /mnt/second/bctl
  bctl repair --from-parity`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.fromParity {
				return c.runFromParity(cmd.Context())
			}
			if c.in, c.asks = a.asksFrom(cmd.InOrStdin()); !c.dryRun && !c.yes && !c.asks {
				return usage("repair changes the index and the store: look with --dry-run, and then give --yes")
			}
			return c.run(cmd.Context())
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only list what is damaged")
	cmd.Flags().BoolVar(&c.fromParity, "from-parity", false, "only put back what parity has")
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask")
	_ = cmd.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]string{"index", "objects", "tables", "content"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// keepVersions makes a store with versions keep them: what is damaged and locked is then replaced,
// by a version in front of it.
func (c *repairCommand) keepVersions() { c.app.cfg.Store.DeleteVersions = false }

func (c *repairCommand) run(ctx context.Context) error {
	c.keepVersions()
	dryRun := c.dryRun
	c.dryRun = false // of the check
	if err := c.putBackObject(ctx, dryRun); err != nil {
		return err
	}
	o, r, err := c.options(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { c.close(r) }()
	if !dryRun {
		if r.old != nil { // what is missing may only have other places now
			return r.old
		}
		c.repairs = ""
	}
	if r.store == nil {
		return usage("--level index finds nothing that can be repaired: the default is objects")
	}
	if !dryRun {
		if err := c.takeBack(ctx); err != nil {
			return err
		}
	}
	found, err := c.check(ctx, o)
	if err != nil {
		return err
	}
	if err := c.complete(); err != nil {
		return err
	}
	if dryRun {
		if err := c.findReturned(ctx, r, &found); err != nil {
			return err
		}
	}
	damage := c.report(o.Level, &found)
	if dryRun {
		c.noteReturned()
		return errors.Join(c.noteMirror(ctx, r, &found), damage)
	}
	if !lacks(&found, check.Pack, check.Places, check.Chunks, check.Lists) {
		if err := c.forgetLost(ctx); err != nil {
			return err
		}
	}
	if err := c.forgetAdopted(ctx, found.Refuted); err != nil {
		return err
	}
	if len(found.Findings) == 0 {
		return damage
	}
	if err := c.agree(); err != nil {
		return err
	}
	summary, err := c.repair(ctx, o, &found)
	if err != nil {
		return err
	}
	proven := c.proveAgain(ctx, summary.PutBack)
	return errors.Join(c.conclude(&summary), proven)
}

// agree asks for a confirmation.
func (c *repairCommand) agree() error {
	if c.yes {
		return nil
	}
	question := "Put back what parity has, and drop from the index what is then still lost? [y/N] "
	if c.app.cfg.Mirror.URL != "" {
		question = "Put back what the mirror and parity have, and drop from the index what is then still lost? [y/N] "
	}
	if !c.app.confirmed(c.in, question) {
		return errors.New("nothing was repaired")
	}
	return nil
}

// repair repairs the findings. It opens the index again, to write.
func (c *repairCommand) repair(ctx context.Context, o check.Options, found *check.Report) (repair.Summary, error) {
	c.app.interruptible.Store(false)
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return repair.Summary{}, err
	}
	defer r.close()
	o.Index = r.index
	repairing := repair.Options{Index: r.index, Store: r.store, Check: o, By: operator(), Prune: prune.Options{
		Log: c.app.log, MemoryBytes: c.maxMemory, ObjectLock: c.app.cfg.ObjectLock(), Holder: holder(),
	}}
	repairing.Check.Progress, repairing.Check.Begin = nil, nil
	repairing.Check.Store, repairing.Check.Affected = r.store, nil
	if c.app.cfg.Mirror.URL != "" {
		switch source, err := c.mirror(ctx, r, &o); {
		case mirror.IsAway(err):
			repairing.MirrorAway = err
		case err != nil:
			return repair.Summary{}, err
		default:
			defer source.close()
			repairing.Mirror = source
		}
	}
	run := func() (repair.Summary, error) { return repair.Run(ctx, repairing, found) }
	if local, is := r.index.(*sqliteindex.Index); is {
		key, err := r.object.ReadCommitterKey(c.app.cfg.CommitterKey)
		if err != nil {
			return repair.Summary{}, err
		}
		keys, err := open.JournalKeys(&r.object, key)
		if err != nil {
			return repair.Summary{}, err
		}
		locks, err := c.app.cfg.LockDir()
		if err != nil {
			return repair.Summary{}, err
		}
		run = func() (repair.Summary, error) {
			return embedded.Repair(ctx, local, keys, locks, repairing, found)
		}
	}
	var s repair.Summary
	_, err = c.app.runPrune(func(with prune.Options) (prune.Summary, error) {
		repairing.Prune.Progress = with.Progress
		s, err = run()
		return prune.Summary{}, err
	}, prune.Options{})
	var stopped *index.StoppedError
	switch {
	case errors.Is(err, prune.ErrBusy):
		return s, whenEnded(err)
	case errors.As(err, &stopped):
		s := stopOf{Stop: stopped.Stop}
		return repair.Summary{}, fmt.Errorf("the brake has stopped the repair, and nothing was dropped: it would drop %s. "+
			"Is all of the store there? If it is, run %s, and then this command again", s.what(), s.confirmation())
	}
	return s, err
}

// mirror opens the mirror. With an identity, it proves the content of what it puts back.
func (c *repairCommand) mirror(ctx context.Context, r *repository, o *check.Options) (*mirrorSource, error) {
	source, err := c.app.mirrorSource(ctx, r)
	if err != nil {
		return nil, err
	}
	if o.Opener != nil {
		source.Content = mirror.ProveContent(r.object.ID, o.Opener, o.HashKey)
	}
	source.Damaged = func(name string, why error) {
		c.app.note("the mirror's copy of %s is damaged too, and is not put back: %v", name, why)
	}
	source.Mended = func(name string) {
		c.app.note("%s is put together of what is sound in the store's copy and in the mirror's, which are both damaged", name)
	}
	rows, err := packRows(ctx, r)
	source.Mend = func(ctx context.Context, name string, present, copied []byte) ([]byte, bool, error) {
		packs, err := r.index.PacksToProve(ctx, rows[name])
		if err != nil {
			return nil, false, err
		}
		mended, known := repair.Mend(packs, r.object.ID, present, copied)
		return mended, known, nil
	}
	if err != nil {
		source.close()
		return nil, err
	}
	return source, nil
}

// proveAgain proves the packs in objects that were put back, and those that a scrub has found
// damaged: nothing but their checksums shows whether they were damaged before they were copied.
// What that does not prove, because a scrub runs or this user may not note proofs, a scrub proves
// later. It fails if what was put back is damaged.
func (c *repairCommand) proveAgain(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	damaged, err := c.prove(ctx, names)
	switch {
	case err != nil:
		c.app.note("what was put back is not proven yet: %v", err)
	case damaged > 0:
		return fmt.Errorf("%s damaged still, because what was put back was damaged before it was copied: run bctl repair once more, which drops what is lost", countedAre(damaged, "pack"))
	}
	return nil
}

// prove returns how many of the packs in the objects are damaged.
func (c *repairCommand) prove(ctx context.Context, names []string) (damaged int64, err error) {
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return 0, err
	}
	defer r.close()
	of, err := packRows(ctx, r)
	if err != nil {
		return 0, err
	}
	put := map[string]bool{}
	var rows []int64
	for _, name := range names {
		put[name] = true
		rows = append(rows, of[name]...)
	}
	// Adopted checksums are those of the bytes that were replaced.
	if err := r.index.ForgetAdopted(ctx, rows); err != nil {
		return 0, err
	}
	packs, err := r.index.PacksToProve(ctx, rows)
	if err != nil {
		return 0, err
	}
	_, err = scrub.Run(ctx, scrub.Options{
		Index: r.index, Store: r.store, Repository: r.object.ID, Journal: &scrub.Journal{Store: r.store, Signer: r.object.Signer()}, Holder: holder(), Failed: true, Also: packs,
		Damaged: func(f *check.Finding) {
			if put[f.Object] {
				damaged++
			}
		},
	})
	return damaged, err
}

// forgetAdopted forgets checksums that scrubs have adopted of damaged bytes: the check has opened
// what the packs have now, and it is sound.
func (c *repairCommand) forgetAdopted(ctx context.Context, rows []int64) error {
	if len(rows) == 0 {
		return nil
	}
	c.app.note("the content of %s sound: a scrub had read damaged bytes there, and its checksums of them are forgotten", countedAre(len(rows), "pack"))
	return c.app.withIndex(ctx, toWrite, func(i index.Index) error { return i.ForgetAdopted(ctx, rows) })
}

// packRows returns the rows of the packs in each object.
func packRows(ctx context.Context, r *repository) (map[string][]int64, error) {
	rows := map[string][]int64{}
	for p, err := range r.index.Packs(ctx) {
		if err != nil {
			return nil, err
		}
		if !p.Deleting && !p.Gone {
			name := store.PackName(p.Snapshot, p.Object)
			rows[name] = append(rows[name], p.Row)
		}
	}
	return rows, nil
}
