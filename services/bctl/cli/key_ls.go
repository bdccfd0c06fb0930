package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
)

func newKeyLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the recipients in force",
		Long: `Lists the recipients, whose identities can restore. SINCE is when a recipient
was added. PACKS is how many packs are sealed to it, and SHARE is their share of
the stored bytes. OLD is how many it cannot open, because they were written
before it was added: bctl key rotate makes it open them.

Packs do not show to whom they are sealed. The numbers are derived from the
times of snapshots and rotations. They assume that all services have sealed to
the recipients in force: bctl worker ls marks those that do not. To test
identities on the packs themselves, use bctl key verify.`,
		Example: "  bctl key ls\n  bctl key ls --json",
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.listKeys(cmd.Context()) },
	}
	a.wideFlag(cmd)
	return cmd
}

// A listedKey is a recipient, and what it opens.
type listedKey struct {
	repo.Recipient
	packs, bytes int64 // that it opens
	old          int64 // packs that it does not open
	total        int64 // stored bytes of all packs
}

func (k *listedKey) share() float64 {
	if k.total == 0 {
		return 1
	}
	return float64(k.bytes) / float64(k.total)
}

// keyJSON is a line of key ls. The names are fixed.
type keyJSON struct {
	Recipient string  `json:"recipient"`
	Label     string  `json:"label"`
	Since     *string `json:"since"`
	Packs     int64   `json:"packs"`
	Bytes     int64   `json:"bytes"`
	Share     float64 `json:"share"` // of the stored bytes, from 0 to 1
	OldPacks  int64   `json:"old_packs"`
}

func (a *app) listKeys(ctx context.Context) error {
	r, err := a.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	keys, err := whatKeysOpen(ctx, r, func([]bool) {})
	if err != nil {
		return err
	}
	now, err := r.index.Clock(ctx)
	if err != nil {
		return err
	}
	err = printList(a, keys, keyTable(now), func(k *listedKey) keyJSON {
		return keyJSON{k.Key, k.Label, jsonTime(k.Since), k.packs, k.bytes, k.share(), k.old}
	})
	indexed, indexErr := r.index.Repository(ctx)
	switch {
	case err != nil || indexErr != nil || slices.Equal(indexed.Recipients, r.object.Recipients):
	case r.old != nil:
		a.note("the index names other recipients than those in force, because it is older than its store. The list is right; %s corrects the index", a.bringsUpToDate())
	default:
		a.note("the index names other recipients than those in force: a bctl key command was interrupted; run it again")
	}
	return err
}

func keyTable(now time.Time) table[*listedKey] {
	return table[*listedKey]{
		{name: "RECIPIENT", text: func(k *listedKey) string { return k.Key }, cut: truncate, useful: 20},
		{name: "LABEL", text: func(k *listedKey) string { return display(k.Label) }, cut: truncate, useful: usefulPath, optional: true},
		{name: "SINCE", text: func(k *listedKey) string { return happened(k.Since, now) }, brief: func(k *listedKey) string { return shortTime(k.Since) }, leave: 1},
		{name: "PACKS", text: func(k *listedKey) string { return humanize.Comma(k.packs) }, right: true},
		{name: "SHARE", text: func(k *listedKey) string { return fmt.Sprintf("%.0f%%", 100*k.share()) }, right: true},
		{name: "OLD", text: func(k *listedKey) string { return humanize.Comma(k.old) }, right: true},
	}
}

// whatKeysOpen derives what each recipient opens from the times of snapshots and of complete
// rotations. It calls each for each pack, with which of the recipients open it, in their order.
func whatKeysOpen(ctx context.Context, r *repository, each func(opens []bool)) ([]*listedKey, error) {
	force := r.object.InForce()
	keys := make([]*listedKey, len(force.List))
	rotated := make([]time.Time, len(keys)) // when the newest rotation for it began
	rotations, err := rewrap.Coverages(ctx, r.store, &r.object)
	if err != nil {
		return nil, err
	}
	for i, to := range force.List {
		keys[i] = &listedKey{Recipient: to}
		for _, c := range rotations {
			if slices.Contains(c.Recipients, to.Key) && c.Began.After(rotated[i]) {
				rotated[i] = c.Began
			}
		}
	}
	snapshots, err := timesOf(ctx, r.index)
	if err != nil {
		return nil, err
	}
	for p, err := range r.index.Packs(ctx) {
		if err != nil {
			return nil, err
		}
		if p.Deleting || p.Gone {
			continue
		}
		made, known := snapshots[p.Snapshot]
		opens := make([]bool, len(keys))
		for i, k := range keys {
			k.total += p.Bytes
			// The first recipients have all packs.
			direct := !k.Since.After(r.object.Created) || known && !made.began.Before(k.Since)
			again := !rotated[i].IsZero() && (!known || !made.ended.IsZero() && made.ended.Before(rotated[i]))
			if opens[i] = direct || again; opens[i] {
				k.packs++
				k.bytes += p.Bytes
			} else {
				k.old++
			}
		}
		each(opens)
	}
	return keys, nil
}

// openedOnlyBy returns the number of packs that only one of the recipients in force opens.
func openedOnlyBy(ctx context.Context, r *repository, recipient int) (n int64, err error) {
	_, err = whatKeysOpen(ctx, r, func(opens []bool) {
		only := opens[recipient]
		for i, is := range opens {
			only = only && (i == recipient || !is)
		}
		if only {
			n++
		}
	})
	return n, err
}

// A span is when a snapshot began and ended.
type span struct{ began, ended time.Time }

func timesOf(ctx context.Context, i index.Index) (map[backup.SnapshotID]span, error) {
	all, err := i.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running, backup.Committed, backup.Failed, backup.Deleting}})
	if err != nil {
		return nil, err
	}
	times := make(map[backup.SnapshotID]span, len(all))
	for i := range all {
		times[all[i].ID] = span{all[i].Started, all[i].Ended}
	}
	return times, nil
}
