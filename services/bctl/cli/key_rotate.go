package cli

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
)

func newKeyRotate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Make all identities open what was backed up before",
		Long: `Wraps the keys of all packs again, for the recipients in force. It reads the
beginning of each pack and rewrites no data. Afterwards an identity that was
added later opens the packs that were written before, on its own.

This needs an identity that opens the packs, and that is a recipient in force:
one that was removed is refused. It can be interrupted, and run again: it
continues. What an earlier rotation has wrapped for all recipients in force is
not wrapped again.

After the removal of a recipient there is nothing to rotate: no packs can be
closed to an identity that opens them.`,
		Example: "  bctl key rotate\n  bctl key rotate --identity /media/usb/first.txt",
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.rotateKeys(cmd.Context()) },
	}
}

// rotatedJSON is the result of key rotate. The names are fixed.
type rotatedJSON struct {
	Rotation   int64    `json:"rotation"` // 0: nothing was to be done
	Recipients []string `json:"recipients"`
	Packs      int64    `json:"packs"`   // with objects of the journal
	Wrapped    int64    `json:"wrapped"` // keys
	Had        int64    `json:"had"`     // keys that were wrapped for these recipients before
	Bytes      int64    `json:"bytes"`   // put into the store
	Unopened   int64    `json:"unopened"`
	Missing    int64    `json:"missing"`
	Seconds    float64  `json:"elapsed_seconds"`
}

func (a *app) rotateKeys(ctx context.Context) error {
	r, err := a.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	identity, err := a.identityOf(ctx, r, a.cfg.Identity)
	if err != nil {
		return err
	}
	k, wrongKeys := a.repositoryKeys(ctx, r, a.cfg.Identity)
	if wrongKeys == nil {
		err = a.restate(ctx, r, &k)
	}
	if err == nil {
		err = r.object.CheckInForce(identity.Opener) // before anything is changed
	}
	if err = cmp.Or(err, wrongKeys); err == nil {
		err = a.follow(ctx, r, &k)
	}
	if err != nil {
		return err
	}
	now, err := r.index.Clock(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	var done, total atomic.Int64
	stop := a.animate(func() string {
		return fmt.Sprintf("%s of %s keys", humanize.Comma(done.Load()), humanize.Comma(total.Load()))
	})
	result, err := rewrap.Rotate(ctx, rewrap.Options{
		Index: r.index, Store: r.store, Object: &r.object, Opener: identity.Opener, Signing: k.committer.Signing,
		Now:      func() time.Time { return now.Add(time.Since(began)) },
		Progress: func(d, t int64) { done.Store(d); total.Store(t) },
	})
	stop()
	if err != nil {
		if result.Wrapped > 0 {
			a.note("%s of this rotation are in the store; bctl key rotate continues it", counted(result.Wrapped, "key"))
		}
		return err
	}
	if err := a.noteKeyObjects(ctx, r, result.Unopened+result.Missing == 0); err != nil {
		return err
	}
	return a.reportRotation(r, &result, time.Since(began))
}

func (a *app) reportRotation(r *repository, result *rewrap.Result, took time.Duration) error {
	object := rotatedJSON{
		result.Rotation, r.object.Recipients, result.Total, result.Wrapped, result.Had, result.Bytes, result.Unopened, result.Missing, took.Seconds(),
	}
	text := fmt.Sprintf("wrapped %s for %s (%s)\n", counted(result.Wrapped, "key"), counted(len(r.object.Recipients), "recipient"), size(result.Bytes))
	if result.Wrapped == 0 {
		text = fmt.Sprintf("nothing to do: %s are wrapped for all recipients in force\n", counted(result.Had, "key"))
	}
	if err := a.result(object, "%s", text); err != nil {
		return err
	}
	for _, problem := range result.Problems {
		a.note("%v", problem)
	}
	if result.Unopened > 0 {
		a.note("%s were not wrapped, because this identity does not open them: run bctl key rotate once more with one that does (--identity)", counted(result.Unopened, "key"))
	}
	if result.Missing > 0 {
		a.note("%s are missing from the store or damaged: run bctl doctor", counted(result.Missing, "pack"))
	}
	if result.Unopened+result.Missing > 0 {
		return errIncomplete
	}
	return nil
}

// identityOf reads an identity file, and checks its signer.
func (a *app) identityOf(ctx context.Context, r *repository, path string) (*repo.Identity, error) {
	identity, err := repo.FindIdentity(path, r.object.ID, a.ask(ctx))
	if err == nil {
		err = identity.Check(&r.object)
	}
	return identity, err
}
