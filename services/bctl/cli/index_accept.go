package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
)

type indexAccept struct {
	app    *app
	signer string
	reason string
	dryRun bool
}

func newIndexAccept(a *app) *cobra.Command {
	c := &indexAccept{app: a}
	cmd := &cobra.Command{
		Use:   "accept --reason TEXT",
		Short: "Work with a restored index that is older than its store",
		Long: `Makes the services of a fleet work with an index that is older than its store,
because Postgres was restored from an earlier dump. Until then, they refuse to
work. Restore the newest dump, or Postgres to a later time, if you can: a newer
index lacks less.

Snapshots that the store has a record of, and the index lacks, are listed, and
are lost: this release cannot recover them. Snapshots that are running in the
index fail. Changes of settings and holds since the dump are lost, too: repeat
them. Packs that a prune has moved or deleted since are missing: bctl doctor
lists those that the newest snapshots need. Then back up everything.

The command needs the identity, the admin's access to the index, and access to
the store. The log (bctl log) has the reason.`,
		Example: `  bctl index accept --config admin/bctl.yaml --dry-run
  bctl index accept --config admin/bctl.yaml --reason 'disk lost, ticket 12'`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, a `TEXT` for the log (required)")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only list what the index lacks")
	cmd.Flags().StringVar(&c.signer, "signer", "", "trust this `SIGNER`, if no file on this machine names the repository's")
	return cmd
}

func (c *indexAccept) run(ctx context.Context) error {
	a := c.app
	if _, local := a.cfg.IndexPath(); local {
		return usage("the index is a file: bctl index rebuild makes it current (bctl index accept is for an index in Postgres)")
	}
	if !c.dryRun && strings.TrimSpace(c.reason) == "" {
		return usage("say why, with --reason TEXT: the log keeps it")
	}
	i, err := a.openIndex(ctx, toWrite)
	if err != nil {
		return err
	}
	defer i.Close()
	s, trust, err := (&indexRebuild{app: a, signer: c.signer}).open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	r, err := i.Repository(ctx)
	if err != nil {
		return err
	}
	lack := loss{index: i, rebuild: &rebuild{app: a, store: s, trust: trust}}
	if lack.running, err = i.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}}); err != nil {
		return err
	}
	if err := repo.EachUnended(ctx, s, i, func(id backup.SnapshotID, amendment int) error { return lack.add(ctx, id, amendment) }); err != nil {
		return err
	}
	if lack.catalog, err = repo.NewestCatalog(ctx, s, &r); err != nil {
		return err
	}
	last, err := i.LastCatalog(ctx)
	if err != nil {
		return err
	}
	old := lack.catalog > last || lack.unended > 0
	if old && !c.dryRun {
		if err := lack.accept(ctx, operator(), c.reason); err != nil {
			return err
		}
	}
	return c.report(&lack, old)
}

// A loss is what an index lacks that is older than its store.
type loss struct {
	index   index.Index
	rebuild *rebuild
	unended int // snapshots with a signed record
	lost    []lostSnapshot
	running []backup.Snapshot // according to the index
	catalog int64             // the newest in the store
}

// add notes a snapshot with a record in the store whose end the index does not know. Records that
// the repository's signer has not signed do not count; a damaged one is that of a lost snapshot.
func (l *loss) add(ctx context.Context, id backup.SnapshotID, amendment int) error {
	found, err := l.rebuild.describe(ctx, id, amendment)
	if err != nil {
		return err
	}
	if found.damaged { // by whom is not known: nothing that is not signed keeps services from working
		return nil
	}
	l.unended++
	if !l.isRunning(id) {
		l.lost = append(l.lost, found)
	}
	return nil
}

func (l *loss) isRunning(id backup.SnapshotID) bool {
	return slices.ContainsFunc(l.running, func(s backup.Snapshot) bool { return s.ID == id })
}

// accept makes the index current. If it is interrupted, it can be called again. Running snapshots
// fail: those that have ended since cannot end again, and a queue may have results of the others,
// which rely on packs that the index does not know.
func (l *loss) accept(ctx context.Context, by, reason string) error {
	for n := range l.running {
		const why = "it was running when the dump was made from which Postgres was restored"
		if err := l.index.Fail(ctx, l.running[n].ID, why, time.Time{}); err != nil {
			return err
		}
	}
	lost := make([]index.LostSnapshot, len(l.lost))
	for n := range l.lost {
		lost[n] = l.lost[n].LostSnapshot
	}
	return l.index.AcceptLoss(ctx, lost, l.catalog, by, reason)
}

func (c *indexAccept) report(l *loss, old bool) error {
	a := c.app
	lost, failed := []string{}, []string{}
	for n := range l.lost {
		lost = append(lost, l.lost[n].ID.String())
		a.note("snapshot %s is in the store, but not in the index", l.lost[n].name)
	}
	for n := range l.running {
		failed = append(failed, l.running[n].ID.String())
		if old {
			a.note("snapshot %s of %s %s is running in the index, and fails", l.running[n].ID.Short(), display(l.running[n].Filer.Name), display(l.running[n].Shard.Name))
		}
	}
	text := "the index is as new as its store: there is nothing to accept\n"
	switch {
	case old && c.dryRun:
		text = fmt.Sprintf("the index is older than its store, and lacks %s\n", counted(len(lost), "snapshot"))
	case old:
		text = fmt.Sprintf("accepted: the index lacks %s, and the services work with it. Find out what else is missing (bctl doctor), repeat later changes of settings and holds, and back up everything\n", counted(len(lost), "snapshot"))
	}
	return a.result(struct {
		Type   string   `json:"type"` // accept
		DryRun bool     `json:"dry_run"`
		Old    bool     `json:"old"`
		Lost   []string `json:"lost"`
		Failed []string `json:"failed"`
	}{"accept", c.dryRun, old, lost, failed}, "%s", text)
}
